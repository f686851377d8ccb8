"""Convert Telecom Italia's open data, Milan and Trentino, from raw days to a cube.

`release` is the entry point. It finds the days in a folder (`raw_folder`), sums each one with `cdr`
by the rules of `raw_day`, caches the sums (`day_store`), and writes the cells of a `selection` with
their locations from the `grid`.
"""
