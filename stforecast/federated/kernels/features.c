/* Operations on features of many clients: contrastive losses with their gradients, and sums by key.
 *
 * Client by client, everything stays in the first-level caches; a chain of operations on a whole
 * cohort takes several times as long. `size`, the width of a feature, is a multiple of LANES.
 */
#ifndef BFLOAT16 /* Only the products of models are rounded. */

/* Inverse norm of a vector of this square, limited as in torch's `normalize`. */
INLINE REAL inverse_norm(REAL square)
{
    REAL norm = sqrt(square), least = 1e-12;
    return 1 / (norm < least ? least : norm);
}

/* Writes the inverse norms of n rows, which lie `apart` values from each other, and the rows times
 * these. */
static void normalise(ptrdiff_t n, ptrdiff_t size, const REAL *rows, ptrdiff_t apart, REAL *norms,
                      REAL *units)
{
    for (ptrdiff_t b = 0; b < n; b++) {
        const REAL *row = rows + b * apart;
        norms[b] = inverse_norm(dot(size, row, row));
        for (ptrdiff_t k = 0; k < size; k += LANES)
            store(units + b * size + k, norms[b] * load(row + k));
    }
}

/* Loss of s_own among all s, with filters w: log(e^s_own + sum of w e^s where w > 0) - s_own,
 * divided by the size of the batch. Writes its derivatives by s and by w. */
static REAL filtered_row(ptrdiff_t batch, ptrdiff_t own, const REAL *s, const REAL *w, REAL *d_s,
                         REAL *d_w)
{
    REAL most = s[own];
    for (ptrdiff_t i = 0; i < batch; i++)
        most = w[i] > 0 && s[i] > most ? s[i] : most;
    REAL positive = exp(s[own] - most), total = positive;
    for (ptrdiff_t i = 0; i < batch; i++) {
        d_w[i] = w[i] > 0 ? exp(s[i] - most) : 0;
        d_s[i] = w[i] > 0 ? d_w[i] * w[i] : 0;
        total += d_s[i];
    }
    REAL share = 1 / (total * batch);
    for (ptrdiff_t i = 0; i < batch; i++) {
        d_w[i] *= share;
        d_s[i] *= share;
    }
    d_s[own] += positive * share - (REAL)1 / batch;
    return (log(total) + most - s[own]) / batch;
}

/* A feature with the prototypes that attract and repel it: inverse norms, the difference of the
 * cosine similarities (repel - attract), and whether both prototypes exist. */
struct between {
    REAL norm, attract_norm, repel_norm, gap;
    int known;
};

static struct between compare(ptrdiff_t size, const REAL *feature, const REAL *attract,
                              const REAL *repel)
{
    vec ff = {0}, aa = {0}, rr = {0}, fa = {0}, fr = {0};
    for (ptrdiff_t k = 0; k < size; k += LANES) {
        vec f = load(feature + k), a = load(attract + k), r = load(repel + k);
        ff += f * f;
        aa += a * a;
        rr += r * r;
        fa += f * a;
        fr += f * r;
    }
    REAL a_square = sum(aa), r_square = sum(rr);
    struct between s = {inverse_norm(sum(ff)), inverse_norm(a_square), inverse_norm(r_square)};
    s.gap = s.norm * (sum(fr) * s.repel_norm - sum(fa) * s.attract_norm);
    s.known = a_square != 0 && r_square != 0;
    return s;
}

/* A client has slots * cells features; that of a slot and a cell is row slot * cells + cell. With
 * filters, (slots, slots), as many others follow, and the features of each cell are contrasted with
 * its others. With prototypes, `attract` and `repel`, (n_keys, size), a feature is also contrasted
 * with those in the row of its key. Absent parts are NULL. */
struct contrast {
    ptrdiff_t slots, cells, size, n_keys;
    REAL temperature;
    const REAL *features, *filters, *attract, *repel;
    const int64_t *keys;
};

/* A client's part of the arguments of both passes. */
INLINE struct contrast contrast_of(ptrdiff_t client, ptrdiff_t slots, ptrdiff_t cells,
                                   ptrdiff_t size, ptrdiff_t n_keys, double temperature,
                                   const REAL *features, const REAL *filters,
                                   const REAL *attract, const REAL *repel, const int64_t *keys,
                                   ptrdiff_t key_stride)
{
    ptrdiff_t rows = slots * cells, of_client = client * n_keys * size;
    return (struct contrast){
        slots, cells, size, n_keys, temperature,
        .features = features + client * (filters ? 2 : 1) * rows * size,
        .filters = filters ? filters + client * slots * slots : NULL,
        .attract = attract ? attract + of_client : NULL,
        .repel = attract ? repel + of_client : NULL,
        .keys = attract ? keys + client * key_stride : NULL,
    };
}

