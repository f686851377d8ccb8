"""Read an export: one file, several in a folder, zip or pattern, or the sheets of a workbook.

The tables of several files become one: their rows below each other, or a service or cell of each.
"""

from __future__ import annotations

import dataclasses
import glob
import re
import zipfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, counted, no_file, some
from data_prep.base.limits import check_expansion, read_expanded
from data_prep.readers.columns import (
    SUFFIXES,
    TEXTS,
    is_table_in_folder,
    names_table,
)
from data_prep.readers.delimited import may_have_times
from data_prep.readers.files import read_file, sheets_of
from data_prep.readers.options import Decimal, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table, from_pandas, without_nan
from data_prep.readers.time_columns import drop_rows, find_times, times_down
from data_prep.readers.time_parts import fill_labels, join_times, read_serials
from data_prep.readers.units import common_unit, is_service, scale_of, unit_of, without_unit
from data_prep.readers.written_numbers import (
    decide_decimal,
    spread_quantities,
    to_numbers,
    use_unit_column,
)

log = StepLog("open")

MOST_FILES = 10_000
"""Most files of an export, each of which takes some milliseconds."""


@dataclass(frozen=True)
class Part:
    """A file, a member of a zip with its content, or a sheet of a workbook."""

    name: str
    path: Path
    content: bytes | None = None
    sheet: str | None = None


def is_pattern(path: Path) -> bool:
    """Return whether a path is no file but a pattern such as `exports/*.csv`."""
    return glob.has_magic(str(path)) and not path.exists()


def files_of(path: Path) -> list[Path]:
    """Return the tables of a folder or of a pattern, or the one file."""
    if not path.is_dir() and not is_pattern(path):
        return [path]
    top = Path(path.anchor or ".")
    found = path.iterdir() if path.is_dir() else top.glob(str(path.relative_to(path.anchor)))
    shown = sorted(p for p in found if p.is_file() and p.name[:1] not in ".~")
    named = is_table_in_folder if path.is_dir() else names_table
    files = [p for p in shown if named(p.name)]
    if not files:
        raise no_file(path, "table", f"give one of {', '.join(SUFFIXES)}, or a folder of them")
    _check_number(path, files)
    listed = set(files)
    _say_left_out(path, [p.name for p in shown if p not in listed])
    return files


def _check_number(path: Path, names: Sequence[object]) -> None:
    if (n := len(names)) > MOST_FILES:
        raise InputError(
            f"{path}: holds {n:,} tables, expected at most {MOST_FILES:,}; join those of a month, "
            "say, into one file"
        )


def _say_left_out(path: Path, names: Sequence[str]) -> None:
    if names:
        log.info(path.name, "left out, as they are no tables: %s", some(names, 5))


def parts_of(path: Path, sheet: str | None) -> list[Part]:
    """Return the files or sheets of an export; the path may be a folder, a zip or a pattern."""
    if (files := files_of(path)) != [path]:
        return [part for file in files for part in parts_of(file, sheet)]
    if path.suffix.lower() == ".zip" and path.is_file():
        return list(_members(path))
    if sheet is None and len(names := sheets_of(path)) > 1:
        return [Part(name, path, sheet=name) for name in names]
    return [Part(path.name, path, sheet=sheet)]


def _members(path: Path) -> Iterator[Part]:
    """Yield the tables of a zip, unpacked."""
    try:
        with zipfile.ZipFile(path) as packed:
            shown = [n for n in packed.namelist() if not re.search(r"(^|/)[.~]|^__MACOSX/|/$", n)]
            names = sorted(n for n in shown if n.lower().endswith(TEXTS))
            if not names:
                raise InputError(
                    f"{path}: holds {some(packed.namelist(), 5) or 'nothing'}, expected .csv, .tsv "
                    "or .txt files; unpack it"
                )
            _check_number(path, names)
            unpacked = sum(packed.getinfo(name).file_size for name in names)
            check_expansion(unpacked, path, f"{path}: unpacked, it")
            _say_left_out(path, sorted(set(shown) - set(names)))
            for name in names:
                with packed.open(name) as member:
                    content = read_expanded(cast(IO[bytes], member), path)
                yield Part(Path(name).name, path, content)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
        raise InputError(f"{path}: cannot be read as a zip ({e}); unpack it or get it again") from e


