/* Vectors of the processor's width, for all kernels of this folder.
 *
 * All sources are compiled as one, several times: REAL, INTEGER (as wide) and NAME are defined by
 * compiler.py. Vectors are GNU C's, which gcc and clang compile for any processor.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
enum { LANES = BYTES / sizeof(REAL) };
typedef REAL vec __attribute__((vector_size(BYTES)));
typedef INTEGER lanes __attribute__((vector_size(BYTES)));
typedef vec loose __attribute__((aligned(__alignof__(REAL)), may_alias));

INLINE vec load(const REAL *p) { return *(const loose *)p; }
INLINE void store(REAL *p, vec v) { *(loose *)p = v; }
INLINE vec all(REAL x) { return x - (vec){0}; }

/* result[k] = (a, b)[from[k]] */
INLINE vec shuffle(vec a, vec b, lanes from)
{
#if defined(__clang__)
    vec result;
    for (int k = 0; k < LANES; k++)
        result[k] = from[k] < LANES ? a[from[k]] : b[from[k] - LANES];
    return result;
#else
    return __builtin_shuffle(a, b, from);
#endif
}

/* x clamped to the limits; NaN stays NaN. */
INLINE vec clamp(vec x, vec low, vec high)
{
    lanes below = x < low, above = x > high;
    x = (vec)((below & (lanes)low) | (~below & (lanes)x));
    return (vec)((above & (lanes)high) | (~above & (lanes)x));
}

/* Exponential as 2^(n + f): unlike the C library's, it works on vectors. Adding 1.5 * 2^23 rounds to
 * the nearest integer n and leaves it in the lowest bits, and 127 makes them an exponent; 2^f is a
 * polynomial with an error of 1e-7 for f up to a half. */
INLINE vec exp_float(vec x)
{
    const REAL to_base_2 = 1.44269504, shift = 12582912 + 127;
    x = clamp(x, all(-87), all(87));
    vec shifted = x * to_base_2 + shift, f = x * to_base_2 - (shifted - shift);
    vec p = f * (REAL)1.3264720e-3 + (REAL)9.6715139e-3;
    p = p * f + (REAL)5.5507340e-2;
    p = p * f + (REAL)2.4022242e-1;
    p = p * f + (REAL)6.9314700e-1;
    p = p * f + 1;
    return p * (vec)((lanes)shifted << 23);
}

INLINE vec exponential(vec x)
{
    if (sizeof(REAL) == sizeof(float))
        return exp_float(x);
    for (int k = 0; k < LANES; k++)
        x[k] = exp(x[k]);
    return x;
}

INLINE vec sigmoid(vec x) { return 1 / (1 + exponential(-x)); }
INLINE vec hyperbolic_tangent(vec x) { return 2 * sigmoid(2 * x) - 1; }

INLINE REAL sum(vec v)
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) {
        lanes other;
        for (int k = 0; k < LANES; k++)
            other[k] = k ^ half;
        v += shuffle(v, v, other);
    }
    return v[0];
}

/* `size` is a multiple of LANES from here on. */
INLINE REAL dot(ptrdiff_t size, const REAL *a, const REAL *b)
{
    vec total = {0};
    for (ptrdiff_t k = 0; k < size; k += LANES)
        total += load(a + k) * load(b + k);
    return sum(total);
}

/* products[i] = a . b[i], for n rows of b; several at a time, as each sum is a dependent chain. */
static void dots(ptrdiff_t n, ptrdiff_t size, const REAL *a, const REAL *b, REAL *products)
{
    enum { AT_ONCE = 8 };
    ptrdiff_t i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE) {
        vec totals[AT_ONCE] = {{0}};
        for (ptrdiff_t k = 0; k < size; k += LANES)
#pragma GCC unroll 8
            for (int j = 0; j < AT_ONCE; j++)
                totals[j] += load(a + k) * load(b + (i + j) * size + k);
#pragma GCC unroll 8
        for (int j = 0; j < AT_ONCE; j++)
            products[i + j] = sum(totals[j]);
    }
    for (; i < n; i++)
        products[i] = dot(size, a, b + i * size);
}

INLINE void accumulate(REAL *total, vec v) { store(total, load(total) + v); }

INLINE void add_scaled(ptrdiff_t size, REAL scale, const REAL *v, REAL *total)
{
    for (ptrdiff_t k = 0; k < size; k += LANES)
        accumulate(total + k, scale * load(v + k));
}

/* Transposes a square block by swapping halves, quarters, … of the vectors. */
INLINE void transpose_block(vec rows[LANES])
{
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2) {
        lanes first, second;
        for (int k = 0; k < LANES; k++) {
            first[k] = k & half ? LANES + k - half : k;
            second[k] = first[k] + half;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & half)) {
                vec above = rows[i], below = rows[i + half];
                rows[i] = shuffle(above, below, first);
                rows[i + half] = shuffle(above, below, second);
            }
    }
}

/* (m, n) to (n, m), both multiples of LANES. */
static void transpose(ptrdiff_t m, ptrdiff_t n, const REAL *restrict a, REAL *restrict out)
{
    enum { AHEAD = 4 * LANES };
    for (ptrdiff_t i = 0; i < m; i += LANES)
        for (ptrdiff_t j = 0; j < n; j += LANES) {
            vec rows[LANES];
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) {
                rows[k] = load(a + (i + k) * n + j);
                __builtin_prefetch(a + (i + k) * n + j + AHEAD);
            }
            transpose_block(rows);
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++)
                store(out + (j + k) * m + i, rows[k]);
        }
}
