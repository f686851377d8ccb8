"""Make one table of several: their rows below each other, or a service or cell of each."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce

import numpy as np
import polars as pl

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.readers.flags import is_flag
from data_prep.readers.formats import without_suffix
from data_prep.readers.options import FILE, HEAD, WHOLE, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table
from data_prep.readers.units import common_unit, factor, is_service, unit_of, without_unit

log = StepLog("join")


def apply(tables: Sequence[Table], name: str, options: TableOptions) -> Table:
    """Return one table of several: their rows below each other, or a service or cell of each."""
    tables = _with_files(tables, name, options)
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    for one in tables[1:]:
        if one.times != first.times:
            raise InputError(
                f"{name}: {one.name} has its times in {[*one.times]}, {first.name} in "
                f"{[*first.times]}; give tables of one form"
            )
    tables = _named_without_units(tables)
    tables = _stacked_by(tables, lambda one: one.name, name, options)
    first = tables[0]
    texts = [c for c in first.names if first[c].dtype == pl.String and not is_flag(c)]
    keys = list(dict.fromkeys([*first.times, *texts]))
    same = all(set(one.names) == set(first.names) for one in tables)
    if not same:
        in_all = [c for c in first.names if all(c in one for one in tables)]
        odd = {c: one.name for one in tables for c in one.names if c not in in_all}
        chosen = options.chosen or ()
        if chosen and {*chosen} <= {*in_all} and not any(c in options.keys for c in odd):
            shown = some([f"{column} of {file}" for column, file in odd.items()], 5)
            log.warning(name, f"not read, as only some tables have them: {shown}")
            kept = [one.without([c for c in odd if c in one]) for one in tables]
            return apply(kept, name, options)
        tables = _stacked_by(tables, lambda one: frozenset(one.names), name, options)
        return _joined(tables, [k for k in keys if k in in_all], name, *chosen)
    sets = [one.columns.select(keys).unique() for one in tables]
    n_different = len(_below(sets).unique())
    n_common = sum(map(len, sets)) - n_different
    if 2 * n_common <= min(map(len, sets)):
        return _stacked(tables, name)
    named = {column for one in tables for column in one.units}
    common = {c: common_unit([one.units.get(c, "") for one in tables]) for c in named}
    units = {c: unit for c, unit in common.items() if unit}
    rows = _below([_in_units(one, units) for one in tables]).unique()
    n_others = len(rows) - len(rows.select(keys).unique())
    if not n_others:
        return _stacked(tables, name)
    if 2 * n_others < n_common:  # As where an export corrects an earlier one.
        raise InputError(
            f"{name}: {first.name} and later tables have other values in {n_others} of {n_common} "
            "rows of the same times and cells; give the one that is right"
        )
    values = [c for c in first.names if not (c in keys or is_flag(c))]
    ids = [c for c in texts if c not in first.times]
    if len({one.name for one in tables}) < len(tables):
        raise InputError(
            f"{name}: {first.origin.name} and {tables[1].origin.name} have the same times and "
            "columns; give files of different days, or name their cells apart"
        )
    may_be_cells = not ids and n_different < 2 * min(map(len, sets))
    return _of_files(tables, values, ids, name, options, may_be_cells=may_be_cells)


def _below(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of tables with the same columns below each other."""
    return pl.concat([table.select(tables[0].columns) for table in tables], how="vertical_relaxed")


def _of_files(
    tables: Sequence[Table],
    values: Sequence[str],
    ids: Sequence[str],
    name: str,
    options: TableOptions,
    *,
    may_be_cells: bool,
) -> Table:
    """Return a table of files that have the same times, and are cells or services, or ask.

    They are services if they are named so and their columns, or rows, are cells; they are cells if
    only columns are named as services.
    """
    files = [without_suffix(one.name) for one in tables]
    of_services = all(map(is_service, files))
    columns = sum(map(is_service, values)) == len(values) or len(values) < 2
    cells = ",".join((*ids, FILE)) if "/" not in files[0] else f"{FILE}:^([^/]+)/"
    if ids and (len(values) > 1 or options.cell == cells):
        return _stacked(tables, name)
    as_cells = options.layout == "services" or (columns and not of_services and may_be_cells)
    as_services = of_services and (ids or not columns)
    if (options.layout == "auto" and as_cells) or options.layout == "services":
        log.info(name, f"each of {len(tables)} tables is a cell: {some(files, 8)}")
        return _stacked(_named_by_file(tables, files, "cell"), name).with_(kind="long")
    if options.layout == ("long" if ids else "wide") or (options.layout == "auto" and as_services):
        log.info(name, f"each of {len(tables)} tables is a service: {some(files, 8)}")
        long = []
        for one, file in zip(tables, files, strict=True):
            rows = one.columns
            if not ids:
                rows = rows.unpivot(values, index=one.times, variable_name="cell", value_name=file)
            long.append(one.with_(columns=rows).rename({values[0]: file} if ids else {}))
        return _joined(long, [*tables[0].times, *(ids or ["cell"])], name).with_(kind="long")
    if ids:
        form = Words("{layout:long} if each is a service")
    else:
        form = Words("{layout:wide} if each is a service and its columns are cells")
    raise InputError(
        f"{name}: its tables {some(files, 8)} have the same times and columns; ",
        Words("pass {cell} if each table is a cell, ", cell=cells),
        *(Words("{}, ", way) for way in named_above(tables[0])),
        form,
    )


