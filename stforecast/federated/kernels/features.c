/* Operations on features of many clients: contrastive losses with their gradients, and sums by key.
 *
 * Client by client, everything stays in the first-level caches; a chain of operations on a whole
 * cohort takes several times as long. `size`, the width of a feature, is a multiple of LANES.
 * Features are (clients, batch, size), with a given stride between clients.
 */
#ifndef BFLOAT16 /* Only the products of models are rounded. */

/* Inverse norm of a vector of this square, limited as in torch's `normalize`. */
INLINE REAL inverse_norm(REAL square)
{
    REAL norm = sqrt(square), least = 1e-12;
    return 1 / (norm < least ? least : norm);
}

static void inverse_norms(ptrdiff_t batch, ptrdiff_t size, const REAL *v, REAL *norms)
{
    for (ptrdiff_t b = 0; b < batch; b++)
        norms[b] = inverse_norm(dot(size, v + b * size, v + b * size));
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

/* filters: (clients, batch, batch). Writes loss (clients), and for the backward pass its
 * derivatives by the similarities and by the filters, both (clients, batch, batch), and along:
 * (clients, 2, batch), the derivatives by the length of each feature and each other without
 * normalisation. */
int CONCAT(filtered_forward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size,
                                   double temperature, const REAL *features, ptrdiff_t stride,
                                   const REAL *others, ptrdiff_t others_stride,
                                   const REAL *filters, REAL *loss, REAL *d_similarities,
                                   REAL *d_filters, REAL *along)
{
    REAL *scratch = malloc(3 * batch * sizeof(REAL));
    if (!scratch)
        return 1;
    REAL *norms = scratch, *other_norms = norms + batch, *s = other_norms + batch;
    memset(along, 0, clients * 2 * batch * sizeof(REAL));
    for (ptrdiff_t c = 0; c < clients; c++) {
        const REAL *f = features + c * stride, *o = others + c * others_stride;
        REAL *along_f = along + 2 * c * batch, *along_o = along_f + batch;
        inverse_norms(batch, size, f, norms);
        inverse_norms(batch, size, o, other_norms);
        loss[c] = 0;
        for (ptrdiff_t b = 0; b < batch; b++) {
            REAL scale = norms[b] / (REAL)temperature;
            ptrdiff_t at = (c * batch + b) * batch;
            dots(batch, size, f + b * size, o, s);
            for (ptrdiff_t i = 0; i < batch; i++)
                s[i] *= scale * other_norms[i];
            loss[c] += filtered_row(batch, b, s, filters + at, d_similarities + at, d_filters + at);
            for (ptrdiff_t i = 0; i < batch; i++) {
                along_f[b] += d_similarities[at + i] * s[i];
                along_o[i] += d_similarities[at + i] * s[i];
            }
        }
    }
    free(scratch);
    return 0;
}

/* grad: (clients). Writes the gradients of features and others, (clients, batch, size). */
int CONCAT(filtered_backward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size,
                                    double temperature, const REAL *features, ptrdiff_t stride,
                                    const REAL *others, ptrdiff_t others_stride,
                                    const REAL *d_similarities, const REAL *along,
                                    const REAL *grad, REAL *d_features, REAL *d_others)
{
    REAL *scratch = malloc((2 + batch) * batch * sizeof(REAL));
    if (!scratch)
        return 1;
    REAL *norms = scratch, *other_norms = norms + batch, *slopes = other_norms + batch;
    for (ptrdiff_t c = 0; c < clients; c++) {
        const REAL *f = features + c * stride, *o = others + c * others_stride;
        const REAL *d_s = d_similarities + c * batch * batch;
        const REAL *along_f = along + 2 * c * batch, *along_o = along_f + batch;
        REAL *d_f = d_features + c * batch * size, *d_o = d_others + c * batch * size;
        inverse_norms(batch, size, f, norms);
        inverse_norms(batch, size, o, other_norms);
        for (ptrdiff_t b = 0; b < batch; b++)
            for (ptrdiff_t i = 0; i < batch; i++)
                slopes[b * batch + i] = d_s[b * batch + i] * norms[b] * other_norms[i] * grad[c] /
                                        (REAL)temperature;
        struct fetch nothing = {0};
        product(batch, batch, size, slopes, batch, 1, o, d_f, 0, &nothing);
        product(batch, batch, size, slopes, 1, batch, f, d_o, 0, &nothing);
        for (ptrdiff_t b = 0; b < batch; b++) {
            REAL along_this = along_f[b] * grad[c], along_other = along_o[b] * grad[c];
            add_scaled(size, -along_this * norms[b] * norms[b], f + b * size, d_f + b * size);
            add_scaled(size, -along_other * other_norms[b] * other_norms[b], o + b * size,
                       d_o + b * size);
        }
    }
    free(scratch);
    return 0;
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

/* attract, repel: (clients, n_keys, size); a sample uses row keys (clients, batch).
 * Writes loss (clients). Returns 2 if there is no such row. */
int CONCAT(attract_repel_forward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size,
                                        ptrdiff_t n_keys, double temperature,
                                        const REAL *features, ptrdiff_t stride,
                                        const REAL *attract, const REAL *repel,
                                        const int64_t *keys, REAL *loss)
{
    for (ptrdiff_t c = 0; c < clients; c++) {
        loss[c] = 0;
        for (ptrdiff_t b = 0; b < batch; b++) {
            ptrdiff_t key = keys[c * batch + b], at = (c * n_keys + key) * size;
            if (key < 0 || key >= n_keys)
                return 2;
            struct between s =
                compare(size, features + c * stride + b * size, attract + at, repel + at);
            REAL gap = s.gap / (REAL)temperature;
            if (s.known)
                loss[c] += ((gap > 0 ? gap : 0) + log1p(exp(-fabs(gap)))) / batch;
        }
    }
    return 0;
}

/* grad: (clients). Writes the gradient of the features, (clients, batch, size). */
int CONCAT(attract_repel_backward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size,
                                         ptrdiff_t n_keys, double temperature,
                                         const REAL *features, ptrdiff_t stride,
                                         const REAL *attract, const REAL *repel,
                                         const int64_t *keys, const REAL *grad, REAL *d_features)
{
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t b = 0; b < batch; b++) {
            ptrdiff_t at = (c * n_keys + keys[c * batch + b]) * size;
            const REAL *f = features + c * stride + b * size, *a = attract + at, *r = repel + at;
            struct between s = compare(size, f, a, r);
            REAL slope = s.known / (1 + exp(-s.gap / (REAL)temperature));
            slope *= s.norm * grad[c] / (REAL)temperature / batch;
            REAL by_a = slope * s.attract_norm, by_r = slope * s.repel_norm;
            REAL along = slope * s.gap * s.norm, *d_f = d_features + (c * batch + b) * size;
            for (ptrdiff_t k = 0; k < size; k += LANES)
                store(d_f + k, by_r * load(r + k) - by_a * load(a + k) - along * load(f + k));
        }
    return 0;
}

/* Adds each feature to sums (clients, n_keys, size) and counts (clients, n_keys) at its key
 * (clients, batch). Returns 2 if there is no such key. */
int CONCAT(add_by_key, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t size, ptrdiff_t n_keys,
                             const REAL *features, ptrdiff_t stride, const int64_t *keys,
                             REAL *sums, REAL *counts)
{
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t b = 0; b < batch; b++) {
            ptrdiff_t key = keys[c * batch + b], at = c * n_keys + key;
            if (key < 0 || key >= n_keys)
                return 2;
            add_scaled(size, 1, features + c * stride + b * size, sums + at * size);
            counts[at]++;
        }
    return 0;
}

#endif
