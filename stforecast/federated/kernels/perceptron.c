/* An epoch of a perceptron with two hidden layers for many clients: products, loss, gradients and
 * the steps of Adam. A client's weights, moments and activations stay in the second-level cache
 * from its first batch to its last.
 *
 *   y = known + f V + c    f = k s(h W2 + b2)    h = k s(x' W1 + b1)    s(a) = a sigmoid(a)
 *
 * Dropout's k is 0 or 1 / (1 - p). x' are the first `used` inputs of a sample x; the `readings`
 * first of these are relative to the one at `newest`, which stays as it is. Further inputs count as
 * 0, so their weights do not change. Gradients are those of the mean Huber loss of a batch over
 * observed targets. Arrays are in C order; `hidden` and `features` are multiples of LANES.
 */
#ifndef BFLOAT16 /* Sums have the precision of the inputs. */

struct perceptron {
    ptrdiff_t samples, batch, inputs, used, readings, newest, hidden, features, outputs;
};

enum { PARAMETERS = 6 };

/* Activations and gradients of a batch, and transposed weights; `wide` are outputs filled up with
 * zeros to a multiple of LANES. */
struct room {
    ptrdiff_t wide;
    REAL *x, *h, *slope_h, *f, *slope_f, *error, *d_f, *d_h, *w2_t, *v, *v_t, *d_v;
    REAL *gradient[PARAMETERS];
};

static void sizes_of(const struct perceptron *n, ptrdiff_t sizes[PARAMETERS])
{
    ptrdiff_t of[PARAMETERS] = {n->used * n->hidden, n->hidden, n->hidden * n->features,
                                n->features, n->features * n->outputs, n->outputs};
    memcpy(sizes, of, sizeof of);
}

static REAL *taken(REAL **next, ptrdiff_t size)
{
    REAL *part = *next;
    *next += (size + LINE - 1) / LINE * LINE;
    return part;
}

/* Divides memory into the parts of a room; returns how many values they take. */
static ptrdiff_t furnish(struct room *r, const struct perceptron *n, REAL *memory)
{
    REAL *next = memory;
    ptrdiff_t of_h = n->batch * n->hidden, of_f = n->batch * n->features, sizes[PARAMETERS];
    r->wide = (n->outputs + LANES - 1) / LANES * LANES;
    r->x = taken(&next, n->batch * n->used);
    r->h = taken(&next, of_h), r->slope_h = taken(&next, of_h), r->d_h = taken(&next, of_h);
    r->f = taken(&next, of_f), r->slope_f = taken(&next, of_f), r->d_f = taken(&next, of_f);
    r->error = taken(&next, n->batch * r->wide);
    r->w2_t = taken(&next, n->hidden * n->features);
    r->v = taken(&next, n->features * r->wide), r->v_t = taken(&next, n->features * r->wide);
    r->d_v = taken(&next, n->features * r->wide);
    sizes_of(n, sizes);
    for (int i = 0; i < PARAMETERS; i++)
        r->gradient[i] = taken(&next, sizes[i]);
    return next - memory;
}

typedef uint32_t draws __attribute__((vector_size(LANES * sizeof(uint32_t))));

/* A hash whose every bit depends on all bits (Wellons, Ellis: hash-prospector). */
INLINE draws mixed(draws x)
{
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15) * 0xd35a2d97u;
    return x ^ x >> 15;
}

/* Dropout of units of a sample: draw `at` + k decides on unit k. */
struct drops {
    uint32_t seed[2], below;
    REAL scale;
};

/* a + bias to k s(a + bias), and its derivative. */
static void bend(ptrdiff_t size, REAL *restrict a, REAL *restrict slope, const REAL *bias,
                 const struct drops *d, uint32_t at)
{
    draws unit;
    for (int j = 0; j < LANES; j++)
        unit[j] = at + j;
    for (ptrdiff_t k = 0; k < size; k += LANES, unit += LANES) {
        draws draw = mixed(mixed(unit ^ d->seed[0]) + d->seed[1]);
        lanes keep = __builtin_convertvector(draw >= d->below, lanes);
        vec x = load(a + k) + load(bias + k), s = sigmoid(x);
        vec kept = (vec)(keep & (lanes)all(d->scale));
        store(a + k, kept * x * s);
        store(slope + k, kept * (s + x * s * (1 - s)));
    }
}

