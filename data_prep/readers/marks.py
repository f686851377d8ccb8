"""Short ids of cells where network managers write long names of objects."""

from __future__ import annotations

import polars as pl

from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table

log = StepLog("cells")

CELL_NAME = r"(?i)\bcell ?name=([^,;]+)"
"""Name of a cell in Huawei's names of objects, such as `S1/Cell:eNodeB ID=5, Cell Name=S1_2`."""


def apply(table: Table) -> Table:
    """Return a table whose cells have short names, if these tell them apart."""
    for name in table.cells:
        if name in table and table[name].dtype == pl.String:
            ids = table[name].str.extract(CELL_NAME).str.strip_chars()
            if not ids.null_count() and ids.n_unique() == table[name].n_unique():
                log.info(table.origin, f"cells are named by 'Cell Name=' in column {name!r}")
                table = table.with_columns(ids)
    return table
