/* Element-wise part of a GRU step for many clients at once, forward and backward.
 *
 * The matrix products stay with torch; what is here would take torch a dozen passes over memory
 * and takes one. Gates lie side by side in the order of torch's GRU: reset, update, new.
 *
 *   r = s(ir + hr)   z = s(iz + hz)   n = tanh(in + r hn)   h' = n + z (h - n)
 *
 * Arrays are (clients, batch, width) in C order within a client; from one client to the next they
 * advance by `steps` batches, so that a step of a (clients, steps, batch, width) array can be given
 * by a pointer to its first entry. `recurrent` and `grad` hold one step only.
 *
 * Compiled for float and for double: REAL, EXP and NAME are defined by gru.py.
 */
#include <math.h>
#include <stddef.h>

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)

static inline REAL sigmoid(REAL x) { return 1 / (1 + EXP(-x)); }

/* Writes the gates, `reset_input` (the recurrent part of n, hn) and the next hidden state.
 * hidden: NULL stands for zeros. */
void CONCAT(gru_forward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch, ptrdiff_t size,
                               const REAL *restrict input, const REAL *restrict recurrent,
                               const REAL *restrict hidden, REAL *restrict gates,
                               REAL *restrict reset_input, REAL *restrict next)
{
    for (ptrdiff_t row = 0; row < clients * batch; row++) {
        ptrdiff_t at = (row / batch * steps * batch + row % batch) * size;
        const REAL *i = input + 3 * at, *h = recurrent + 3 * size * row;
        const REAL *old = hidden ? hidden + at : NULL;
        REAL *g = gates + 3 * at, *hn = reset_input + at, *out = next + at;
        for (ptrdiff_t k = 0; k < 2 * size; k++)
            g[k] = sigmoid(i[k] + h[k]);
        for (ptrdiff_t k = 0; k < size; k++) {
            hn[k] = h[2 * size + k];
            g[2 * size + k] = 2 * sigmoid(2 * (i[2 * size + k] + g[k] * hn[k])) - 1;
        }
        for (ptrdiff_t k = 0; k < size; k++)
            out[k] = g[2 * size + k] + g[size + k] * ((old ? old[k] : 0) - g[2 * size + k]);
    }
}

/* grad: of the next hidden state, overwritten by its direct part for the previous one.
 * Writes the gradients of the input's and of the recurrent part's three gates. */
void CONCAT(gru_backward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch, ptrdiff_t size,
                                REAL *restrict grad, const REAL *restrict gates,
                                const REAL *restrict reset_input, const REAL *restrict hidden,
                                REAL *restrict d_input, REAL *restrict d_recurrent)
{
    for (ptrdiff_t row = 0; row < clients * batch; row++) {
        ptrdiff_t at = (row / batch * steps * batch + row % batch) * size;
        const REAL *g = gates + 3 * at, *hn = reset_input + at;
        const REAL *old = hidden ? hidden + at : NULL;
        REAL *d = grad + size * row, *di = d_input + 3 * at, *dh = d_recurrent + 3 * at;
        for (ptrdiff_t k = 0; k < size; k++) {
            REAL r = g[k], z = g[size + k], n = g[2 * size + k];
            REAL dn = d[k] * (1 - z) * (1 - n * n);
            REAL dr = dn * hn[k] * r * (1 - r);
            REAL dz = d[k] * ((old ? old[k] : 0) - n) * z * (1 - z);
            di[k] = dr;
            dh[k] = dr;
            di[size + k] = dz;
            dh[size + k] = dz;
            di[2 * size + k] = dn;
            dh[2 * size + k] = dn * r;
            d[k] *= z;
        }
    }
}