def read_export(path: Path | pd.DataFrame, options: TableOptions) -> Table:
    """Read an export as one table, with one column of times if it has any.

    Args:
        path: a file, a folder, a zip, a pattern such as `exports/*.csv`, or a frame.
        options: the columns of times and cells; how files are written; and what the columns of
            several files with the same times are: `"wide"`, cells, or `"services"`.
    """
    keys = options.keys
    if isinstance(path, pd.DataFrame):
        tables = [_read_frame(path, options)]
        path = Path(tables[0].name)
    else:
        tables = _read_parts(path, options)
    marks = (decide_decimal(table, options.decimal, keys) for table in tables)
    mark: Decimal = "comma" if "comma" in marks else "point"
    if mark == "comma" and not all(table.as_text for table in tables):
        return read_export(path, dataclasses.replace(options, decimal=mark))
    for i, table in enumerate(tables):
        numbers = to_numbers(table, mark, keys)
        tables[i] = use_unit_column(spread_quantities(numbers, keys), keys)
    return join_times(tables[0] if len(tables) == 1 else combine(tables, path, options.layout))


def _read_frame(df: pd.DataFrame, options: TableOptions) -> Table:
    origin = Origin()
    columns = without_nan(from_pandas(df))
    table = read_serials(Table(columns, origin, origin.name, as_text=True), options.time)
    table = table.with_(times=tuple(find_times(table, options)))
    return fill_labels(drop_rows(table), options.keys)


def _read_parts(path: Path, options: TableOptions) -> list[Table]:
    """Read the files or sheets of an export that have times."""
    keys = options.keys
    parts = _without_prose(parts_of(path, options.sheet), path)
    read: list[Table] = []
    for part in parts:
        table = read_file(part.path, keys, options, part.content, part.sheet)
        if len(parts) > 1:
            if part.sheet and not (table.timed and len(table)):
                log.info(path.name, "sheet %r has no times and is left out", part.sheet)
                continue
            several = part.sheet and any(other.path != part.path for other in parts)
            name = f"{part.path.name}, {part.name}" if several else part.name
            table = table.with_(origin=dataclasses.replace(table.origin, name=name))
        table = times_down(read_serials(table, options.time))
        times = read[0].times if read else ()
        if not times or not set(times) <= set(table.names):
            times = tuple(find_times(table, options))
        if "" in table and "" not in times:
            log.info(table.origin, "the first column has no name and is left out")
            table = table.without([""])
        table = drop_rows(table.with_(name=part.name, times=times))
        read.append(fill_labels(table, keys))
    if not read:
        raise InputError(f"{path.name}: no sheet has a table with times; ", Words("choose {sheet}"))
    return read


def _without_prose(parts: list[Part], path: Path) -> list[Part]:
    """Leave out texts that hold no row with a time, such as a README, beside tables that do."""
    if len(parts) == 1:
        return parts
    prose = [p for p in parts if p.sheet is None and not may_have_times(p.path, p.content)]
    if not prose or len(prose) == len(parts):
        return parts
    names = some([p.name for p in prose], 5)
    log.warning(path.name, "left out, as no row has a time: %s", names)
    return [part for part in parts if part not in prose]


def combine(tables: Sequence[Table], path: Path, layout: str) -> Table:
    """Return one table of several: their rows below each other, or a service or cell of each."""
    first = tables[0]
    for one in tables[1:]:
        if one.times != first.times:
            raise InputError(
                f"{path.name}: {one.name} has its times in {[*one.times]}, {first.name} in "
                f"{[*first.times]}; give tables of one form"
            )
    tables = _named_without_units(tables)
    tables = _stacked_by(tables, lambda one: one.name, path, layout)
    first = tables[0]
    texts = [c for c in first.names if first[c].dtype == pl.String]
    keys = list(dict.fromkeys([*first.times, *texts]))
    same = all(set(one.names) == set(first.names) for one in tables)
    if not same:
        tables = _stacked_by(tables, lambda one: frozenset(one.names), path, layout)
        return _joined(tables, [k for k in keys if all(k in one for one in tables)], path)
    sets = [one.columns.select(keys).unique() for one in tables]
    together = pl.concat(sets, how="vertical_relaxed")
    n_common = len(together) - len(together.unique())
    if 2 * n_common <= min(map(len, sets)):
        return _stacked(tables, path)
    values = [c for c in first.names if c not in keys]
    n_services = sum(map(is_service, values))

    def changed(change: Callable[[pl.DataFrame, str], pl.DataFrame]) -> list[Table]:
        return [one.with_(columns=change(one.columns, _stem(one.name))) for one in tables]

    if len(texts) > len(set(texts) & set(first.times)):
        if len(values) != 1:
            return _stacked(tables, path)
        return _joined(changed(lambda table, name: table.rename({values[0]: name})), keys, path)
    if len({one.name for one in tables}) < len(tables):
        raise InputError(
            f"{path.name}: {first.origin.name} and {tables[1].origin.name} have the same times and "
            "columns; give files of different days, or name their cells apart"
        )
    if layout == "services" or (
        layout == "auto" and (n_services == len(values) or len(values) < 2)
    ):
        log.info(path.name, "each of %d tables is a cell: %s", len(tables), _names_of(tables))
        return _stacked(changed(lambda table, name: table.with_columns(cell=pl.lit(name))), path)
    if layout == "wide" or n_services == 0:
        log.info(path.name, "each of %d tables is a service: %s", len(tables), _names_of(tables))

        def long(table: pl.DataFrame, name: str) -> pl.DataFrame:
            return table.unpivot(values, index=first.times, variable_name="cell", value_name=name)

        return _joined(changed(long), [*first.times, "cell"], path)
    raise InputError(
        f"{path.name}: its tables {_names_of(tables)} have the same times and columns; ",
        Words(
            "pass {layout:services} if each table is a cell and its columns are services, "
            "{layout:wide} if each is a service and its columns are cells"
        ),
    )