def named_above(table: Table) -> list[Words]:
    """Return advice if a label above the names of columns may name the cell of each table."""
    place = (
        r"(?i)\b(site|station|location|street|road|cell|detector|sensor|counter|node|name|vds|zst|"
        r"standort|zählstelle|messstelle|straße|poste|lieu|estaci[oó]n|stazione)"
    )
    labels = [f"{HEAD}:{name}" for name in table.labels if re.search(place, name)]
    return [Words("{cell} if a line above the columns names it", cell=c) for c in labels[:1]]


def _named_by_file(tables: Sequence[Table], files: Sequence[str], column: str) -> list[Table]:
    """Return tables with a column that names the file of each row."""
    return [
        table.with_columns(pl.Series(column, [file] * len(table)))
        for table, file in zip(tables, files, strict=True)
    ]


def _with_files(tables: Sequence[Table], name: str, options: TableOptions) -> Sequence[Table]:
    """Name the rows of each table by its file, or a part of its name, if that is what a cell is."""
    kind, given = options.named_by
    if not kind or any(FILE in table for table in tables):
        return tables
    if of_file := kind == FILE:
        matches = [re.search(given, without_suffix(one.name)) for one in tables]
        found = [match[match.re.groups and 1] if match else None for match in matches]
    else:
        found = [one.labels.get(given) for one in tables]
    files = [file for file in found if file is not None]
    if len(files) < len(tables):
        lacking = tables[found.index(None)]
        has = f", but {some(lacking.labels, 6)}" if lacking.labels and not of_file else ""
        raise InputError(
            f"{name}: {lacking.name!r} has nothing like {given!r}{has}; ",
            Words("correct {cell}", cell=options.cell),
        )
    again = [file for file, n in Counter(files).items() if n > 1]
    if again and given == WHOLE:
        raise InputError(f"{name}: {again[0]!r} names several tables, expected one; rename a file")
    n_tables, n_cells = counted(len(files), "table"), counted(len(set(files)), "cell")
    log.info(name, f"{n_tables} of {n_cells}: {some(list(dict.fromkeys(files)), 8)}")
    return _named_by_file(tables, files, FILE)


def _stacked_by(
    tables: Sequence[Table], form: Callable[[Table], Hashable], name: str, options: TableOptions
) -> list[Table]:
    """Return one table for each form, such as the sheets of a name in daily workbooks."""
    forms: dict[Hashable, list[Table]] = {}
    for one in tables:
        forms.setdefault(form(one), []).append(one)
    if len(forms) == 1:
        return list(tables)
    whole = [apply(own, name, options) for own in forms.values()]
    return [one.with_(name=own[0].name) for one, own in zip(whole, forms.values(), strict=True)]


def _named_without_units(tables: Sequence[Table]) -> Sequence[Table]:
    """Return tables whose columns have no unit in their names where files differ only in units."""
    names = [{without_unit(c): c for c in one.names} for one in tables]
    if any(len(own) < len(one.names) for own, one in zip(names, tables, strict=True)):
        return tables
    changed = [
        bare
        for bare, name in names[0].items()
        if any(own.get(bare, name) != name for own in names) and all(bare in own for own in names)
    ]
    renamed = []
    for one, own in zip(tables, names, strict=True) if changed else ():
        units = {bare: unit_of(own[bare]) for bare in changed if unit_of(own[bare])}
        one = one.rename({own[bare]: bare for bare in changed})
        renamed.append(one.with_(units={**one.units, **units}))
    return renamed or tables


