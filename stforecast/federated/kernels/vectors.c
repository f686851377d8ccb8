/* What the kernels of this folder share: vectors of the processor's width, and products of matrices.
 *
 * All sources are compiled as one, for float and for double: REAL, INTEGER (as wide) and NAME are
 * defined by compiler.py. Vectors are GNU C's, which gcc and clang compile for any processor.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define INLINE static inline __attribute__((always_inline))

/* A block of a product, ROWS by VECS vectors, fills the registers but for a few. */
#if defined(__AVX512F__)
enum { BYTES = 64, ROWS = 8, VECS = 3 };
#elif defined(__AVX__)
enum { BYTES = 32, ROWS = 4, VECS = 3 };
#else
enum { BYTES = 16, ROWS = 4, VECS = 3 };
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

/* x, or the limit that it is beyond; NaN stays. */
INLINE vec clamp(vec x, vec low, vec high)
{
    lanes below = x < low, above = x > high;
    x = (vec)((below & (lanes)low) | (~below & (lanes)x));
    return (vec)((above & (lanes)high) | (~above & (lanes)x));
}

/* Of two to the nearest power, and a polynomial for the rest (Cephes): unlike the C library's, it
 * works on vectors. */
INLINE vec exp_float(vec x)
{
    x = clamp(x, all(-87), all(87));
    lanes power = __builtin_convertvector(x * (REAL)1.44269504 + (REAL)127.5, lanes);
    vec n = __builtin_convertvector(power, vec) - 127;
    vec f = x - n * (REAL)0.693359375 + n * (REAL)2.12194440e-4;
    vec p = f * (REAL)1.9875691500e-4 + (REAL)1.3981999507e-3;
    p = p * f + (REAL)8.3334519073e-3;
    p = p * f + (REAL)4.1665795894e-2;
    p = p * f + (REAL)1.6666665459e-1;
    p = p * f + (REAL)5.0000001201e-1;
    p = p * f * f + f + 1;
    return p * (vec)(power << 23);
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

/* products[i] = a . b[i], for n rows of b; several at a time, since one waits for its own sum. */
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

/* What products fetch into the cache for those who come after: they leave the way to memory free.
 * Parts of memory, of which the first ones are done. */
struct fetch {
    int done, parts;
    struct {
        const char *at, *end;
    } part[4];
};

enum { LINE = 64 };

INLINE void also_fetch(struct fetch *fetch, const REAL *at, ptrdiff_t size)
{
    fetch->part[fetch->parts].at = (const char *)at;
    fetch->part[fetch->parts++].end = (const char *)(at + size);
}

/* Where the next lines to fetch lie. */
INLINE const char *next_lines(struct fetch *fetch, ptrdiff_t lines)
{
    const char *at = fetch->part[fetch->done].at, *after = at + lines * LINE;
    fetch->part[fetch->done].at = after;
    fetch->done += after >= fetch->part[fetch->done].end;
    return at;
}

/* sums[i][v] = sum over k < depth of a[i, k] b[k, v], for `rows` by `vecs` vectors.
 * a[i, k] lies at a + i a_row + k a_step; the vector b[k, v] at b + k b_step + v b_vec. */
INLINE void block(int rows, int vecs, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                  ptrdiff_t a_step, const REAL *b, ptrdiff_t b_step, ptrdiff_t b_vec,
                  vec sums[ROWS][VECS], struct fetch *fetch)
{
    ptrdiff_t line = fetch->done < fetch->parts ? LINE : 0;
    const char *ahead = line ? next_lines(fetch, depth) : (const char *)a;
    vec s[ROWS][VECS] = {{{0}}};
    for (ptrdiff_t k = 0; k < depth; k++) {
        __builtin_prefetch(ahead + k * line, 0, 2);
        vec right[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            right[v] = load(b + k * b_step + v * b_vec);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            REAL left = a[i * a_row + k * a_step];
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                s[i][v] += left * right[v];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            sums[i][v] = s[i][v];
}

INLINE void product_block(int rows, int vecs, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                          ptrdiff_t a_step, const REAL *b, ptrdiff_t n, REAL *c, int add,
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

INLINE void columns(int vecs, ptrdiff_t m, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const REAL *b, ptrdiff_t n, REAL *c, int add,
                    struct fetch *fetch)
{
    ptrdiff_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        product_block(ROWS, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add, fetch);
    for (; i < m; i++)
        product_block(1, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add, fetch);
}

/* c (m, n) = a (m, depth) b (depth, n), or added to c; a as in `block`, the others in C order; n is
 * a multiple of LANES. */
static void product(ptrdiff_t m, ptrdiff_t depth, ptrdiff_t n, const REAL *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const REAL *b, REAL *c, int add, struct fetch *fetch)
{
    ptrdiff_t j = 0;
    for (; j + VECS * LANES <= n; j += VECS * LANES)
        columns(VECS, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    if (n - j == 2 * LANES)
        columns(2, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    else if (n - j == LANES)
        columns(1, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
}

/* A square block and its columns change places: halves, quarters, … of the vectors are swapped. */
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
