/* A one-layer GRU for many clients, forward and backward, including the matrix products.
 *
 *   r = s(ir + hr)   z = s(iz + hz)   n = tanh(in + r hn)   h' = n + z (h - n)
 *
 * Clients are processed one after the other, so that a client's weights and activations stay in the
 * second-level cache from pass to pass; a library's batched product goes through all clients first.
 * Products prefetch what follows them. Gates are concatenated in the order of torch's GRU: reset,
 * update, new. Arrays are in C order with the given shapes; `size`, the hidden size, is a multiple
 * of LANES.
 */

/* Sizes, and the strides of samples and steps in x. */
struct gru {
    ptrdiff_t steps, batch, inputs, size, x_sample, x_step;
};

/* Values of a client that the forward pass saves for the backward pass: gates (steps, batch,
 * 3 size), hn (steps, batch, size), and hidden states but the last, (steps - 1, batch, size). */
struct kept {
    REAL *gates, *hn, *hidden;
};

INLINE ptrdiff_t kept_size(const struct gru *g)
{
    return (5 * g->steps - 1) * g->batch * g->size;
}

INLINE struct kept kept_of(const struct gru *g, const REAL *kept, ptrdiff_t client)
{
    REAL *gates = (REAL *)kept + client * kept_size(g);
    REAL *hn = gates + 3 * g->steps * g->batch * g->size;
    return (struct kept){gates, hn, hn + g->steps * g->batch * g->size};
}

/* Prefetch the saved values of a step. */
INLINE void fetch_step(struct fetch *fetch, const struct gru *g, const struct kept *k,
                       ptrdiff_t step)
{
    ptrdiff_t states = g->batch * g->size;
    also_fetch(fetch, k->gates + 3 * step * states, 3 * states);
    also_fetch(fetch, k->hn + step * states, states);
    if (step < g->steps - 1)
        also_fetch(fetch, k->hidden + step * states, states);
}

/* Arguments of a step besides the recurrent weights. hidden: NULL means zeros. left: factors of
 * hidden. next: the next states, with stride `next_row` between samples. */
struct step {
    ptrdiff_t inputs, size, x_sample;
    const REAL *x, *w_ih, *b_ih, *b_hh, *hidden;
    const factor *left;
    REAL *gates, *hn, *next;
    ptrdiff_t next_row;
};

/* Computes LANES units of `rows` samples from the hidden state's part of their gates. Not inlined,
 * since its constants would take registers of the product before it. Independent operations come
 * first, since a sample's gates depend on each other. */
static __attribute__((noinline)) void units(int rows, const struct step *s, ptrdiff_t row,
                                            ptrdiff_t unit, vec recurrent[ROWS][VECS])
{
    ptrdiff_t size = s->size;
    const REAL *b_ih = s->b_ih + unit, *b_hh = s->b_hh + unit;
    vec bias_r = load(b_ih) + load(b_hh), bias_z = load(b_ih + size) + load(b_hh + size);
    vec bias_in = load(b_ih + 2 * size), bias_hn = load(b_hh + 2 * size);
    vec r[ROWS], z[ROWS], in[ROWS];
    for (int i = 0; i < rows; i++) {
        vec to_r = recurrent[i][0] + bias_r, to_z = recurrent[i][1] + bias_z, to_n = bias_in;
        for (ptrdiff_t d = 0; d < s->inputs; d++) {
            REAL x = s->x[(row + i) * s->x_sample + d];
            const REAL *w = s->w_ih + 3 * d * size + unit;
            to_r += x * load(w);
            to_z += x * load(w + size);
            to_n += x * load(w + 2 * size);
        }
        r[i] = sigmoid(to_r);
        z[i] = sigmoid(to_z);
        in[i] = to_n;
    }
    for (int i = 0; i < rows; i++) {
        ptrdiff_t at = (row + i) * size + unit;
        vec hidden = s->hidden ? load(s->hidden + at) : all(0), hn = recurrent[i][2] + bias_hn;
        vec n = hyperbolic_tangent(in[i] + r[i] * hn);
        REAL *gates = s->gates + at + 2 * (at - unit);
        store(gates, r[i]);
        store(gates + size, z[i]);
        store(gates + 2 * size, n);
        store(s->hn + at, hn);
        store(s->next + (row + i) * s->next_row + unit, n + z[i] * (hidden - n));
    }
}