/* Space that both passes need for the filtered loss of a cell. */
INLINE ptrdiff_t cell_room(ptrdiff_t slots, ptrdiff_t size)
{
    return slots * (3 + slots + 4 * size) * sizeof(REAL);
}

/* Mean loss over the cells. Writes its derivatives by the similarities, (cells, slots, slots), and
 * by the filters, (slots, slots). */
static REAL filtered_loss(const struct contrast *s, REAL *d_similarities, REAL *d_filters,
                          REAL *room)
{
    ptrdiff_t slots = s->slots, size = s->size, apart = s->cells * size;
    REAL *norms = room, *similar = norms + slots, *d_row = similar + slots;
    REAL *own = d_row + slots, *others = own + slots * size, loss = 0;
    memset(d_filters, 0, slots * slots * sizeof(REAL));
    for (ptrdiff_t cell = 0; cell < s->cells; cell++) {
        const REAL *features = s->features + cell * size;
        normalise(slots, size, features, apart, norms, own);
        normalise(slots, size, features + slots * apart, apart, norms, others);
        for (ptrdiff_t b = 0; b < slots; b++) {
            dots(slots, size, own + b * size, others, similar);
            for (ptrdiff_t i = 0; i < slots; i++)
                similar[i] /= s->temperature;
            loss += filtered_row(slots, b, similar, s->filters + b * slots,
                                 d_similarities + (cell * slots + b) * slots, d_row);
            for (ptrdiff_t i = 0; i < slots; i++)
                d_filters[b * slots + i] += d_row[i] / s->cells;
        }
    }
    return loss / s->cells;
}

/* Adds the gradients of rows, as in `normalise`, from those of their unit vectors. */
static void add_of_units(ptrdiff_t n, ptrdiff_t size, const REAL *norms, const REAL *units,
                         const REAL *d_units, ptrdiff_t apart, REAL *d_rows)
{
    for (ptrdiff_t at = 0, b = 0; b < n; b++, at += size) {
        add_scaled(size, norms[b], d_units + at, d_rows + b * apart);
        add_scaled(size, -norms[b] * dot(size, d_units + at, units + at), units + at,
                   d_rows + b * apart);
    }
}

/* Adds the gradient of `filtered_loss` times `grad` to that of the features and others. */
static void filtered_backward(const struct contrast *s, const REAL *d_similarities, REAL grad,
                              REAL *d_features, REAL *room)
{
    ptrdiff_t slots = s->slots, size = s->size, apart = s->cells * size;
    REAL *norms = room, *other_norms = norms + slots, *slopes = other_norms + slots;
    REAL *own = slopes + slots * slots, *others = own + slots * size;
    REAL *d_own = others + slots * size, *d_others = d_own + slots * size;
    struct fetch nothing = {0};
    for (ptrdiff_t cell = 0; cell < s->cells; cell++) {
        const REAL *features = s->features + cell * size;
        REAL *d_cell = d_features + cell * size;
        normalise(slots, size, features, apart, norms, own);
        normalise(slots, size, features + slots * apart, apart, other_norms, others);
        for (ptrdiff_t i = 0; i < slots * slots; i++)
            slopes[i] = d_similarities[cell * slots * slots + i] * grad / s->temperature / s->cells;
        product(slots, slots, size, slopes, slots, 1, others, d_own, 0, &nothing);
        product(slots, slots, size, slopes, 1, slots, own, d_others, 0, &nothing);
        add_of_units(slots, size, norms, own, d_own, apart, d_cell);
        add_of_units(slots, size, other_norms, others, d_others, apart, d_cell + slots * apart);
    }
}

/* Mean loss of the features between the prototypes of their keys; -1 if there is no such key. */
static REAL attract_repel_loss(const struct contrast *s)
{
    ptrdiff_t rows = s->slots * s->cells;
    REAL loss = 0;
    for (ptrdiff_t b = 0; b < rows; b++) {
        if (s->keys[b] < 0 || s->keys[b] >= s->n_keys)
            return -1;
        ptrdiff_t at = s->keys[b] * s->size;
        struct between found =
            compare(s->size, s->features + b * s->size, s->attract + at, s->repel + at);
        REAL gap = found.gap / s->temperature;
        if (found.known)
            loss += ((gap > 0 ? gap : 0) + log1p(exp(-fabs(gap)))) / rows;
    }
    return loss;
}

