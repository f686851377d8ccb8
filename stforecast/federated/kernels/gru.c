/* A one-layer GRU for many clients at once, forward and backward, matrix products included.
 *
 *   r = s(ir + hr)   z = s(iz + hz)   n = tanh(in + r hn)   h' = n + z (h - n)
 *
 * One client is done after the other, so that its weights and activations stay in the second-level
 * cache: a library's batched product leaves them there and the next pass finds them gone. Gates lie
 * side by side in the order of torch's GRU: reset, update, new. All arrays are in C order, of the
 * shapes that the functions name; `size`, the hidden size, is a multiple of LANES.
 *
 * Compiled for float and for double: REAL, EXP and NAME are defined by gru.py.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
typedef vec loose __attribute__((aligned(__alignof__(REAL)), may_alias));

INLINE vec load(const REAL *p) { return *(const loose *)p; }
INLINE void store(REAL *p, vec v) { *(loose *)p = v; }
/* Of two to the nearest power, and a polynomial for the rest (Cephes): unlike the C library's, it
 * can be inlined. */
INLINE float exp_float(float x)
{
    float clamped = 87 < x ? 87 : x;
    clamped = clamped < -87 ? -87 : clamped;
    float n = rintf(clamped * 1.44269504f), f = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1;
    union { int bits; float value; } scale = {((int)n + 127) << 23};
    return p * scale.value;
}
INLINE REAL sigmoid(REAL x) { return 1 / (1 + EXP(-x)); }

/* sums[i][v] = sum over k < depth of a[i, k] b[k, v], for `rows` by `vecs` vectors.
 * a[i, k] lies at a + i a_row + k a_step; the vector b[k, v] at b + k b_step + v b_vec. */
INLINE void block(int rows, int vecs, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                  ptrdiff_t a_step, const REAL *b, ptrdiff_t b_step, ptrdiff_t b_vec,
                  vec sums[ROWS][VECS])
{
    vec s[ROWS][VECS] = {{{0}}};
    for (ptrdiff_t k = 0; k < depth; k++) {
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
                          ptrdiff_t a_step, const REAL *b, ptrdiff_t n, REAL *c, int add)
{
    vec sums[ROWS][VECS];
    block(rows, vecs, depth, a, a_row, a_step, b, n, LANES, sums);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) {
            REAL *at = c + i * n + v * LANES;
            store(at, add ? load(at) + sums[i][v] : sums[i][v]);
        }
}

INLINE void columns(int vecs, ptrdiff_t m, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const REAL *b, ptrdiff_t n, REAL *c, int add)
{
    ptrdiff_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        product_block(ROWS, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add);
    for (; i < m; i++)
        product_block(1, vecs, depth, a + i * a_row, a_row, a_step, b, n, c + i * n, add);
}

/* c (m, n) = a (m, depth) b (depth, n), or added to c; a as in `block`, the others in C order. */
static void product(ptrdiff_t m, ptrdiff_t depth, ptrdiff_t n, const REAL *a, ptrdiff_t a_row,
                    ptrdiff_t a_step, const REAL *b, REAL *c, int add)
{
    ptrdiff_t j = 0;
    for (; j + VECS * LANES <= n; j += VECS * LANES)
        columns(VECS, m, depth, a, a_row, a_step, b + j, n, c + j, add);
    if (n - j == 2 * LANES)
        columns(2, m, depth, a, a_row, a_step, b + j, n, c + j, add);
    else if (n - j == LANES)
        columns(1, m, depth, a, a_row, a_step, b + j, n, c + j, add);
}

INLINE void add_scaled(ptrdiff_t size, REAL scale, const REAL *restrict v, REAL *restrict sum)
{
    for (ptrdiff_t k = 0; k < size; k++)
        sum[k] += scale * v[k];
}

/* What a step needs besides its product. hidden: NULL stands for zeros. */
struct step {
    ptrdiff_t inputs, size;
    const REAL *x, *w_ih, *b_ih, *b_hh, *hidden;
    REAL *gates, *reset_input, *next;
};

/* LANES units of one sample; `recurrent` [gate][lane] is the hidden state's part. */
INLINE void gates_forward(ptrdiff_t size, const REAL *restrict input, const REAL *restrict recurrent,
                          const REAL *restrict hidden, REAL *restrict gates,
                          REAL *restrict reset_input, REAL *restrict next)
{
    for (int k = 0; k < LANES; k++) {
        REAL r = sigmoid(input[k] + recurrent[k]);
        REAL z = sigmoid(input[LANES + k] + recurrent[LANES + k]);
        REAL hn = input[3 * LANES + k] + recurrent[2 * LANES + k];
        REAL n = 2 * sigmoid(2 * (input[2 * LANES + k] + r * hn)) - 1;
        next[k] = n + z * (hidden[k] - n);
        gates[k] = r;
        gates[size + k] = z;
        gates[2 * size + k] = n;
        reset_input[k] = hn;
    }
}