INLINE void step_block(int rows, const struct step *s, const factor *w_hh, ptrdiff_t row,
                       ptrdiff_t unit, struct fetch *fetch)
{
    vec sums[ROWS][VECS];
    ptrdiff_t depth = factors_of(s->size);
    if (!s->hidden)
        memset(sums, 0, sizeof sums);
    else
        block(rows, 3, depth, s->left + row * depth, depth, 1, w_hh + unit, 3 * s->size, s->size,
              sums, fetch);
    units(rows, s, row, unit, sums);
}

static void step_forward(ptrdiff_t batch, const struct step *s, const factor *w_hh,
                         struct fetch *fetch)
{
    for (ptrdiff_t unit = 0; unit < s->size; unit += LANES) {
        ptrdiff_t row = 0;
        for (; row + ROWS <= batch; row += ROWS)
            step_block(ROWS, s, w_hh, row, unit, fetch);
        for (; row < batch; row++)
            step_block(1, s, w_hh, row, unit, fetch);
    }
}

/* x: (clients, batch, steps, inputs), with strides of clients, samples and steps.
 * w_ih: (clients, inputs, 3 size). w_hh: (clients, size, 3 size). b_ih, b_hh: (clients, 3 size).
 * Writes the saved values, client by client, and the last hidden state, (clients, batch, size),
 * with stride `last_row` between samples. Returns 1 if out of memory. */
int CONCAT(gru_forward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                              ptrdiff_t inputs, ptrdiff_t size, const REAL *x, ptrdiff_t x_client,
                              ptrdiff_t x_sample, ptrdiff_t x_step, const REAL *w_ih,
                              const REAL *w_hh, const REAL *b_ih, const REAL *b_hh, REAL *kept,
                              REAL *last, ptrdiff_t last_row)
{
    const struct gru g = {steps, batch, inputs, size, x_sample, x_step};
    ptrdiff_t states = batch * size, weights = 3 * size * size, depth = factors_of(size);
    factor *of_w = factor_room(depth * (3 * size + batch));
    factor *of_hidden = of_w + depth * 3 * size;
    if (!of_w)
        return 1;
    for (ptrdiff_t c = 0; c < clients; c++) {
        struct kept k = kept_of(&g, kept, c);
        const factor *w = factors_down(size, 3 * size, w_hh + c * weights, of_w);
        for (ptrdiff_t t = 0; t < steps; t++) {
            int at_end = t == steps - 1;
            struct step s = {
                .inputs = inputs, .size = size, .x_sample = x_sample,
                .x = x + c * x_client + t * x_step, .w_ih = w_ih + c * inputs * 3 * size,
                .b_ih = b_ih + c * 3 * size, .b_hh = b_hh + c * 3 * size,
                .hidden = t ? k.hidden + (t - 1) * states : NULL,
                .left = t ? factors_along(batch, size, k.hidden + (t - 1) * states, of_hidden)
                          : NULL,
                .gates = k.gates + 3 * t * states, .hn = k.hn + t * states,
                .next = at_end ? last + c * batch * last_row : k.hidden + t * states,
                .next_row = at_end ? last_row : size,
            };
            struct fetch fetch = {0};
            if (!at_end)
                fetch_step(&fetch, &g, &k, t + 1);
            else if (c < clients - 1) {
                struct kept of_next = kept_of(&g, kept, c + 1);
                fetch_step(&fetch, &g, &of_next, 0);
                also_fetch(&fetch, w_hh + (c + 1) * weights, weights);
            }
            step_forward(batch, &s, w, &fetch);
        }
    }
    free(of_w);
    return 0;
}

/* Backward pass of one client. d_hidden: (batch, size). d_gates: gradients of the recurrent part of
 * r, z and n, (steps - 1, batch, 3 size), since the first step has no product. w_t: space for the
 * recurrent weights' transpose. The others are space for factors: of w_t, of d_gates in a step, and
 * of all d_gates and hidden states. */
struct back {
    const REAL *x, *w_ih, *w_hh;
    struct kept kept;
    REAL *d_x, *d_w_ih, *d_w_hh, *d_b_ih, *d_b_hh, *d_hidden, *d_gates, *w_t;
    factor *of_w_t, *of_step, *of_gates, *of_hidden;
};

