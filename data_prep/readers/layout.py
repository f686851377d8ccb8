"""Recognise the layout of a table: what its columns are, or what to ask."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, some
from data_prep.readers.columns import (
    CELLS,
    ID_NAME,
    coerce,
    has_comma,
    named,
    number_cells,
    require_columns,
    without_calendar,
    written,
)
from data_prep.readers.events import COUNT, find_events
from data_prep.readers.flags import is_flag
from data_prep.readers.ids import cells_of, find_cells, is_named_id, is_whole, may_be_values
from data_prep.readers.options import CELL, TableOptions
from data_prep.readers.origin import FIRST, Origin, StepLog
from data_prep.readers.places import read_properties
from data_prep.readers.rows import TOTAL
from data_prep.readers.table import Table, as_numbers, is_text, n_known
from data_prep.readers.units import UNIT_AFTER, is_service

log = StepLog("layout")

KINDS = {
    "long": "long: a row for each time and cell",
    "wide": "wide: a column for each cell",
    "services": "services: a column for each quantity of one cell",
}
LEVELS = ("cells-above", "services-above")
SHOWN = 12


def unfold(table: Table, options: TableOptions) -> Table:
    """Return a long table of one whose columns have two names, of a cell and of a service."""
    kind, origin = "long" if table.kind == "long" else options.layout, table.origin
    levels = {c: table.levels[c] for c in table.names if c in table.levels and c != table.time}
    keys = [c for c in table.names if c not in levels]
    if kind in LEVELS and (not levels or options.cell in keys):
        why = f"column {options.cell!r} names the cells" if levels else "it has one row of names"
        remedy = Words("only two rows of names can be so; leave out {layout}", layout=kind)
        raise InputError(f"{origin.name} has no use for layout {kind!r}, as {why}: ", remedy)
    if not levels or kind in ("long", "wide", "services") or options.cell in keys:
        return table.with_(kind=kind)
    if kind == "auto" and named([k for k in keys if k != table.time], CELLS):
        return table.with_(kind="long")
    upper, lower = ({pair[i] for pair in levels.values()} for i in (0, 1))
    above, below = (sum(map(is_service, names)) / len(names) for names in (upper, lower))
    if kind == "auto" and (above > 0.5) == (below > 0.5):
        raise InputError(
            f"{origin.name}: two rows of names, {some(sorted(upper), 4)} above "
            f"{some(sorted(lower), 4)}; ",
            Words(
                "pass {layout:cells-above} if the upper ones are cells, {layout:services-above} if "
                "they are services, {layout:wide} if each column is a cell"
            ),
        )
    cells_above = kind == "cells-above" or (kind == "auto" and below > 0.5)
    at, other = (0, 1) if cells_above else (1, 0)
    parts = []
    for name in dict.fromkeys(pair[at] for pair in levels.values()):
        own = {c: pair[other] for c, pair in levels.items() if pair[at] == name}
        part = table.columns.select(*keys, *own).rename(own)
        parts.append(part.with_columns(pl.lit(name).alias(CELL)))
    log.info(
        origin,
        f"two rows of names: the {('upper' if cells_above else 'lower')} are cells "
        f"({some(sorted(upper if cells_above else lower), 5)}), the others services; ",
        Words("pass {layout:services-above}" if cells_above else "pass {layout:cells-above}"),
    )
    rows = np.tile(np.arange(len(table)), len(parts))
    columns = pl.concat(parts, how="diagonal_relaxed")
    return table.with_(columns=columns, kind="long", origin=origin.of_rows(rows))


def apply(table: Table, options: TableOptions) -> Table:
    """Recognise what the columns of a table are; ask for options if they leave it open."""
    table = unfold(table, options)
    known = table.kind == options.layout
    if options.of_events:
        table = find_events(table, options)
    if options.agg != COUNT:
        table = find_layout(table, options)
    _refuse_unread(table, options)
    # Columns of a wide table are cells, of which a later one may have others.
    values = None if table.kind == "wide" else options.values
    layout = table.kind if known else options.layout
    log.note(table.origin, f"{KINDS[table.kind]}{', as given' * (options.layout == table.kind)}")
    return table.deciding(layout=layout, values=values)


def find_layout(table: Table, options: TableOptions) -> Table:
    """Recognise a table's layout, of which the kind and the cells may be known, and log it."""
    kind, cell, values = table.kind, options.cell, options.chosen
    cells = table.cells or cells_of(table, cell)
    if kind == "auto":
        usual = named([c for c in table.names if c != table.time], CELLS)
        of_table = cell == CELL and len(table.names) > 2
        if found := [c for c in usual if of_table and may_be_values(table, c)]:
            raise InputError(
                f"{table.origin.name}: {some(map(repr, found), SHOWN)} may hold the ids of cells "
                "or be a cell itself, as its numbers change and no time occurs twice; ",
                Words("say {layout:wide} if each column is a cell, {layout:long} if it holds ids"),
            )
        if cell in table or cell != CELL:
            kind = "long"
        elif several := find_cells(table):
            kind, cells = "long", several
    elif kind == "long" and cells == (CELL,) and cell not in table:
        cells = find_cells(table) or cells
    keys = [table.time, *cells] if kind == "long" else [table.time]
    properties = read_properties(table, [*keys, *(values or ())]) if kind == "long" else []
    columns = value_columns(table.without(properties), keys, values)
    reason = ""
    if kind == "auto" and (total := total_among(table, columns)):
        kind, reason = "wide", f"{total} is the sum of the others"
    elif kind == "auto":
        fixed = [c for c in columns if n_known(table[c]) == 1 and is_whole(table[c])]
        ids = [c for c in columns if c in fixed or (is_named_id(c) and table.repeats(c))]
        kind, reason = _of_wide(columns, ids, table)
    if values is None:
        _show(kind, columns, reason, table.origin)
    cells = () if kind == "wide" else cells
    return table.with_(kind=kind, cells=cells, values=tuple(columns))