def _stacked_by(
    tables: Sequence[Table], form: Callable[[Table], Hashable], path: Path, layout: str
) -> list[Table]:
    """Return one table for each form, such as the sheets of a name in daily workbooks."""
    forms: dict[Hashable, list[Table]] = {}
    for one in tables:
        forms.setdefault(form(one), []).append(one)
    if len(forms) == 1:
        return list(tables)
    whole = [own[0] if len(own) == 1 else combine(own, path, layout) for own in forms.values()]
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


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _names_of(tables: Sequence[Table]) -> str:
    return some(list(dict.fromkeys(_stem(one.name) for one in tables)), 8)


def _stacked(tables: Sequence[Table], path: Path) -> Table:
    """Return the rows of all tables below each other; equal rows of two files are kept once."""
    names, units = tables[0].names, _units_of(tables, path)
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
                path.name,
                "%s of %s stand in an earlier file, too, and are kept once",
                counted(int(again.sum()), "row"),
                some([tables[i].name for i in np.unique(file[again])], 5),
            )
    log.info(path.name, "%d tables below each other: %s", len(tables), _names_of(tables))
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    stack = tuple(zip(starts, (one.origin for one in tables), strict=False))
    origin = dataclasses.replace(
        tables[0].origin, name=path.name, first=0, rows=np.flatnonzero(~again), stack=stack
    )
    return tables[0].with_(columns=whole.filter(~again), origin=origin, name=path.name, units=units)


def _units_of(tables: Sequence[Table], path: Path) -> dict[str, str]:
    """Return the unit of each column in all tables; refuse units that do not convert to one."""
    units = {}
    for name in {name: None for one in tables for name in one.units}:
        own = {one.name: one.units.get(name, "") for one in tables}
        common = common_unit(list(own.values()))
        if common is None:
            found = some([f"{u or 'no unit'} in {file}" for file, u in own.items()], 3)
            raise InputError(f"{path.name}: column {name!r} has {found}; write it in one unit")
        units[name] = common
        if len(set(own.values())) > 1:
            found = some(sorted(set(own.values())), 6)
            log.warning(path.name, "column %r is in %s; converted to %s", name, found, common)
    return units


def _in_units(one: Table, units: Mapping[str, str]) -> pl.DataFrame:
    """Return the columns of a table in given units."""
    sizes = {c: scale_of(u)[1] / scale_of(units[c])[1] for c, u in one.units.items()}
    changed = {c: size for c, size in sizes.items() if size != 1 and c in one}
    return one.columns.with_columns(pl.col(name) * size for name, size in changed.items())


def _joined(tables: Sequence[Table], keys: Sequence[str], path: Path) -> Table:
    """Return the columns of all tables beside each other, by common keys."""
    others = [c for one in tables for c in one.names if c not in keys]
    if len(set(others)) < len(others) or not set(tables[0].times) <= set(keys):
        raise InputError(
            f"{path.name}: {tables[0].name} has the columns {some(tables[0].names, 8)}, "
            f"{tables[1].name} {some(tables[1].names, 8)}; give tables of one form, or with no "
            "column in common but times and cells"
        )
    for one in tables:
        if one.repeats(*keys):
            raise InputError(
                f"{path.name}: {one.name} has several rows for the same {' and '.join(keys)}; "
                "prepare it alone"
            )

    def join(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return left.join(
            right, on=list(keys), how="full", coalesce=True, maintain_order="left_right"
        )

    log.info(
        path.name, "the columns of %d tables beside each other: %s", len(tables), _names_of(tables)
    )
    columns = reduce(join, (one.columns for one in tables))
    if short := [one for one in tables if len(one) < len(columns)]:
        log.warning(
            path.name,
            "of %d rows of %s, some tables have fewer: %s; their columns are empty in the others, "
            "as where a column has another name",
            *(len(columns), " and ".join(keys)),
            some([f"{len(one)} of {one.name}" for one in short], 5),
        )
    units = {c: u for one in tables for c, u in one.units.items()}
    origin = Origin(path.name, is_file=True)
    return Table(columns, origin, path.name, tables[0].times, units=units)
