/* A linear layer with one output for each client: batched products of libraries are slow for it.
 *
 * Inputs are (clients, batch, parts * width) with strides of clients and samples; their parts are
 * summed. w: (clients, width), bias: (clients). `width` is a multiple of LANES.
 */
#ifndef BFLOAT16 /* Sums have the precision of the inputs. */

/* Writes y (clients, batch). */
int CONCAT(column_forward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t parts,
                                 ptrdiff_t width, const REAL *x, ptrdiff_t x_client,
                                 ptrdiff_t x_row, const REAL *w, const REAL *bias, REAL *y)
{
    for (ptrdiff_t c = 0; c < clients; c++)
        for (ptrdiff_t b = 0; b < batch; b++) {
            REAL total = bias[c];
            for (ptrdiff_t p = 0; p < parts; p++)
                total += dot(width, x + c * x_client + b * x_row + p * width, w + c * width);
            y[c * batch + b] = total;
        }
    return 0;
}

/* grad: (clients, batch). Writes the gradients of x, in C order, w and bias. */
int CONCAT(column_backward, NAME)(ptrdiff_t clients, ptrdiff_t batch, ptrdiff_t parts,
                                  ptrdiff_t width, const REAL *x, ptrdiff_t x_client,
                                  ptrdiff_t x_row, const REAL *w, const REAL *grad, REAL *d_x,
                                  REAL *d_w, REAL *d_bias)
{
    memset(d_w, 0, clients * width * sizeof(REAL));
    for (ptrdiff_t c = 0; c < clients; c++) {
        d_bias[c] = 0;
        for (ptrdiff_t b = 0; b < batch; b++) {
            REAL g = grad[c * batch + b];
            d_bias[c] += g;
            for (ptrdiff_t p = 0; p < parts; p++, d_x += width) {
                add_scaled(width, g, x + c * x_client + b * x_row + p * width, d_w + c * width);
                for (ptrdiff_t k = 0; k < width; k += LANES)
                    store(d_x + k, g * load(w + c * width + k));
            }
        }
    }
    return 0;
}

#endif