def _refuse_unread(table: Table, options: TableOptions) -> None:
    """Refuse options that a table of this kind does not read."""
    if FIRST.get(None) is not None:  # Earlier versions noted options that they did not read.
        return
    name, kind = table.origin.name, table.kind
    other_layout = f"{name}, whose layout is {kind}, has no use for"
    if options.cell != CELL and kind != "long":
        remedy = Words("only a long table reads it; leave out {cell}, or give another {layout}")
        raise InputError(f"{other_layout} cell {options.cell!r}: ", remedy)
    if options.name != "value" and kind != "wide":
        remedy = Words("only a wide table reads it; leave out {name}, or give another {layout}")
        raise InputError(f"{other_layout} name {options.name!r}: ", remedy)


def _of_wide(columns: list[str], ids: Sequence[str], table: Table) -> tuple[str, str]:
    """Return the kind of a table without cells and why, if its columns leave no doubt.

    Some columns may be named as `ids`, for the error.
    """
    n, origin = len(columns), table.origin
    files = Words(", {cell:file} if each file is a cell" if origin.stack else "")
    if n == 1 or number_cells(columns):
        return "wide", "names of cells" if n > 1 else ""
    share = sum(map(is_service, columns)) / n
    alike = len({re.sub(r"\d+", "#", column) for column in columns}) == 1
    numbers = (np.abs(as_numbers(table[c]).drop_nulls().to_numpy()) for c in columns)
    sizes = [float(np.median(n[n > 0])) for n in numbers if (n > 0).any()]
    apart = bool(sizes) and max(sizes) > 1e6 * min(sizes)  # Too far for cells of one quantity.
    if n >= 8 and (alike or share < 1 / 3) and not apart:
        why = "alike but for numbers" if alike else "none" if share == 0 else "few"
        return "wide", why if alike else f"many beside one of times, {why} named like a quantity"
    if n <= 12 and share > 2 / 3 and not alike:
        return "services", "named by units or as quantities"
    raise InputError(
        f"{origin.name}: {n} columns ({some(columns, SHOWN)}) and no column of cells"
        f"{', of sizes too different for cells of one quantity' if apart else ''}; ",
        Words(
            "say what they are: {layout:wide} if each is a cell, {layout:services} if they are "
            "services of one cell"
        ),
        files,
        Words(", or name the column of cells with {cell}", cell=next(iter(ids), None)),
    )


