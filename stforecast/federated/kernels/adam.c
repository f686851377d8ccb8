/* A step of Adam (Kingma and Ba, ICLR 2015, Algorithm 1). */

/* Factors of a step, which is the `count`-th. */
struct adam {
    REAL rate, scale, keep_1, new_1, keep_2, new_2, small, shrink;
};

INLINE struct adam adam_rates(double count, double lr, double beta_1, double beta_2, double epsilon,
                              double decay)
{
    return (struct adam){lr / (1 - pow(beta_1, count)), 1 / sqrt(1 - pow(beta_2, count)),
                         beta_1, 1 - beta_1, beta_2, 1 - beta_2, epsilon, decay};
}

static void adam_step(ptrdiff_t size, struct adam a, REAL *restrict p, const REAL *restrict g,
                      REAL *restrict m, REAL *restrict v)
{
    for (ptrdiff_t k = 0; k < size; k++) {
        REAL d = g[k] + a.shrink * p[k];
        m[k] = a.keep_1 * m[k] + a.new_1 * d;
        v[k] = a.keep_2 * v[k] + a.new_2 * d * d;
        p[k] -= a.rate * m[k] / (sqrt(v[k]) * a.scale + a.small);
    }
}

/* A step for all parameters of a cohort in one call.
 *
 * `n` parameters with their gradients, moments and `sizes`. counts: numbers of steps of each
 * parameter, `rows` of them, all equal, counted here. As in torch, the decay is added to the
 * gradient.
 */
int CONCAT(adam, NAME)(ptrdiff_t n, const ptrdiff_t *rows, const ptrdiff_t *sizes,
                       REAL *const *params, const REAL *const *grads, REAL *const *first,
                       REAL *const *second, REAL *const *counts, double lr, double beta_1,
                       double beta_2, double epsilon, double decay)
{
    for (ptrdiff_t t = 0; t < n; t++) {
        for (ptrdiff_t c = 0; c < rows[t]; c++)
            counts[t][c] += 1;
        adam_step(sizes[t], adam_rates(counts[t][0], lr, beta_1, beta_2, epsilon, decay),
                  params[t], grads[t], first[t], second[t]);
    }
    return 0;
}
