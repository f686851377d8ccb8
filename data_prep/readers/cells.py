"""Choose and name the cells of a table: ids, units of columns that are cells, totals, `--cells`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from typing import Any

import numpy as np
import polars as pl
import xarray as xr

from data_prep.base.errors import InputError, Words, close_to, counted, some
from data_prep.cube import services_of
from data_prep.readers.formats import without_suffix
from data_prep.readers.options import CELL, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.rows import TOTAL
from data_prep.readers.table import Table, is_text
from data_prep.readers.units import common_unit, factor, unit_of, with_unit, without_unit

log, units_log = StepLog("cells"), StepLog("units")


def apply(table: Table, options: TableOptions) -> Table:
    """Return a table with one column of the chosen cells, or with their columns, and all units."""
    if table.kind == "wide":
        table = _with_units(table, options)
        ids = whole_numbers(pl.Series(table.values, dtype=pl.String)).to_list()
        if options.cells is not None:
            kept = keep_cells(options.cells, ids, table.origin.name)
            table = table.with_(values=tuple(itertools.compress(table.values, kept)))
        ids = [*table.values]
    else:
        table = _with_written_ids(_with_short_ids(table), options)
        table = _without_slashes(_with_units(table, options))
        table = _with_one_cell(table)
        if options.cells is not None:
            cell = table[table.cells[0]]
            known = cell.drop_nulls().unique(maintain_order=True)
            wanted = pl.Series(keep_cells(options.cells, known.to_list(), table.origin.name))
            rows = cell.is_in(known.filter(wanted).implode()) | cell.is_null()
            table = table.take(np.flatnonzero(rows.to_numpy()))
        ids = table.codes(table.cells[0])[1]
    log.note(table.origin, f"{counted(len(ids), 'cell')}, such as {next(iter(ids), None)}")
    return table


def _with_short_ids(table: Table) -> Table:
    """Return cells by the name of the cell in their long ids, where it tells them apart.

    Huawei names objects so: `S1/Cell:eNodeB ID=5, Cell Name=S1_2`.
    """
    for name in table.cells:
        if name in table and table[name].dtype == pl.String:
            known = pl.Series(table.codes(name)[1], dtype=pl.String)
            ids = known.str.extract(r"(?i)\bcell ?name=([^,;]+)").str.strip_chars()
            if len(ids) and not ids.null_count() and ids.is_unique().all():
                log.info(table.origin, f"cells are named by 'Cell Name=' in column {name!r}")
                table = table.with_columns(table[name].replace_strict(known, ids, default=None))
    return table


def _with_written_ids(table: Table, options: TableOptions) -> Table:
    """Return ids that were read as numbers as text such as 007, or as the integers of a sheet."""
    if table.kind != "long" or options.cell != CELL or not table.origin.is_file:
        return table
    ids = [c for c in table.cells if not is_text(table[c])]
    if not ids or table.typed:
        return table
    for name in ids:
        texts = table.origin.as_written(name)
        if texts is not None:
            table = table.with_columns(texts.alias(name))
        elif not table[name].null_count():
            table = table.with_columns(table[name].cast(pl.Int64))
    return table.deciding(cell=",".join(table.cells))


def whole_numbers(ids: pl.Series) -> pl.Series:
    """Return text ids as integers if all of them look like integers, else unchanged."""
    if ids.dtype != pl.String or not ids.str.contains(r"^(0|[1-9][0-9]{0,17})$").all():
        return ids
    return ids.cast(pl.Int64)


def _with_one_cell(table: Table) -> Table:
    """Give a table one column of cells: of several, their ids joined; of services, the file.

    Ids that all look like integers are integers.
    """
    if table.kind == "services":
        name = without_suffix(table.origin.name)
        return table.with_columns(pl.Series(table.cells[0], [name] * len(table)))
    ids = []
    for name in table.cells:
        column = table[name]
        if column.dtype == pl.String:
            codes, known = table.codes(name)
            whole = whole_numbers(pl.Series(known, dtype=pl.String))
            if whole.dtype != pl.String:
                column = whole.gather(pl.Series(codes).replace(-1, None)).alias(name)
        ids.append(column)
    if len(ids) == 1:
        return table if ids[0].dtype == table[ids[0].name].dtype else table.with_columns(*ids)
    texts = [i.cast(pl.String).fill_null("nan") for i in ids]
    joined = pl.select(pl.concat_str(texts, separator="/").alias(",".join(table.cells)))
    table = table.without(table.cells).with_columns(joined.to_series())
    return table.with_(cells=(joined.columns[0],))


ALL_BUT = "not:"


def keep_cells(text: str, cells: Collection[Any] | np.ndarray, name: str) -> np.ndarray:
    """Return which cells to keep, `(cells,)` bool.

    The text holds ids and ranges of whole numbers, separated by commas; after `not:`, those to
    leave out.

    >>> keep_cells("not:1-2", [1, 2, 3], "a.csv")
    array([False, False,  True])
    """
    known = {str(cell): cell for cell in cells}
    chosen: set[Any] = set()
    for part in text.removeprefix(ALL_BUT).split(","):
        chosen |= _among(part.strip(), known, name)
    named = np.array([cell in chosen for cell in cells])
    kept = ~named if text.startswith(ALL_BUT) else named
    if not kept.any():
        raise InputError(f"{name}: ", Words("{cells} leaves no cell; leave out fewer", cells=text))
    return kept


def _among(part: str, known: dict[str, Any], name: str) -> set[Any]:
    if part in known:
        return {known[part]}
    span = re.fullmatch(r"(\d{1,18})\s*-\s*(\d{1,18})", part)
    if span:
        low, high = int(span[1]), int(span[2])
        found = {c for c in known.values() if isinstance(c, int | np.integer) and low <= c <= high}
        if (absent := high - low + 1 - len(found)) and found:
            log.info(name, f"of cells {part}, {len(found)} occur and {absent} do not")
        if found:
            return found
    raise InputError(
        f"{name}: no cell {part!r} among its {len(known)} cells, such as "
        f"{next(iter(known))!r}{close_to(part, known)}; ",
        Words("give {cells} as ids and ranges, such as 5,11-20"),
    )


def _with_units(table: Table, options: TableOptions) -> Table:
    """Return a table with the unit of each variable, in the given one if any.

    Columns of cells are of one variable, and in one unit.

    Raises:
        InputError: if values do not convert to it, or cells differ in what they convert to.
    """
    own = {c: table.units.get(c) or unit_of(c) for c in table.values}
    if table.kind == "wide" and (
        any(map(table.units.get, own)) or any(u == "%" or len(u) > 1 for u in own.values())
    ):  # Of cells that are 0, which it is in any unit, none is taken.
        own = {c: u for c, u in own.items() if u or (table[c].fill_null(0) != 0).any()}
    elif table.kind == "wide":  # One letter in brackets, as in Bridge (S), may be a direction.
        own = dict.fromkeys(own, "")
    to = own
    if options.units is None and table.kind == "wide":
        to = dict.fromkeys(own, _one_unit(own, table.origin))
    elif options.units is not None:
        to = dict.fromkeys(own, options.units)
        if not (table.kind == "wide" or all(own.values()) or len(own) < 2 or options.units == "1"):
            units_log.warning(
                table.origin,
                f"{options.units} is taken as the unit of {some(table.values)}; if only "
                "one has it, write units into the names of columns, such as 'speed (km/h)'",
            )
    table, known = _converted(table, own, to), [f"{c}: {unit}" for c, unit in to.items() if unit]
    if table.kind == "wide":
        unit = next(iter(to.values()), "") or "1"
        known = [f"{options.name}: {unit}"] if unit != "1" else []
        table = table.with_(units={options.name: unit})
    if known and options.units is None:
        other = Words("pass {units} to convert them")
        units_log.info(table.origin, f"units {some(known, 5)}; ", other)
    units = {*table.units.values()}
    return table.deciding(units=units.pop()) if len(units) == 1 else table


def _one_unit(own: dict[str, str], origin: Origin) -> str:
    """Return the one unit to which the units of columns of cells convert."""
    first: dict[str, str] = {}
    for cell, unit in own.items():
        first.setdefault(unit, cell)
    if len(first) < 2:
        return next(iter(first), "")
    shown = some((f"{unit or 'no unit'} ({cell!r})" for unit, cell in first.items()), 6)
    if (to := common_unit(sorted(first))) is None:
        known = [unit for unit in first if unit]
        more = Words(", or pass {units} if all are in it", units=known[0])
        raise InputError(
            f"{origin.name}: columns of cells are in {shown}; write one unit for all",
            more if len(known) == 1 else "",
        )
    units_log.warning(origin, f"columns of cells are in {shown}; converted to {to}")
    return to


def _converted(table: Table, own: dict[str, str], to: dict[str, str]) -> Table:
    """Return values in other units, also in the names of services; unknown units are given ones."""
    columns, names = [], {}
    for c, unit in own.items():
        try:
            size = factor(unit, to[c]) if unit else 1.0
        except InputError as e:
            raise InputError(
                f"{table.origin.name}: column {c!r} is in {unit}, which does not convert to "
                f"{to[c]}; ",
                Words("choose columns with {values}, or leave out {units}", units=to[c]),
            ) from e
        columns += [table[c] * size] if size != 1 else []
        if size != 1 and unit_of(c) and table.kind != "wide":
            names[c] = with_unit(c, to[c])
            units_log.warning(table.origin, f"{c!r} is converted to {names[c]!r}")
    units = {c: unit or "1" for c, unit in to.items()}
    return table.with_columns(*columns).with_(units=units).rename(names)


def _without_slashes(table: Table) -> Table:
    """Name services without a slash, which no variable may have: Flow instead of Flow (veh/h)."""
    new: dict[str, str] = {}
    for name in table.values:
        bare = without_unit(name)
        known = {*table.names, *new.values()}
        new[name] = (name if bare in known else bare).replace("/", " per ")
    new = {old: name for old, name in new.items() if "/" in old}
    if new:
        named = [f"{old!r} is named {name!r}" for old, name in new.items()]
        log.info(table.origin, f"{some(named, 5)}")
    return table.rename(new)


def without_totals(ds: xr.Dataset, origin: Origin) -> xr.Dataset:
    """Leave out cells that are named as totals, and are the sum or the mean of all others.

    Other cells that are the sum of some are kept, with a notice.
    """
    ids = ds["cell"].to_numpy().astype(str)
    kept = np.ones(len(ids), dtype=bool)
    for at in np.flatnonzero([re.match(TOTAL, cell) is not None for cell in ids]):
        others = ds.isel(cell=np.delete(np.arange(len(ids)), at))
        sums, means = others.sum("cell", skipna=False), others.mean("cell", skipna=False)
        if len(ids) > 2 and any(_is_made(ds.isel(cell=at), made) for made in (sums, means)):
            kept[at] = False
            log.warning(origin, f"cell {ids[at]} is left out: the total of the others")
    ds = ds if kept.all() else ds.isel(cell=kept)
    for cell, parts in _sums(ds).items():
        advice = Words("leave it out with {cells}", cells=f"{ALL_BUT}{cell}")
        log.warning(origin, f"cell {cell} is the sum of {some(parts, 4)}, and kept; ", advice)
    return ds


def _sums(ds: xr.Dataset) -> dict[str, list[str]]:
    """Return the cells that are the sum of others, and these; of 60 cells or fewer, by 500 steps.

    Only if some are sums, the singular values of all differ in size by 10,000 or more.
    """
    name, *_ = services_of(ds)
    rows = ds[name].to_numpy()[:500]
    rows = rows[np.isfinite(rows).all(axis=1)]
    n = rows.shape[1]
    if not 3 <= n <= 60 or len(rows) < 3 * n:
        return {}
    sizes = np.linalg.svd(rows, compute_uv=False)
    if sizes[-1] > 1e-4 * sizes[0]:
        return {}
    from scipy.optimize import nnls  # slow to import

    found = {}
    for at, cell in enumerate(ds["cell"].to_numpy().astype(str)):
        others = np.delete(np.arange(n), at)
        parts = others[nnls(rows[:, others], rows[:, at])[0] > 0.5]
        made = ds.isel(cell=parts).sum("cell", skipna=False)
        if len(parts) > 1 and rows[:, parts].any(axis=0).all() and _is_made(ds.isel(cell=at), made):
            found[cell] = ds["cell"].to_numpy()[parts].astype(str).tolist()
    return found


def _is_made(own: xr.Dataset, made: xr.Dataset) -> bool:
    """Return whether a cell is as it would be if made of others, but for rounding, if known."""
    for name in services_of(own):
        a, b = own[name].to_numpy(), made[name].to_numpy()
        known = np.isfinite(a) & np.isfinite(b)
        near = 0.01 * float(np.abs(b[known]).mean()) if known.any() else 0.0
        if not known.any() or not np.allclose(a[known], b[known], rtol=1e-3, atol=near):
            return False
    return True