def value_columns(table: Table, keys: Sequence[str], values: Sequence[str] | None) -> list[str]:
    """Return the columns to read: `values`, else all but `keys` with at least one number."""
    origin = table.origin
    require_columns(table.names, (*keys, *(values or ())), origin)
    others = [c for c in table.names if c not in keys]
    has_numbers = {} if values else {c: _holds_numbers(table[c]) for c in others}
    columns = list(values) if values else [c for c in others if has_numbers[c]]
    for c in columns if values else others:
        _refuse_commas(table[c], origin)
    if values is None:  # The calendar, periods, places, days and ids are none.
        left = [c for c in without_calendar(columns) if c not in table.beside]
        left = [c for c in left if not (re.search(ID_NAME, c) or is_flag(c))]
        known = [c for c in columns if c not in left]
        if known and left:
            again = Words("pass {values} to choose columns")
            log.info(origin, f"not taken as values: {', '.join(known)}; ", again)
            columns = left
    if not columns:
        texts = table.columns.select(others).select(pl.col(pl.String))
        units = [c for c in texts.columns if texts[c].str.contains(UNIT_AFTER).any()]
        some_units = f"write a unit after all numbers of {units[0]!r} or none, " if units else ""
        raise InputError(
            f"{origin.name}: no column of numbers beside {', '.join(keys)}; {some_units}add one "
            "or, if each row is an event such as a trip, ",
            Words("count them with {resample:1h} {agg:count}"),
        )
    if values is None and (text := [c for c in others if not has_numbers[c]]):
        log.warning(origin, f"columns without numbers are left out: {text}")
    return columns


def _holds_numbers(column: pl.Series) -> bool:
    """Return whether a column holds numbers; of texts, at least half, as hashes may look like some.

    >>> [_holds_numbers(pl.Series(v)) for v in (["1", "2", "x"], ["7e12", "a3", "b4"], [None])]
    [True, False, True]
    """
    if column.dtype.is_numeric() or not is_text(column):
        return column.dtype.is_numeric()
    distinct = pd.Series(column.drop_nulls().unique().to_list(), dtype=object)
    return not len(distinct) or bool(np.isnan(coerce(distinct)).mean() <= 0.5)


def _refuse_commas(column: pl.Series, origin: Origin) -> None:
    """Refuse a column whose first text is a number with a decimal comma."""
    if not is_text(column) or column.null_count() == len(column):
        return
    row = column.is_not_null().arg_max() or 0
    first = column[row]
    if not isinstance(first, str) or not has_comma(first):
        return
    name = written(column.name)
    at = f"df[{name}]"
    advice = origin.either(
        Words("pass {decimal:comma}"), f"{at} = {at}.str.replace(',', '.').astype(float)"
    )
    raise InputError(
        f"{origin.at(row)}: column {name} holds {first!r}, which has a decimal "
        "comma, expected numbers with a decimal point in all rows; ",
        advice,
        ", and look at the rows that are not numbers",
    )


def total_among(table: Table, columns: Sequence[str]) -> str:
    """Return the column that is named as a total and is the sum of all others, if these are cells.

    >>> table = Table(pl.DataFrame({"A": [1, 2], "B": [3, 5], "Grand Total": [4, 7]}))
    >>> total_among(table, table.names)
    'Grand Total'
    """
    others = [c for c in columns if not re.match(TOTAL, c)]
    if len(others) < 2 or any(map(is_service, others)):
        return ""
    for name in (c for c in columns if c not in others):
        numbers = pl.DataFrame([as_numbers(table[c]) for c in columns])
        sums = numbers.drop(name).sum_horizontal().to_numpy()
        if np.allclose(numbers[name].to_numpy(), sums, atol=0.01) and sums.any():
            return name
    return ""


def _show(kind: str, columns: list[str], reason: str, origin: Origin) -> None:
    """Log how columns were understood, and why."""
    if len(columns) < 2:
        return
    what, other = ("cells", "services") if kind == "wide" else ("services", "wide")
    choose = Words("pass {values} to choose columns")
    if reason:
        choose = Words(
            "{}; pass {layout} for the other reading, {values} to choose", reason, layout=other
        )
    log.info(origin, f"using {len(columns)} columns as {what}: {some(columns, SHOWN)}; ", choose)
