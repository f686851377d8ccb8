"""Marks that network managers and counters write: flags of doubtful values, and long ids.

A value that a flag marks as wrong is missing. `X-status` is the flag of column `X`; any other, such
as `Reliability`, is that of all values of its row.
"""

from __future__ import annotations

import re

import polars as pl

from data_prep.base.errors import counted
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table

log = StepLog("layout")

FLAG = r"(?i)(?:(.+)[ _.-])?(reliability|status|quality|flag|valid|validity|suspect|error|invalid)"
WRONG = ("unreliable", "suspect", "invalid", "error", "bad", "fault", "faulty", "failed", "不可信")
"""Words of flags, in lower case."""

TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")

CELL_NAME = r"(?i)\bcell ?name=([^,;]+)"
"""Name of a cell in Huawei's names of objects, such as `S1/Cell:eNodeB ID=5, Cell Name=S1_2`."""


def apply(table: Table) -> Table:
    """Return a table without the values that flags mark as wrong, and with short names of cells."""
    for name in table.names:
        found = re.fullmatch(FLAG, name)
        if found and name not in (*table.times, *table.cells, *table.values):
            table = _without_wrong(table, name, *found.groups())
    for name in table.cells:
        if name in table and table[name].dtype == pl.String:
            ids = table[name].str.extract(CELL_NAME).str.strip_chars()
            if not ids.null_count() and ids.n_unique() == table[name].n_unique():
                log.info(table.origin, f"cells are named by 'Cell Name=' in column {name!r}")
                table = table.with_columns(ids)
    return table


def _without_wrong(table: Table, name: str, own: str | None, kind: str) -> Table:
    """Return a table without the values that a flag of some kind marks as wrong."""
    words = {"valid": FALSE, "validity": FALSE}.get(kind.lower(), ())
    words = TRUE if kind.lower() in ("suspect", "error", "invalid") else words
    texts = table[name].cast(pl.String, strict=False).str.strip_chars().str.to_lowercase()
    wrong = texts.is_in([*WRONG, *words])
    columns = [own] if own in table.values else table.values
    spoilt = [table[c].is_not_null() & wrong for c in columns]
    if n := sum(int(each.sum()) for each in spoilt):
        log.warning(table.origin, f"{counted(n, 'value')} missing, as {name!r} marks them as wrong")
    none = [table[c].set(at, None) for c, at in zip(columns, spoilt, strict=True)] if n else []
    return table.with_columns(*none)