INLINE void times(ptrdiff_t size, REAL *a, const REAL *b)
{
    for (ptrdiff_t k = 0; k < size; k += LANES)
        store(a + k, load(a + k) * load(b + k));
}

static void column_sums(ptrdiff_t rows, ptrdiff_t size, const REAL *a, ptrdiff_t stride, REAL *out)
{
    memset(out, 0, size * sizeof(REAL));
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t k = 0; k < size; k++)
            out[k] += a[i * stride + k];
}

/* Copies the inputs of a sample, relative to the newest reading. */
static void relative_inputs(const struct perceptron *n, const REAL *restrict x, REAL *restrict out)
{
    REAL base = x[n->newest];
    for (ptrdiff_t k = 0; k < n->readings; k++)
        out[k] = x[k] - base;
    memcpy(out + n->readings, x + n->readings, (n->used - n->readings) * sizeof(REAL));
    out[n->newest] = base;
}

/* The samples of one client, and the order of an epoch. */
struct samples {
    const REAL *x, *known, *y;
    const uint8_t *mask;
    const int64_t *order;
};

static void forward(const struct perceptron *n, ptrdiff_t start, ptrdiff_t rows,
                    const struct samples *of, REAL *const *p, const struct drops *d,
                    struct room *r)
{
    ptrdiff_t units = n->hidden + n->features;
    struct fetch none = {0};
    for (ptrdiff_t i = 0; i < rows; i++)
        relative_inputs(n, of->x + of->order[start + i] * n->inputs, r->x + i * n->used);
    product(rows, n->used, n->hidden, r->x, n->used, 1, p[0], r->h, 0, &none);
    for (ptrdiff_t i = 0; i < rows; i++)
        bend(n->hidden, r->h + i * n->hidden, r->slope_h + i * n->hidden, p[1], d,
             (uint32_t)((start + i) * units));
    product(rows, n->hidden, n->features, r->h, n->hidden, 1, p[2], r->f, 0, &none);
    for (ptrdiff_t i = 0; i < rows; i++)
        bend(n->features, r->f + i * n->features, r->slope_f + i * n->features, p[3], d,
             (uint32_t)((start + i) * units + n->hidden));
    memset(r->v, 0, n->features * r->wide * sizeof(REAL));
    for (ptrdiff_t i = 0; i < n->features; i++)
        memcpy(r->v + i * r->wide, p[4] + i * n->outputs, n->outputs * sizeof(REAL));
    product(rows, n->features, r->wide, r->f, n->features, 1, r->v, r->error, 0, &none);
}

/* Replaces outputs by the derivatives of the loss, which is returned. */
static REAL loss_of(const struct perceptron *n, ptrdiff_t start, ptrdiff_t rows,
                    const struct samples *of, const REAL *bias, REAL delta, struct room *r)
{
    REAL total = 0;
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < rows; i++) {
        ptrdiff_t at = of->order[start + i] * n->outputs;
        REAL *e = r->error + i * r->wide;
        for (ptrdiff_t j = 0; j < n->outputs; j++) {
            REAL apart = of->mask[at + j] ? of->known[at + j] + e[j] + bias[j] - of->y[at + j] : 0;
            REAL size = fabs(apart), within = size < delta ? size : delta;
            total += within * (size - within / 2);
            e[j] = apart < 0 ? -within : within;
            count += of->mask[at + j];
        }
    }
    REAL share = (REAL)1 / (count ? count : 1);
    for (ptrdiff_t k = 0; k < rows * r->wide; k += LANES)
        store(r->error + k, share * load(r->error + k));
    return share * total;
}