def _names_of(tables: Sequence[Table]) -> str:
    return some(list(dict.fromkeys(without_suffix(one.name) for one in tables)), 8)


def _stacked(tables: Sequence[Table], name: str) -> Table:
    """Return the rows of all tables below each other; equal rows of two files are kept once."""
    names, units = tables[0].names, _units_of(tables, name)
    parts = [_in_units(one, units).select(names) for one in tables]
    kinds = {c: {part[c].dtype for part in parts} for c in names}
    as_text = [c for c, found in kinds.items() if len(found) > 1 and pl.String in found]
    parts = [part.with_columns(pl.col(as_text).cast(pl.String)) for part in parts]
    whole = pl.concat(parts, how="vertical_relaxed")
    file = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    again = np.zeros(len(whole), dtype=bool)
    if whole.is_duplicated().any():
        of_first = whole.with_columns(file=pl.Series(file)).select(pl.col("file").min().over(names))
        again = of_first["file"].to_numpy() < file
        if again.any():
            log.warning(
                name,
                f"{counted(int(again.sum()), 'row')} of "
                f"{some([tables[i].name for i in np.unique(file[again])], 5)} stand in an "
                "earlier file, too, and are kept once",
            )
    log.info(name, f"{len(tables)} tables below each other: {_names_of(tables)}")
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    stack = tuple(zip(starts, (one.origin for one in tables), strict=False))
    origin = dataclasses.replace(
        tables[0].origin, name=name, first=0, rows=np.flatnonzero(~again), stack=stack
    )
    return tables[0].with_(columns=whole.filter(~again), origin=origin, name=name, units=units)


def _units_of(tables: Sequence[Table], name: str) -> dict[str, str]:
    """Return the unit of each column in all tables; refuse units that do not convert to one."""
    units = {}
    for column in {column: None for one in tables for column in one.units}:
        own = {one.name: one.units.get(column, "") for one in tables}
        common = common_unit(list(own.values()))
        if common is None:
            found = some([f"{u or 'no unit'} in {file}" for file, u in own.items()], 3)
            raise InputError(f"{name}: column {column!r} has {found}; write it in one unit")
        units[column] = common
        if len(set(own.values())) > 1:
            found = some(sorted(set(own.values())), 6)
            log.warning(name, f"column {column!r} is in {found}; converted to {common}")
    return units


def _in_units(one: Table, units: Mapping[str, str]) -> pl.DataFrame:
    """Return the columns of a table in given units, without the digits that rounding adds."""
    own = {c: unit for c, unit in one.units.items() if c in one and c in units}
    sizes = {c: factor(unit, units[c]) for c, unit in own.items()}
    return one.columns.with_columns(
        (pl.col(c) * size).round_sig_figs(15) for c, size in sizes.items() if size != 1
    )


def _joined(tables: Sequence[Table], keys: Sequence[str], name: str, *chosen: str) -> Table:
    """Return the columns of all tables side by side, by common keys."""
    others = [c for one in tables for c in one.names if c not in keys]
    if len(set(others)) < len(others) or not set(tables[0].times) <= set(keys):
        lacking = [f"no column {c!r} in {t.name}" for c in chosen for t in tables if c not in t]
        shown = [f"{one.name} has the columns {some(one.names, 8)}" for one in tables]
        raise InputError(
            f"{name}: {', '.join([*lacking[:1], *shown[:2]])}; give tables of one form, or with no "
            "column in common but times and cells, or choose ",
            Words("{values} that all have"),
        )
    for one in tables:
        if one.repeats(*keys):
            raise InputError(
                f"{name}: {one.name} has several rows for the same {' and '.join(keys)}; "
                "prepare it alone"
            )

    def join(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return left.join(
            right, on=list(keys), how="full", coalesce=True, maintain_order="left_right"
        )

    log.info(name, f"the columns of {len(tables)} tables beside each other: {_names_of(tables)}")
    columns = reduce(join, (one.columns for one in tables))
    if short := [one for one in tables if len(one) < len(columns)]:
        log.warning(
            name,
            f"of {len(columns)} rows of {' and '.join(keys)}, some tables have fewer: "
            f"{some([f'{len(one)} of {one.name}' for one in short], 5)}; their columns "
            "are empty in the others, as where a column has another name",
        )
    units = {c: u for one in tables for c, u in one.units.items()}
    origin = Origin(name, is_file=True)
    return Table(columns, origin, name, tables[0].times, units=units)
