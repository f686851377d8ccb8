/* Intrinsics of a processor's tiles (Intel AMX) in plain C, to test kernels where there are none.
 *
 * Found before the compiler's header of this name, and used by the variant with TILES. As in
 * Intel's manual, shapes come from the configuration, tdpbf16ps sums even and odd products apart,
 * and denormals are zeros. What a processor refuses is counted in `tile_faults`.
 */
#ifndef TILES
#include_next <immintrin.h>
#elif !defined(EMULATED_TILES)
#define EMULATED_TILES
#include <stdint.h>
#include <string.h>

#ifndef __AMX_BF16__
#define __AMX_BF16__ 1
#endif

enum { TILES_IN_ALL = 8, MOST_ROWS = 16, MOST_BYTES = 64 };

static _Thread_local struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes_of_tiles;

static _Thread_local uint8_t tiles[TILES_IN_ALL][MOST_ROWS][MOST_BYTES];

/* Over all threads; tests read it. */
int tile_faults = 0;

/* Whether this thread's tiles are configured. */
int tiles_configured(void) { return shapes_of_tiles.palette; }

static void check_tiles(int correct)
{
    if (!correct)
        __atomic_add_fetch(&tile_faults, 1, __ATOMIC_SEQ_CST);
}

static void check_shape(int tile)
{
    check_tiles(shapes_of_tiles.palette && shapes_of_tiles.rows[tile] &&
                shapes_of_tiles.row_bytes[tile]);
}

static void _tile_loadconfig(const void *from)
{
    memcpy(&shapes_of_tiles, from, sizeof shapes_of_tiles);
    memset(tiles, 0, sizeof tiles);
    check_tiles(shapes_of_tiles.palette == 1 && !shapes_of_tiles.start_row);
    for (int i = 0; i < 14; i++)
        check_tiles(!shapes_of_tiles.reserved[i]);
    for (int i = 0; i < 16; i++) {
        int known = i < TILES_IN_ALL;
        check_tiles(shapes_of_tiles.rows[i] <= (known ? MOST_ROWS : 0));
        check_tiles(shapes_of_tiles.row_bytes[i] <= (known ? MOST_BYTES : 0));
    }
}

static void _tile_release(void)
{
    memset(&shapes_of_tiles, 0, sizeof shapes_of_tiles);
    memset(tiles, 0, sizeof tiles);
}

static void _tile_zero(int tile)
{
    check_shape(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
}

static void _tile_loadd(int tile, const void *from, long stride)
{
    _tile_zero(tile);
    for (int row = 0; row < shapes_of_tiles.rows[tile]; row++)
        memcpy(tiles[tile][row], (const char *)from + row * stride,
               shapes_of_tiles.row_bytes[tile]);
}

static void _tile_stored(int tile, void *to, long stride)
{
    check_shape(tile);
    for (int row = 0; row < shapes_of_tiles.rows[tile]; row++)
        memcpy((char *)to + row * stride, tiles[tile][row], shapes_of_tiles.row_bytes[tile]);
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float without_denormals(float value)
{
    uint32_t bits = bits_of_float(value);
    return bits & 0x7f800000 ? value : float_of_bits(bits & 0x80000000);
}

/* Value of the upper or lower half of a pair. */
static float half_of(uint32_t pair, int upper)
{
    return without_denormals(float_of_bits(upper ? pair & 0xffff0000 : pair << 16));
}

/* A product of two such values is exact, so that this addition rounds once, as the processor's. */
static void add_product(float *sum, float a, float b) { *sum = without_denormals(*sum + a * b); }

static void _tile_dpbf16ps(int to, int left, int right)
{
    int rows = shapes_of_tiles.rows[to], columns = shapes_of_tiles.row_bytes[to] / 4;
    int pairs = shapes_of_tiles.row_bytes[left] / 4;
    check_shape(to);
    check_shape(left);
    check_shape(right);
    check_tiles(shapes_of_tiles.rows[left] == rows && shapes_of_tiles.rows[right] == pairs);
    check_tiles(shapes_of_tiles.row_bytes[right] == 4 * columns);
    check_tiles(to != left && to != right && left != right);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sums[2] = {0}, total;
            for (int k = 0; k < pairs; k++) {
                uint32_t a, b;
                memcpy(&a, tiles[left][i] + 4 * k, sizeof a);
                memcpy(&b, tiles[right][k] + 4 * j, sizeof b);
                add_product(&sums[0], half_of(a, 0), half_of(b, 0));
                add_product(&sums[1], half_of(a, 1), half_of(b, 1));
            }
            memcpy(&total, tiles[to][i] + 4 * j, sizeof total);
            total = without_denormals(without_denormals(total) +
                                      without_denormals(sums[0] + sums[1]));
            memcpy(tiles[to][i] + 4 * j, &total, sizeof total);
        }
}

/* Rounding of 16 values to bfloat16, to nearest and ties to even, which belongs to AVX-512. */
typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef uint16_t __m256bh __attribute__((vector_size(32), may_alias));

static __m256bh _mm512_cvtneps_pbh(__m512 values)
{
    __m256bh result;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = bits_of_float(without_denormals(values[i]));
        int is_nan = values[i] != values[i];
        result[i] = is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    return result;
}

#endif
