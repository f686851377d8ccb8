/* c (m, n) = a (m, depth) b (depth, n), or added to c, as the GRU multiplies; if `across`, a is
 * (depth, m). m is then a multiple of LANES, and otherwise `depth`. */
int CONCAT(multiply, NAME)(ptrdiff_t m, ptrdiff_t depth, ptrdiff_t n, int across, int add,
                           const REAL *a, const REAL *b, REAL *c)
{
    ptrdiff_t pairs = factors_of(depth);
    factor *of_a = factor_room(across ? room_across(depth, m) : pairs * rows_read(m));
    factor *of_b = factor_room(pairs * n);
    struct left left = {.step = 1, .row = pairs};
    struct fetch fetch = {0};
    also_fetch(&fetch, a, m * depth);
    also_fetch(&fetch, b, depth * n);
    if (across)
        left = factors_across(depth, m, a, of_a);
    else
        left.at = factors_along(m, depth, a, of_a);
    load_tiles(m);
    product(m, pairs, n, left.at, left.row, left.step, factors_down(depth, n, b, of_b), c, add,
            &fetch);
    release_tiles();
    free(of_a);
    free(of_b);
    return 0;
}
