/* Products of matrices that are in the caches. They also prefetch what follows, since they leave
 * memory bandwidth unused.
 */

/* A block of a product, ROWS by VECS vectors, fills all but a few registers. */
enum { ROWS = BYTES == 64 ? 8 : 4, VECS = 3 };

/* Factors of a product: values, or with BFLOAT16 pairs of rounded values that are adjacent along
 * the sum; sums have the precision of REAL. */
#ifdef BFLOAT16
#include <immintrin.h>
enum { PAIR = 2 };
typedef uint32_t factor;
#else
enum { PAIR = 1 };
typedef REAL factor;
#endif
typedef factor factors __attribute__((vector_size(BYTES)));
typedef factors loose_factors __attribute__((aligned(__alignof__(factor)), may_alias));

INLINE factors load_factors(const factor *p) { return *(const loose_factors *)p; }

/* Number of factors of a sum of `depth` values. */
INLINE ptrdiff_t factors_of(ptrdiff_t depth) { return (depth + PAIR - 1) / PAIR; }

INLINE vec multiply_add(vec sum, factor left, factors right)
{
#ifdef BFLOAT16
    __m512bh pairs = (__m512bh)_mm512_set1_epi32(left);
    return (vec)_mm512_dpbf16_ps((__m512)sum, pairs, (__m512bh)right);
#else
    return sum + left * right;
#endif
}

/* Allocates space for factors, if they are not the values themselves; NULL if out of memory. */
INLINE factor *factor_room(ptrdiff_t n) { return malloc(PAIR > 1 ? n * sizeof(factor) : 1); }

/* Factors of rows, along which sums run: `count` values, row by row, a multiple of LANES. They are
 * written to `room`, unless they are the values themselves. */
INLINE const factor *factors_along(ptrdiff_t count, const REAL *values, factor *room)
{
#ifdef BFLOAT16
    for (ptrdiff_t k = 0; k < count; k += LANES)
        _mm256_storeu_si256((__m256i *)(room + k / PAIR),
                            (__m256i)_mm512_cvtneps_pbh((__m512)load(values + k)));
    return room;
#else
    return values;
#endif
}

/* Factors of columns, down which sums run, (factors_of(depth), n), of values (depth, n); n is a
 * multiple of LANES. They are written to `room`, unless they are the values themselves. */
static const factor *factors_down(ptrdiff_t depth, ptrdiff_t n, const REAL *values, factor *room)
{
#ifdef BFLOAT16
    for (ptrdiff_t k = 0; k < depth; k += PAIR)
        for (ptrdiff_t j = 0; j < n; j += LANES) {
            vec above = load(values + k * n + j);
            vec below = k + 1 < depth ? load(values + (k + 1) * n + j) : all(0);
            __m512i first = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)above));
            __m512i second = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)below));
            _mm512_storeu_si512(room + k / PAIR * n + j,
                                _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
    return room;
#else
    return values;
#endif
}

enum { LINE = 64, MOST_PARTS = 4 };

/* Parts of memory that products prefetch into the cache; the first `done` parts are complete. */
struct fetch {
    int done, parts;
    struct {
        const char *at, *end;
    } part[MOST_PARTS];
};

INLINE void also_fetch(struct fetch *fetch, const REAL *at, ptrdiff_t size)
{
    fetch->part[fetch->parts].at = (const char *)at;
    fetch->part[fetch->parts++].end = (const char *)(at + size);
}

/* Address of the next cache lines to prefetch. */
INLINE const char *next_lines(struct fetch *fetch, ptrdiff_t lines)
{
    const char *at = fetch->part[fetch->done].at, *after = at + lines * LINE;
    fetch->part[fetch->done].at = after;
    fetch->done += after >= fetch->part[fetch->done].end;
    return at;
}

/* sums[i][v] = sum over k < depth of a[i, k] b[k, v], for `rows` by `vecs` vectors.
 * a[i, k] is at a + i a_row + k a_step; the vector b[k, v] at b + k b_step + v b_vec. */
INLINE void block(int rows, int vecs, ptrdiff_t depth, const factor *a, ptrdiff_t a_row,
                  ptrdiff_t a_step, const factor *b, ptrdiff_t b_step, ptrdiff_t b_vec,
                  vec sums[ROWS][VECS], struct fetch *fetch)
{
    ptrdiff_t line = fetch->done < fetch->parts ? LINE : 0;
    const char *ahead = line ? next_lines(fetch, depth) : (const char *)a;
    vec s[ROWS][VECS] = {{{0}}};
    for (ptrdiff_t k = 0; k < depth; k++) {
        __builtin_prefetch(ahead + k * line, 0, 2);
        factors right[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            right[v] = load_factors(b + k * b_step + v * b_vec);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            factor left = a[i * a_row + k * a_step];
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                s[i][v] = multiply_add(s[i][v], left, right[v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            sums[i][v] = s[i][v];
}

INLINE void product_block(int rows, int vecs, ptrdiff_t depth, const factor *a, ptrdiff_t a_row,
                          ptrdiff_t a_step, const factor *b, ptrdiff_t n, REAL *c, int add,
                          struct fetch *fetch)
{
    vec sums[ROWS][VECS];
    block(rows, vecs, depth, a, a_row, a_step, b, n, LANES, sums, fetch);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            REAL *at = c + i * n + v * LANES;
            store(at, add ? load(at) + sums[i][v] : sums[i][v]);
        }
}

INLINE void columns(int vecs, ptrdiff_t m, ptrdiff_t depth, const factor *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const factor *b, ptrdiff_t n, REAL *c, int add,
                    struct fetch *fetch)
{
    ptrdiff_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        product_block(ROWS, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add, fetch);
    for (; i < m; i++)
        product_block(1, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add, fetch);
}

/* c (m, n) = a (m, depth) b (depth, n), or added to c; a as in `block`, the others in C order; n is
 * a multiple of LANES, `depth` counts factors. */
static void product(ptrdiff_t m, ptrdiff_t depth, ptrdiff_t n, const factor *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const factor *b, REAL *c, int add, struct fetch *fetch)
{
    ptrdiff_t j = 0;
    for (; j + VECS * LANES <= n; j += VECS * LANES)
        columns(VECS, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    if (n - j == 2 * LANES)
        columns(2, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    else if (n - j == LANES)
        columns(1, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
}

