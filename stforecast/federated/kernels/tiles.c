/* Sums of products in the processor's tiles (Intel AMX): 16 rows of 64 bytes each.
 *
 * tdpbf16ps adds to a tile of sums the products of a tile of left factors, each row 16 pairs along
 * the sum, and a tile of right factors, whose rows are 16 pairs of adjacent columns. Its time grows
 * with the rows of the left tile, so a product's rows are spread evenly over tiles: 24 rows are two
 * tiles of 12.
 *
 * Tiles are registers of a thread, so each call of a kernel loads its own configuration. At its end
 * it releases it, as the system then need not save them. `compiler.py` asks for permission.
 */

/* Cache lines that a block prefetches in a step of its sums, for each of its rows: in all as many
 * as blocks of vectors do. */
enum { LINES_A_ROW = 2 };

/* Rows of a block, if there are as many left, in a product of `rows` rows. */
INLINE ptrdiff_t rows_at_once(ptrdiff_t rows)
{
    if (TILE == 1)
        return ROWS;
    ptrdiff_t blocks = (rows + ROWS - 1) / ROWS;
    return (rows + blocks - 1) / blocks;
}

/* Rows of the next block if fewer are left: registers take one, as each number has its own code. */
INLINE ptrdiff_t rows_at_end(ptrdiff_t left) { return TILE == 1 ? 1 : left; }

#ifdef TILES

/* gcc's intrinsics do not tell the compiler which memory they read. */
INLINE void finish_writing(const void *at) { __asm__ volatile("" : : "r"(at) : "memory"); }

/* Shapes tiles for products of `rows` rows: 0 to 5 are sums, 6 left and 7 right factors. */
static void load_tiles(ptrdiff_t rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = TILE * sizeof(factor);
        shapes.rows[i] = i < 7 ? (rows_at_once(rows) + 1) / 2 : TILE;
    }
    finish_writing(&shapes);
    _tile_loadconfig(&shapes);
}

INLINE void release_tiles(void) { _tile_release(); }

/* One step of the sums `upper` and `lower`, which are column `v` of a block. */
#define MULTIPLY(v, upper, lower)                                                                  \
    if (v < vecs) {                                                                                \
        _tile_loadd(7, b + k * b_step + v * b_vec, b_step * sizeof(factor));                       \
        _tile_loadd(6, a + k, a_row * sizeof(factor));                                             \
        _tile_dpbf16ps(upper, 6, 7);                                                               \
        _tile_loadd(6, a_lower + k, a_row * sizeof(factor));                                       \
        _tile_dpbf16ps(lower, 6, 7);                                                               \
    }

/* Sums of a column. */
#define STORE(v, upper, lower)                                                                     \
    if (v < vecs) {                                                                                \
        _tile_stored(upper, &sums[0][v], sizeof sums[0]);                                          \
        _tile_stored(lower, &sums[half][v], sizeof sums[0]);                                       \
    }

/* Does what `block` in products.c does, where a_step is 1. Each of its columns is two tiles; the
 * second begins at the middle row. Where they overlap, both have the same sums; the second's sums
 * after the last row are not used. */
static void block(ptrdiff_t rows, int vecs, ptrdiff_t depth, const factor *a, ptrdiff_t a_row,
                  ptrdiff_t a_step, const factor *b, ptrdiff_t b_step, ptrdiff_t b_vec,
                  vec sums[ROWS][VECS], struct fetch *fetch)
{
    ptrdiff_t half = (rows + 1) / 2;
    const factor *a_lower = a + half * a_row;
    ptrdiff_t lines = fetch->done < fetch->parts ? LINES_A_ROW * rows : 0;
    const char *ahead = lines ? next_lines(fetch, lines * (depth / TILE)) : NULL;
    finish_writing(a);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (ptrdiff_t k = 0; k < depth; k += TILE) {
        for (ptrdiff_t line = 0; line < lines; line++, ahead += LINE)
            __builtin_prefetch(ahead, 0, 2);
        MULTIPLY(0, 0, 1)
        MULTIPLY(1, 2, 3)
        MULTIPLY(2, 4, 5)
    }
    STORE(0, 0, 1)
    STORE(1, 2, 3)
    STORE(2, 4, 5)
}

#else

INLINE void load_tiles(ptrdiff_t rows) {}
INLINE void release_tiles(void) {}

#endif