/* Samples whose gradients are summed in registers before they are added to the total. */
enum { SAMPLES = 4 };

/* Computes the gradients of LANES units of some samples' gates, and from them those of biases,
 * input weights and, if requested, the input. Overwrites d_hidden by its direct part for the
 * previous state. */
INLINE void units_backward(int samples, const struct gru *g, const struct back *s, ptrdiff_t step,
                           ptrdiff_t sample, ptrdiff_t unit)
{
    ptrdiff_t size = g->size, row = step * g->batch + sample;
    const REAL *x = s->x + sample * g->x_sample + step * g->x_step;
    vec to_r[SAMPLES], to_z[SAMPLES], to_n[SAMPLES], d_r = {0}, d_z = {0}, d_hn = {0}, d_in = {0};
#pragma GCC unroll 4
    for (int i = 0; i < samples; i++) {
        ptrdiff_t at = (row + i) * size + unit, before = at - g->batch * size;
        const REAL *gates = s->kept.gates + at + 2 * (at - unit);
        REAL *d_hidden = s->d_hidden + (sample + i) * size + unit;
        for (int gate = 0; gate < 3; gate++)
            __builtin_prefetch(gates + (3 * SAMPLES + gate) * size);
        __builtin_prefetch(s->kept.hn + at + SAMPLES * size);
        vec r = load(gates), z = load(gates + size), n = load(gates + 2 * size);
        vec h = step ? load(s->kept.hidden + before) : all(0), d = load(d_hidden);
        to_n[i] = d * (1 - z) * (1 - n * n);
        to_r[i] = to_n[i] * load(s->kept.hn + at) * r * (1 - r);
        to_z[i] = d * (h - n) * z * (1 - z);
        d_r += to_r[i];
        d_z += to_z[i];
        d_hn += to_n[i] * r;
        d_in += to_n[i];
        if (step) {
            REAL *d_gates = s->d_gates + before + 2 * (before - unit);
            store(d_gates, to_r[i]);
            store(d_gates + size, to_z[i]);
            store(d_gates + 2 * size, to_n[i] * r);
            store(d_hidden, d * z);
        }
    }
    accumulate(s->d_b_hh + unit, d_r);
    accumulate(s->d_b_hh + size + unit, d_z);
    accumulate(s->d_b_hh + 2 * size + unit, d_hn);
    accumulate(s->d_b_ih + 2 * size + unit, d_in);
    for (ptrdiff_t d = 0; d < g->inputs; d++) {
        const REAL *w = s->w_ih + 3 * d * size + unit;
        vec d_w[3] = {{0}};
#pragma GCC unroll 4
        for (int i = 0; i < samples; i++) {
            REAL value = x[i * g->x_sample + d];
            d_w[0] += value * to_r[i];
            d_w[1] += value * to_z[i];
            d_w[2] += value * to_n[i];
            if (s->d_x)
                s->d_x[((sample + i) * g->steps + step) * g->inputs + d] +=
                    sum(to_r[i] * load(w) + to_z[i] * load(w + size) +
                        to_n[i] * load(w + 2 * size));
        }
        for (int gate = 0; gate < 3; gate++)
            accumulate(s->d_w_ih + (3 * d + gate) * size + unit, d_w[gate]);
    }
}

/* Runs a step of the backward pass without its product. */
static void step_backward(const struct gru *g, const struct back *s, ptrdiff_t step)
{
    ptrdiff_t sample = 0;
    for (; sample + SAMPLES <= g->batch; sample += SAMPLES)
        for (ptrdiff_t unit = 0; unit < g->size; unit += LANES)
            units_backward(SAMPLES, g, s, step, sample, unit);
    for (; sample < g->batch; sample++)
        for (ptrdiff_t unit = 0; unit < g->size; unit += LANES)
            units_backward(1, g, s, step, sample, unit);
}

