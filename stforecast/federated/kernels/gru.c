/* A one-layer GRU for many clients at once, forward and backward, matrix products included.
 *
 *   r = s(ir + hr)   z = s(iz + hz)   n = tanh(in + r hn)   h' = n + z (h - n)
 *
 * One client is done after the other, so that its weights and activations stay in the second-level
 * cache: a library's batched product leaves them there and the next pass finds them gone. Gates lie
 * side by side in the order of torch's GRU: reset, update, new. All arrays are in C order, of the
 * shapes that the functions name; `size`, the hidden size, is a multiple of LANES.
 */

/* What a step needs besides its product. hidden: NULL stands for zeros. next: the states that it
 * leads to, of which those of two samples lie `next_row` apart. */
struct step {
    ptrdiff_t inputs, size;
    const REAL *x, *w_ih, *b_ih, *b_hh, *hidden;
    REAL *gates, *reset_input, *next;
    ptrdiff_t next_row;
};

/* LANES units of `rows` samples, from the hidden state's part of their gates. Not inlined, lest its
 * constants take the registers of the product before it. */
static __attribute__((noinline)) void units(int rows, const struct step *s, ptrdiff_t row,
                                            ptrdiff_t unit, vec recurrent[ROWS][VECS])
{
    ptrdiff_t size = s->size;
    const REAL *b_ih = s->b_ih + unit, *b_hh = s->b_hh + unit;
    vec bias_r = load(b_ih) + load(b_hh), bias_z = load(b_ih + size) + load(b_hh + size);
    vec bias_in = load(b_ih + 2 * size), bias_hn = load(b_hh + 2 * size);
    for (int i = 0; i < rows; i++) {
        ptrdiff_t at = (row + i) * size + unit;
        vec to_r = recurrent[i][0] + bias_r, to_z = recurrent[i][1] + bias_z, to_n = bias_in;
        for (ptrdiff_t d = 0; d < s->inputs; d++) {
            REAL x = s->x[(row + i) * s->inputs + d];
            const REAL *w = s->w_ih + 3 * d * size + unit;
            to_r += x * load(w);
            to_z += x * load(w + size);
            to_n += x * load(w + 2 * size);
        }
        vec hidden = s->hidden ? load(s->hidden + at) : all(0), hn = recurrent[i][2] + bias_hn;
        vec r = sigmoid(to_r), z = sigmoid(to_z), n = hyperbolic_tangent(to_n + r * hn);
        REAL *gates = s->gates + at + 2 * (at - unit);
        store(gates, r);
        store(gates + size, z);
        store(gates + 2 * size, n);
        store(s->reset_input + at, hn);
        store(s->next + (row + i) * s->next_row + unit, n + z * (hidden - n));
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
    units(rows, s, row, unit, sums);
}

/* x: (clients, steps, batch, inputs). w_ih: (clients, inputs, 3 size). w_hh: (clients, size,
 * 3 size). b_ih, b_hh: (clients, 3 size). Written: gates (clients, steps, batch, 3 size), reset_input
 * (hn, clients, steps, batch, size), hidden (clients, steps - 1, batch, size), and apart from the
 * others the last hidden state, (clients, batch, size), with `last_row` from sample to sample. */
int CONCAT(gru_forward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                              ptrdiff_t inputs, ptrdiff_t size, const REAL *x, const REAL *w_ih,
                              const REAL *w_hh, const REAL *b_ih, const REAL *b_hh, REAL *gates,
                              REAL *reset_input, REAL *hidden, REAL *last, ptrdiff_t last_row)
{
    ptrdiff_t step = batch * size;
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t t = 0; t < steps; t++) {
            ptrdiff_t at = c * steps + t;
            REAL *next = hidden + (c * (steps - 1) + t) * step;
            struct step s = {
                inputs, size, x + at * batch * inputs, w_ih + c * inputs * 3 * size,
                b_ih + c * 3 * size, b_hh + c * 3 * size, t ? next - step : NULL,
                gates + 3 * at * step, reset_input + at * step, next, size,
            };
            if (t == steps - 1) {
                s.next = last + c * batch * last_row;
                s.next_row = last_row;
            }
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

/* One client on the way back. d_gates: of all steps but the first, as d_first: it has no product. */
struct back {
    ptrdiff_t batch, inputs, size;
    const REAL *x, *w_ih, *gates, *reset_input, *hidden;
    REAL *d_x, *d_w_ih, *d_b_ih, *d_b_hh, *d_hidden, *d_gates, *d_first, *d_new;
};

/* Gradients of a sample's gates: d_gates (3 size) of the recurrent part of r, z and n, and d_new
 * (size) of the input's part of n; that of r and z is the same. d_hidden (size) is overwritten by
 * its direct part for the previous state. hidden: NULL stands for zeros. */
INLINE void gates_backward(ptrdiff_t size, const REAL *gates, const REAL *reset_input,
                           const REAL *hidden, REAL *d_hidden, REAL *d_gates, REAL *d_new)
{
    for (ptrdiff_t k = 0; k < size; k += LANES) {
        vec r = load(gates + k), z = load(gates + size + k), n = load(gates + 2 * size + k);
        vec h = hidden ? load(hidden + k) : all(0), d = load(d_hidden + k);
        vec dn = d * (1 - z) * (1 - n * n);
        store(d_gates + k, dn * load(reset_input + k) * r * (1 - r));
        store(d_gates + size + k, d * (h - n) * z * (1 - z));
        store(d_gates + 2 * size + k, dn * r);
        store(d_new + k, dn);
        store(d_hidden + k, d * z);
    }
}

/* A sample's part of the gradients of biases, input weights and, if asked, its input. */
INLINE void input_backward(const struct back *s, ptrdiff_t row, const REAL *d_gates)
{
    ptrdiff_t size = s->size;
    const REAL *d_new = s->d_new;
    add_scaled(3 * size, 1, d_gates, s->d_b_hh);
    add_scaled(size, 1, d_new, s->d_b_ih + 2 * size);
    for (ptrdiff_t d = 0; d < s->inputs; d++) {
        REAL x = s->x[row * s->inputs + d], *d_w = s->d_w_ih + 3 * d * size;
        const REAL *w = s->w_ih + 3 * d * size;
        add_scaled(2 * size, x, d_gates, d_w);
        add_scaled(size, x, d_new, d_w + 2 * size);
        if (s->d_x)
            s->d_x[row * s->inputs + d] =
                dot(2 * size, d_gates, w) + dot(size, d_new, w + 2 * size);
    }
}

/* All that a step does besides its product. */
static void step_backward(const struct back *s, ptrdiff_t t)
{
    enum { AHEAD = 2 }; /* Samples between the one at work and the one that is fetched. */
    ptrdiff_t size = s->size;
    for (ptrdiff_t b = 0; b < s->batch; b++) {
        ptrdiff_t row = t * s->batch + b, before = row - s->batch;
        REAL *d_gates = t ? s->d_gates + 3 * before * size : s->d_first;
        prefetch(3 * size, s->gates + 3 * (row + AHEAD) * size);
        prefetch(size, s->reset_input + (row + AHEAD) * size);
        gates_backward(size, s->gates + 3 * row * size, s->reset_input + row * size,
                       t ? s->hidden + before * size : NULL, s->d_hidden + b * size, d_gates,
                       s->d_new);
        input_backward(s, row, d_gates);
    }
}

/* grad: of the last hidden state, (clients, batch, size), where those of two clients and of two
 * samples lie `grad_client` and `grad_row` apart; the other inputs as for `gru_forward`. Written:
 * the gradients of x (unless NULL) and of the weights. Returns 1 if out of memory. */
int CONCAT(gru_backward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                               ptrdiff_t inputs, ptrdiff_t size, const REAL *x, const REAL *grad,
                               ptrdiff_t grad_client, ptrdiff_t grad_row, const REAL *w_ih,
                               const REAL *w_hh, const REAL *gates, const REAL *reset_input,
                               const REAL *hidden, REAL *d_x, REAL *d_w_ih, REAL *d_w_hh,
                               REAL *d_b_ih, REAL *d_b_hh)
{
    ptrdiff_t later = (steps - 1) * batch, rows = steps * batch, weights = 3 * size * size;
    REAL *scratch = malloc(((batch + 3 * later + 4) * size + weights) * sizeof(REAL));
    if (!scratch)
        return 1;
    REAL *d_hidden = scratch, *d_gates = d_hidden + batch * size;
    REAL *d_first = d_gates + 3 * later * size, *d_new = d_first + 3 * size, *w_t = d_new + size;
    memset(d_w_ih, 0, clients * inputs * 3 * size * sizeof(REAL));
    memset(d_b_ih, 0, clients * 3 * size * sizeof(REAL));
    memset(d_b_hh, 0, clients * 3 * size * sizeof(REAL));
    for (ptrdiff_t c = 0; c < clients; c++) {
        struct back s = {
            batch, inputs, size, x + c * rows * inputs, w_ih + c * inputs * 3 * size,
            gates + 3 * c * rows * size, reset_input + c * rows * size, hidden + c * later * size,
            d_x ? d_x + c * rows * inputs : NULL, d_w_ih + c * inputs * 3 * size,
            d_b_ih + c * 3 * size, d_b_hh + c * 3 * size, d_hidden, d_gates, d_first, d_new,
        };
        transpose(size, 3 * size, w_hh + c * weights, w_t);
        for (ptrdiff_t b = 0; b < batch; b++)
            memcpy(d_hidden + b * size, grad + c * grad_client + b * grad_row,
                   size * sizeof(REAL));
        for (ptrdiff_t t = steps - 1; t > 0; t--) {
            step_backward(&s, t);
            product(batch, 3 * size, size, d_gates + 3 * (t - 1) * batch * size, 3 * size, 1, w_t,
                    d_hidden, 1);
        }
        step_backward(&s, 0);
        product(size, later, 3 * size, s.hidden, 1, size, d_gates, d_w_hh + c * weights, 0);
        memcpy(s.d_b_ih, s.d_b_hh, 2 * size * sizeof(REAL));
    }
    free(scratch);
    return 0;
}