/* Writes the gradients of a batch. */
static void backward(const struct perceptron *n, ptrdiff_t rows, REAL *const *p, struct room *r)
{
    struct fetch none = {0};
    REAL *const *g = r->gradient;
    product(n->features, rows, r->wide, r->f, 1, n->features, r->error, r->d_v, 0, &none);
    for (ptrdiff_t i = 0; i < n->features; i++)
        memcpy(g[4] + i * n->outputs, r->d_v + i * r->wide, n->outputs * sizeof(REAL));
    column_sums(rows, n->outputs, r->error, r->wide, g[5]);
    transpose(n->features, r->wide, r->v, r->v_t);
    product(rows, r->wide, n->features, r->error, r->wide, 1, r->v_t, r->d_f, 0, &none);
    times(rows * n->features, r->d_f, r->slope_f);
    product(n->hidden, rows, n->features, r->h, 1, n->hidden, r->d_f, g[2], 0, &none);
    column_sums(rows, n->features, r->d_f, n->features, g[3]);
    transpose(n->hidden, n->features, p[2], r->w2_t);
    product(rows, n->features, n->hidden, r->d_f, n->features, 1, r->w2_t, r->d_h, 0, &none);
    times(rows * n->hidden, r->d_h, r->slope_h);
    product(n->used, rows, n->hidden, r->x, 1, n->used, r->d_h, g[0], 0, &none);
    column_sums(rows, n->hidden, r->d_h, n->hidden, g[1]);
}

/* Trains each of `clients` for an epoch of `batches`. Sizes: samples, batch, inputs, used, readings,
 * newest, hidden, features, outputs. params, first, second, counts: weights and biases, layer by
 * layer, and their moments as in `adam`. x: (clients, samples, inputs); order: (clients, samples);
 * known, y and mask: (clients, samples, outputs); seeds: (clients, 2); losses: (clients, batches). */
int CONCAT(perceptron_epoch, NAME)(ptrdiff_t clients, ptrdiff_t batches, const ptrdiff_t *sizes,
                                   const REAL *x, const int64_t *order, const REAL *known,
                                   const REAL *y, const uint8_t *mask, const uint32_t *seeds,
                                   REAL *const *params, REAL *const *first, REAL *const *second,
                                   REAL *const *counts, double dropout, double delta, double lr,
                                   double beta_1, double beta_2, double epsilon, REAL *losses)
{
    const struct perceptron n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                                 sizes[5], sizes[6], sizes[7], sizes[8]};
    struct room r;
    ptrdiff_t of_params[PARAMETERS], whole[PARAMETERS];
    REAL *memory = aligned_alloc(LINE, furnish(&r, &n, NULL) * sizeof(REAL));
    if (!memory)
        return 1;
    furnish(&r, &n, memory);
    sizes_of(&n, of_params);
    memcpy(whole, of_params, sizeof whole);
    whole[0] = n.inputs * n.hidden;
    for (ptrdiff_t c = 0; c < clients; c++) {
        const ptrdiff_t targets = c * n.samples * n.outputs;
        struct samples of = {x + c * n.samples * n.inputs, known + targets, y + targets,
                             mask + targets, order + c * n.samples};
        struct drops d = {{seeds[2 * c], seeds[2 * c + 1]}, dropout * 4294967296.0,
                          1 / (1 - dropout)};
        REAL *p[PARAMETERS];
        for (int i = 0; i < PARAMETERS; i++)
            p[i] = params[i] + c * whole[i];
        for (ptrdiff_t b = 0; b < batches; b++) {
            ptrdiff_t start = b * n.batch, left = n.samples - start;
            ptrdiff_t rows = left < n.batch ? left : n.batch;
            forward(&n, start, rows, &of, p, &d, &r);
            losses[c * batches + b] = loss_of(&n, start, rows, &of, p[5], delta, &r);
            backward(&n, rows, p, &r);
            for (int i = 0; i < PARAMETERS; i++) {
                counts[i][c] += 1;
                adam_step(of_params[i], adam_rates(counts[i][c], lr, beta_1, beta_2, epsilon, 0),
                          p[i], r.gradient[i], first[i] + c * whole[i], second[i] + c * whole[i]);
            }
        }
    }
    free(memory);
    return 0;
}

#endif
