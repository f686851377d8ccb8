"""Telecom Italia's open data, Milan and Trentino: from raw days to a cube.

`release` leads: it finds the days in a folder (`raw_folder`), keeps the sums of each (`day_store`)
as `cdr` reads them by the rules of `raw_day`, and writes the cells of a `selection`, placed by the
`grid`.
"""
