/* Factors of matrix products: values, or with BFLOAT16 pairs of rounded values that are adjacent
 * along the sum; sums have the precision of REAL.
 */
#if defined(BFLOAT16)
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

/* A block of a product is ROWS by VECS vectors. It fills all but a few registers, which are for
 * factors. */
enum { ROWS = BYTES == 64 ? 8 : 4, VECS = 3 };
/* Rows of a block of two vectors, which are a cache line of AVX2: as many sums, fewer loads. */
enum { TALL = BYTES == 32 ? 6 : ROWS };

/* Number of factors of a sum of `depth` values. */
INLINE ptrdiff_t factors_of(ptrdiff_t depth) { return (depth + PAIR - 1) / PAIR; }

/* Allocates space for factors, if they are not the values themselves; NULL if out of memory. It
 * begins with a cache line, as a load from two takes twice as long. */
INLINE factor *factor_room(ptrdiff_t n)
{
    return aligned_alloc(LINE, PAIR > 1 ? (n * sizeof(factor) + LINE - 1) / LINE * LINE : LINE);
}

#ifdef BFLOAT16
typedef uint16_t halves __attribute__((vector_size(BYTES / 2)));

INLINE halves rounded(vec v) { return (halves)_mm512_cvtneps_pbh((__m512)v); }
INLINE factors widened(vec v) { return __builtin_convertvector(rounded(v), factors); }
#endif

/* Left factors of (rows, depth), along whose rows sums run: (rows, factors_of(depth)); `depth` is a
 * multiple of LANES. They are written to `room`, unless they are the values themselves. */
INLINE const factor *factors_along(ptrdiff_t rows, ptrdiff_t depth, const REAL *values,
                                   factor *room)
{
#ifdef BFLOAT16
    ptrdiff_t n = factors_of(depth);
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t k = 0; k < depth; k += LANES) {
            halves of_values = rounded(load(values + i * depth + k));
            memcpy(room + i * n + k / PAIR, &of_values, sizeof of_values);
        }
    return room;
#else
    return values;
#endif
}

/* Factors of (depth, n), down whose columns sums run: (factors_of(depth), n); n is a multiple of
 * LANES. They are written to `room`, unless they are the values themselves. */
static const factor *factors_down(ptrdiff_t depth, ptrdiff_t n, const REAL *values, factor *room)
{
#ifdef BFLOAT16
    for (ptrdiff_t k = 0; k < PAIR * factors_of(depth); k += PAIR)
        for (ptrdiff_t j = 0; j < n; j += LANES) {
            vec above = k < depth ? load(values + k * n + j) : all(0);
            vec below = k + 1 < depth ? load(values + (k + 1) * n + j) : all(0);
            factors pairs = widened(above) | widened(below) << 16;
            memcpy(room + k / PAIR * n + j, &pairs, sizeof pairs);
        }
    return room;
#else
    return values;
#endif
}