/* Adds the gradient of `attract_repel_loss` times `grad` to that of the features. */
static void attract_repel_backward(const struct contrast *s, REAL grad, REAL *d_features)
{
    ptrdiff_t rows = s->slots * s->cells, size = s->size;
    for (ptrdiff_t b = 0; b < rows; b++) {
        const REAL *f = s->features + b * size;
        const REAL *a = s->attract + s->keys[b] * size, *r = s->repel + s->keys[b] * size;
        struct between found = compare(size, f, a, r);
        REAL slope = found.known / (1 + exp(-found.gap / s->temperature));
        slope *= found.norm * grad / s->temperature / rows;
        REAL by_a = slope * found.attract_norm, by_r = slope * found.repel_norm;
        REAL along = slope * found.gap * found.norm;
        for (ptrdiff_t k = 0; k < size; k += LANES)
            accumulate(d_features + b * size + k,
                       by_r * load(r + k) - by_a * load(a + k) - along * load(f + k));
    }
}

/* features: (clients, slots * cells, size), or with filters (clients, 2, slots * cells, size).
 * Writes loss (clients), and for the backward pass the derivatives of the filtered loss by the
 * similarities, (clients, cells, slots, slots), and by the filters, (clients, slots, slots).
 * Returns 1 if out of memory, 2 if there is no such key. */
int CONCAT(contrast_forward, NAME)(ptrdiff_t clients, ptrdiff_t slots, ptrdiff_t cells,
                                   ptrdiff_t size, ptrdiff_t n_keys, double temperature,
                                   double weight, const REAL *features, const REAL *filters,
                                   const REAL *attract, const REAL *repel, const int64_t *keys,
                                   ptrdiff_t key_stride, REAL *loss, REAL *d_similarities, REAL *d_filters)
{
    REAL *room = malloc(cell_room(slots, size));
    int code = room ? 0 : 1;
    for (ptrdiff_t c = 0; c < clients && !code; c++) {
        struct contrast s = contrast_of(c, slots, cells, size, n_keys, temperature, features,
                                        filters, attract, repel, keys, key_stride);
        loss[c] = 0;
        if (filters)
            loss[c] += filtered_loss(&s, d_similarities + c * cells * slots * slots,
                                     d_filters + c * slots * slots, room);
        if (attract) {
            REAL found = attract_repel_loss(&s);
            loss[c] += weight * found;
            code = found < 0 ? 2 : 0;
        }
    }
    free(room);
    return code;
}

/* grad: (clients), of the loss. further: other gradients of the features, (clients, slots * cells,
 * size). Writes the whole gradients of the features and others, and those of the filters. */
int CONCAT(contrast_backward, NAME)(ptrdiff_t clients, ptrdiff_t slots, ptrdiff_t cells,
                                    ptrdiff_t size, ptrdiff_t n_keys, double temperature,
                                    double weight, const REAL *features, const REAL *filters,
                                    const REAL *attract, const REAL *repel, const int64_t *keys,
                                    ptrdiff_t key_stride, const REAL *d_similarities,
                                    const REAL *d_filters, const REAL *grad, const REAL *further,
                                    REAL *to_features, REAL *to_filters)
{
    ptrdiff_t values = slots * cells * size, both = (filters ? 2 : 1) * values;
    REAL *room = malloc(cell_room(slots, size));
    if (!room)
        return 1;
    for (ptrdiff_t c = 0; c < clients; c++) {
        struct contrast s = contrast_of(c, slots, cells, size, n_keys, temperature, features,
                                        filters, attract, repel, keys, key_stride);
        REAL *to_client = to_features + c * both;
        memcpy(to_client, further + c * values, values * sizeof(REAL));
        memset(to_client + values, 0, (both - values) * sizeof(REAL));
        if (filters)
            filtered_backward(&s, d_similarities + c * cells * slots * slots, grad[c], to_client,
                              room);
        if (attract)
            attract_repel_backward(&s, weight * grad[c], to_client);
        for (ptrdiff_t i = c * slots * slots; filters && i < (c + 1) * slots * slots; i++)
            to_filters[i] = grad[c] * d_filters[i];
    }
    free(room);
    return 0;
}

/* Adds each feature of (clients, batch, size) to sums (clients, n_keys, size) and counts (clients,
 * n_keys) at its key (clients, batch). Returns 2 if there is no such key. */
int CONCAT(add_by_key, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size, ptrdiff_t n_keys,
                             const REAL *features, ptrdiff_t stride, const int64_t *keys,
                             ptrdiff_t key_stride, REAL *sums, REAL *counts)
{
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t b = 0; b < batch; b++) {
            ptrdiff_t key = keys[c * key_stride + b], at = c * n_keys + key;
            if (key < 0 || key >= n_keys)
                return 2;
            add_scaled(size, 1, features + c * stride + b * size, sums + at * size);
            counts[at]++;
        }
    return 0;
}

#endif