/* LANES units of `rows` samples, from `recurrent` [row][gate][lane]. Not inlined, lest its constants
 * take the registers of the product before it. */
static __attribute__((noinline)) void units(int rows, const struct step *s, ptrdiff_t row,
                                            ptrdiff_t unit, const REAL *recurrent)
{
    ptrdiff_t size = s->size;
    const REAL *bi = s->b_ih + unit, *bh = s->b_hh + unit;
    REAL bias[4 * LANES], zeros[LANES] = {0};
    for (int k = 0; k < LANES; k++) {
        bias[k] = bi[k] + bh[k];
        bias[LANES + k] = bi[size + k] + bh[size + k];
        bias[2 * LANES + k] = bi[2 * size + k];
        bias[3 * LANES + k] = bh[2 * size + k];
    }
    for (int i = 0; i < rows; i++) {
        ptrdiff_t at = (row + i) * size + unit;
        REAL input[4 * LANES];
        memcpy(input, bias, sizeof input);
        for (ptrdiff_t d = 0; d < s->inputs; d++)
            for (int g = 0; g < 3; g++)
                add_scaled(LANES, s->x[(row + i) * s->inputs + d],
                           s->w_ih + (3 * d + g) * size + unit, input + g * LANES);
        gates_forward(size, input, recurrent + 3 * i * LANES, s->hidden ? s->hidden + at : zeros,
                      s->gates + at + 2 * (at - unit), s->reset_input + at, s->next + at);
    }
}

INLINE void step_block(int rows, const struct step *s, const REAL *w_hh, ptrdiff_t row,
                       ptrdiff_t unit)
{
    vec sums[ROWS][VECS];
    if (!s->hidden)
        memset(sums, 0, sizeof sums);
    else
        block(rows, 3, s->size, s->hidden + row * s->size, s->size, 1, w_hh + unit, 3 * s->size,
              s->size, sums);
    units(rows, s, row, unit, (REAL *)sums);
}

/* x: (clients, steps, batch, inputs). w_ih: (clients, inputs, 3 size). w_hh: (clients, size,
 * 3 size). b_ih, b_hh: (clients, 3 size). Written: gates (clients, steps, batch, 3 size), and
 * reset_input (hn) and hidden (clients, steps, batch, size). */
int CONCAT(gru_forward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                              ptrdiff_t inputs, ptrdiff_t size, const REAL *x, const REAL *w_ih,
                              const REAL *w_hh, const REAL *b_ih, const REAL *b_hh, REAL *gates,
                              REAL *reset_input, REAL *hidden)
{
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t t = 0; t < steps; t++) {
            ptrdiff_t at = (c * steps + t) * batch;
            struct step s = {
                inputs, size, x + at * inputs, w_ih + c * inputs * 3 * size, b_ih + c * 3 * size,
                b_hh + c * 3 * size, t ? hidden + (at - batch) * size : NULL,
                gates + 3 * at * size, reset_input + at * size, hidden + at * size,
            };
            const REAL *w = w_hh + c * 3 * size * size;
            for (ptrdiff_t unit = 0; unit < size; unit += LANES) {
                ptrdiff_t row = 0;
                for (; row + ROWS <= batch; row += ROWS)
                    step_block(ROWS, &s, w, row, unit);
                for (; row < batch; row++)
                    step_block(1, &s, w, row, unit);
            }
        }
    return 0;
}

/* Gradients of a sample's gates: d_gates (3 size) of the recurrent part of r, z and n, and d_new
 * (size) of the input's part of n; that of r and z is the same. d_hidden (size) is overwritten by
 * its direct part for the previous state. */
INLINE void gates_backward(ptrdiff_t size, const REAL *restrict gates,
                           const REAL *restrict reset_input, const REAL *restrict hidden,
                           REAL *restrict d_hidden, REAL *restrict d_gates, REAL *restrict d_new)
{
    for (ptrdiff_t k = 0; k < size; k++) {
        REAL r = gates[k], z = gates[size + k], n = gates[2 * size + k];
        REAL dn = d_hidden[k] * (1 - z) * (1 - n * n);
        d_gates[k] = dn * reset_input[k] * r * (1 - r);
        d_gates[size + k] = d_hidden[k] * (hidden[k] - n) * z * (1 - z);
        d_gates[2 * size + k] = dn * r;
        d_new[k] = dn;
        d_hidden[k] *= z;
    }
}

