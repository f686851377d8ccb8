/* Products of matrices that are in the caches. They also prefetch what follows, since they leave
 * memory bandwidth unused.
 */

INLINE vec multiply_add(vec sum, factor left, factors right)
{
#ifdef BFLOAT16
    __m512bh pairs = (__m512bh)_mm512_set1_epi32(left);
    return (vec)_mm512_dpbf16_ps((__m512)sum, pairs, (__m512bh)right);
#else
    return sum + left * right;
#endif
}

/* sums[i][v] = sum over k < depth of a[i, k] b[k, v], for `rows` by `vecs` vectors.
 * a[i, k] is at a + i a_row + k a_step; the vector b[k, v] at b + k b_step + v b_vec. */
INLINE void block(int rows, int vecs, ptrdiff_t depth, const factor *a, ptrdiff_t a_row,
                  ptrdiff_t a_step, const factor *b, ptrdiff_t b_step, ptrdiff_t b_vec,
                  vec sums[][VECS], struct fetch *fetch)
{
    ptrdiff_t line = fetch->done < fetch->parts ? LINE : 0;
    const char *ahead = line ? next_lines(fetch, depth) : (const char *)a;
    vec s[TALL][VECS] = {{{0}}};
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
    vec sums[TALL][VECS];
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
    for (; vecs == 2 && TALL > ROWS && m - i >= TALL && m - i != 2 * ROWS; i += TALL)
        product_block(TALL, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add, fetch);
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
    if (TALL == ROWS || n % (2 * LANES))
        for (; j + VECS * LANES <= n; j += VECS * LANES)
            columns(VECS, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    for (; j + 2 * LANES <= n; j += 2 * LANES)
        columns(2, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
    if (n - j == LANES)
        columns(1, m, depth, a, a_row, a_step, b + j, n, c + j, add, fetch);
}