/* d_hidden holds the gradient of the last state. next: memory that the last product prefetches. */
static void client_backward(const struct gru *g, const struct back *s, struct fetch *next)
{
    ptrdiff_t size = g->size, states = g->batch * size, later = (g->steps - 1) * g->batch;
    transpose(size, 3 * size, s->w_hh, s->w_t);
    const factor *w_t = factors_down(3 * size, size, s->w_t, s->of_w_t);
    for (ptrdiff_t t = g->steps - 1; t > 0; t--) {
        step_backward(g, s, t);
        struct fetch before = {0};
        fetch_step(&before, g, &s->kept, t - 1);
        if (t == 1)
            also_fetch(&before, s->d_w_hh, 3 * size * size);
        const REAL *d_gates = s->d_gates + 3 * (t - 1) * states;
        ptrdiff_t depth = factors_of(3 * size);
        const factor *left = factors_along(g->batch, 3 * size, d_gates, s->of_step);
        product(g->batch, depth, size, left, depth, 1, w_t, s->d_hidden, 1, &before);
    }
    step_backward(g, s, 0);
    const factor *hidden = factors_down(later, size, s->kept.hidden, s->of_hidden);
    const factor *d_gates = factors_down(later, 3 * size, s->d_gates, s->of_gates);
    product(size, factors_of(later), 3 * size, hidden, 1, size, d_gates, s->d_w_hh, 0, next);
    memcpy(s->d_b_ih, s->d_b_hh, 2 * size * sizeof(REAL));
}

/* grad: gradient of the last hidden state, (clients, batch, size), with strides `grad_client` and
 * `grad_row`; the other inputs are as for `gru_forward`. Writes the gradients of x (clients, batch,
 * steps, inputs), unless NULL, and of the weights. Returns 1 if out of memory. */
int CONCAT(gru_backward, NAME)(ptrdiff_t clients, ptrdiff_t steps, ptrdiff_t batch,
                               ptrdiff_t inputs, ptrdiff_t size, const REAL *x, ptrdiff_t x_client,
                               ptrdiff_t x_sample, ptrdiff_t x_step, const REAL *w_ih,
                               const REAL *w_hh, const REAL *kept, const REAL *grad,
                               ptrdiff_t grad_client, ptrdiff_t grad_row, REAL *d_x, REAL *d_w_ih,
                               REAL *d_w_hh, REAL *d_b_ih, REAL *d_b_hh)
{
    const struct gru g = {steps, batch, inputs, size, x_sample, x_step};
    ptrdiff_t states = batch * size, later = (steps - 1) * batch, weights = 3 * size * size;
    ptrdiff_t depth = factors_of(3 * size), summed = factors_of(later);
    REAL *values = malloc((states + 3 * later * size + weights) * sizeof(REAL));
    factor *factors = factor_room(depth * (size + batch) + 4 * summed * size);
    if (!values || !factors) {
        free(values);
        free(factors);
        return 1;
    }
    struct back s = {.d_hidden = values, .of_w_t = factors};
    s.d_gates = s.d_hidden + states;
    s.w_t = s.d_gates + 3 * later * size;
    s.of_step = s.of_w_t + depth * size;
    s.of_gates = s.of_step + depth * batch;
    s.of_hidden = s.of_gates + 3 * summed * size;
    memset(d_w_ih, 0, clients * inputs * 3 * size * sizeof(REAL));
    memset(d_b_ih, 0, clients * 3 * size * sizeof(REAL));
    memset(d_b_hh, 0, clients * 3 * size * sizeof(REAL));
    if (d_x)
        memset(d_x, 0, clients * batch * steps * inputs * sizeof(REAL));
    for (ptrdiff_t c = 0; c < clients; c++) {
        s.x = x + c * x_client;
        s.w_ih = w_ih + c * inputs * 3 * size;
        s.w_hh = w_hh + c * weights;
        s.kept = kept_of(&g, kept, c);
        s.d_x = d_x ? d_x + c * batch * steps * inputs : NULL;
        s.d_w_ih = d_w_ih + c * inputs * 3 * size;
        s.d_w_hh = d_w_hh + c * weights;
        s.d_b_ih = d_b_ih + c * 3 * size;
        s.d_b_hh = d_b_hh + c * 3 * size;
        for (ptrdiff_t b = 0; b < batch; b++)
            memcpy(s.d_hidden + b * size, grad + c * grad_client + b * grad_row,
                   size * sizeof(REAL));
        struct fetch next = {0};
        if (c < clients - 1) {
            struct kept of_next = kept_of(&g, kept, c + 1);
            also_fetch(&next, s.w_hh + weights, weights);
            fetch_step(&next, &g, &of_next, steps - 1);
            also_fetch(&next, of_next.hidden, later * size);
        }
        client_backward(&g, &s, &next);
    }
    free(values);
    free(factors);
    return 0;
}