INLINE REAL dot(ptrdiff_t size, const REAL *restrict a, const REAL *restrict b)
{
    REAL sum = 0;
    for (ptrdiff_t k = 0; k < size; k++)
        sum += a[k] * b[k];
    return sum;
}

/* A sample's part of the gradients of biases, input weights and, if asked, its input. */
INLINE void input_backward(ptrdiff_t inputs, ptrdiff_t size, const REAL *x, const REAL *w_ih,
                           const REAL *d_gates, const REAL *d_new, REAL *d_x, REAL *d_w_ih,
                           REAL *d_b_ih, REAL *d_b_hh)
{
    add_scaled(3 * size, 1, d_gates, d_b_hh);
    add_scaled(size, 1, d_new, d_b_ih + 2 * size);
    for (ptrdiff_t d = 0; d < inputs; d++) {
        ptrdiff_t at = 3 * d * size;
        add_scaled(2 * size, x[d], d_gates, d_w_ih + at);
        add_scaled(size, x[d], d_new, d_w_ih + at + 2 * size);
        if (d_x)
            d_x[d] = dot(2 * size, d_gates, w_ih + at) + dot(size, d_new, w_ih + at + 2 * size);
    }
}

/* (m, n) to (n, m), in blocks of a cache line. */
static void transpose(ptrdiff_t m, ptrdiff_t n, const REAL *restrict a, REAL *restrict out)
{
    for (ptrdiff_t i = 0; i < m; i += LANES)
        for (ptrdiff_t j = 0; j < n; j++)
            for (ptrdiff_t k = i; k < i + LANES; k++)
                out[j * m + k] = a[k * n + j];
}

/* grad: (clients, batch, size), of the last hidden state; the other inputs as for `gru_forward`.
 * Written: the gradients of x (unless NULL) and of the weights. Returns 1 if out of memory. */
int CONCAT(gru_backward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                               ptrdiff_t inputs, ptrdiff_t size, const REAL *x, const REAL *grad,
                               const REAL *w_ih, const REAL *w_hh, const REAL *gates,
                               const REAL *reset_input, const REAL *hidden, REAL *d_x,
                               REAL *d_w_ih, REAL *d_w_hh, REAL *d_b_ih, REAL *d_b_hh)
{
    ptrdiff_t later = (steps - 1) * batch, weights = 3 * size * size;
    REAL *scratch = malloc(((batch + 3 * later + 5) * size + weights) * sizeof(REAL));
    if (!scratch)
        return 1;
    REAL *zeros = scratch, *d_new = zeros + size, *d_first = d_new + size;
    REAL *d_hidden = d_first + 3 * size, *d_gates = d_hidden + batch * size;
    REAL *w_hh_t = d_gates + 3 * later * size;
    memset(zeros, 0, size * sizeof(REAL));
    memset(d_w_ih, 0, clients * inputs * 3 * size * sizeof(REAL));
    memset(d_b_ih, 0, clients * 3 * size * sizeof(REAL));
    memset(d_b_hh, 0, clients * 3 * size * sizeof(REAL));
    for (ptrdiff_t c = 0; c < clients; c++) {
        const REAL *h = hidden + c * steps * batch * size;
        const REAL *w = w_ih + c * inputs * 3 * size;
        REAL *d_w = d_w_ih + c * inputs * 3 * size;
        REAL *d_bi = d_b_ih + c * 3 * size, *d_bh = d_b_hh + c * 3 * size;
        transpose(size, 3 * size, w_hh + c * weights, w_hh_t);
        memcpy(d_hidden, grad + c * batch * size, batch * size * sizeof(REAL));
        for (ptrdiff_t t = steps - 1; t >= 0; t--) {
            for (ptrdiff_t b = 0; b < batch; b++) {
                ptrdiff_t row = (c * steps + t) * batch + b;
                REAL *dg = t ? d_gates + 3 * ((t - 1) * batch + b) * size : d_first;
                gates_backward(size, gates + 3 * row * size, reset_input + row * size,
                               t ? hidden + (row - batch) * size : zeros, d_hidden + b * size, dg,
                               d_new);
                input_backward(inputs, size, x + row * inputs, w, dg, d_new,
                               d_x ? d_x + row * inputs : NULL, d_w, d_bi, d_bh);
            }
            if (t)
                product(batch, 3 * size, size, d_gates + 3 * (t - 1) * batch * size, 3 * size, 1,
                        w_hh_t, d_hidden, 1);
        }
        product(size, later, 3 * size, h, 1, size, d_gates, d_w_hh + c * weights, 0);
        memcpy(d_bi, d_bh, 2 * size * sizeof(REAL));
    }
    free(scratch);
    return 0;
}
