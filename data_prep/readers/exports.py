"""Read an export: one file, several in a folder, zip or pattern, or the sheets of a workbook.

The tables of several files become one: their rows below each other, or a service or cell of each.
"""

from __future__ import annotations

import dataclasses
import glob
import logging
import re
import zipfile
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, counted, no_file, some
from data_prep.base.limits import check_expansion, read_expanded
from data_prep.readers.columns import (
    SUFFIXES,
    TEXTS,
    Origin,
    is_table_in_folder,
    names_table,
)
from data_prep.readers.delimited import may_have_times
from data_prep.readers.files import from_pandas, read_file, sheets_of, to_pandas
from data_prep.readers.options import Decimal, TableOptions
from data_prep.readers.time_columns import drop_rows, find_times, times_down
from data_prep.readers.time_parts import fill_labels, join_times, read_serials
from data_prep.readers.units import common_unit, is_service, scale_of, unit_of, without_unit
from data_prep.readers.written_numbers import (
    decide_decimal,
    spread_quantities,
    to_numbers,
    use_unit_column,
)

log = logging.getLogger(__name__)

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
        log.info("%s: left out, as they are no tables: %s", path.name, some(names, 5))


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


class _Read(NamedTuple):
    """A table without rows of totals, where its rows stand, and the columns of its times."""

    name: str
    table: pl.DataFrame
    origin: Origin
    times: list[str]


def read_export(
    path: Path | pd.DataFrame, options: TableOptions
) -> tuple[pd.DataFrame, str, Origin]:
    """Read an export; return its table, the column of times and the location of its rows.

    Without times, the column is the given one, and absent.

    Args:
        path: a file, a folder, a zip, a pattern such as `exports/*.csv`, or a frame.
        options: the columns of times and cells; how files are written; and what the columns of
            several files with the same times are: `"wide"`, cells, or `"services"`.
    """
    time, keys = options.time, options.keys
    if isinstance(path, pd.DataFrame):
        read = [_read_frame(path, time, keys)]
        path = Path(read[0].name)
    else:
        read = _read_parts(path, options)
    marks = (decide_decimal(one.table, options.decimal, keys, one.origin) for one in read)
    mark: Decimal = "comma" if "comma" in marks else "point"
    if mark == "comma" and not all(one.origin.as_text for one in read):
        return read_export(path, dataclasses.replace(options, decimal=mark))
    for i, one in enumerate(read):
        table, origin = to_numbers(one.table, mark, keys, one.origin)
        table, origin = spread_quantities(table, one.times, keys, origin)
        table, origin = use_unit_column(table, keys, origin)
        read[i] = one._replace(table=table, origin=origin)
    _, table, origin, times = read[0] if len(read) == 1 else combine(read, path, options.layout)
    table, joined = join_times(table, times)
    return to_pandas(table), time if joined is None else joined, origin


def _read_frame(df: pd.DataFrame, time: str, keys: Container[str]) -> _Read:
    origin = Origin(as_text=True)
    table = read_serials(from_pandas(df), time, origin)
    times = find_times(table, time, origin, header=True)
    table, origin = drop_rows(table, times, origin)
    return _Read(origin.name, fill_labels(table, times, keys, origin), origin, times)


def _read_parts(path: Path, options: TableOptions) -> list[_Read]:
    """Read the files or sheets of an export that have times."""
    keys = options.keys
    parts = _without_prose(parts_of(path, options.sheet), path)
    read: list[_Read] = []
    for part in parts:
        table, origin = read_file(part.path, keys, options, part.content, part.sheet)
        if len(parts) > 1:
            if part.sheet and not (origin.timed and len(table)):
                log.info("%s: sheet %r has no times and is left out", path.name, part.sheet)
                continue
            several = part.sheet and any(other.path != part.path for other in parts)
            name = f"{part.path.name}, {part.name}" if several else part.name
            origin = dataclasses.replace(origin, name=name)
        table, origin = times_down(read_serials(table, options.time, origin), origin)
        times = read[0].times if read else []
        if not times or not set(times) <= set(table.columns):
            times = find_times(table, options.time, origin, header=not options.no_header)
        if "" in table.columns and "" not in times:
            log.info("%s: the first column has no name and is left out", origin.name)
            table = table.drop("")
        table, origin = drop_rows(table, times, origin)
        table = fill_labels(table, times, keys, origin)
        read.append(_Read(part.name, table, origin, times))
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
    log.warning("%s: left out, as no row has a time: %s", path.name, names)
    return [part for part in parts if part not in prose]


def combine(read: Sequence[_Read], path: Path, layout: str) -> _Read:
    """Return one table of several: their rows below each other, or a service or cell of each."""
    first = read[0]
    for one in read[1:]:
        if one.times != first.times:
            raise InputError(
                f"{path.name}: {one.name} has its times in {one.times}, {first.name} in "
                f"{first.times}; give tables of one form"
            )
    read = _stacked_by(_named_without_units(read), lambda one: one.name, path, layout)
    first = read[0]
    texts = [c for c in first.table.columns if first.table[c].dtype == pl.String]
    keys = list(dict.fromkeys([*first.times, *texts]))
    same = all(set(one.table.columns) == set(first.table.columns) for one in read)
    if not same:
        read = _stacked_by(read, lambda one: frozenset(one.table.columns), path, layout)
        return _joined(read, [k for k in keys if all(k in o.table.columns for o in read)], path)
    sets = [one.table.select(keys).unique() for one in read]
    together = pl.concat(sets, how="vertical_relaxed")
    n_common = len(together) - len(together.unique())
    if 2 * n_common <= min(map(len, sets)):
        return _stacked(read, path)
    values = [c for c in first.table.columns if c not in keys]
    n_services = sum(map(is_service, values))

    def changed(change: Callable[[pl.DataFrame, str], pl.DataFrame]) -> list[_Read]:
        return [one._replace(table=change(one.table, _stem(one.name))) for one in read]

    if len(texts) > len(set(texts) & set(first.times)):
        if len(values) != 1:
            return _stacked(read, path)
        return _joined(changed(lambda table, name: table.rename({values[0]: name})), keys, path)
    if len({one.name for one in read}) < len(read):
        raise InputError(
            f"{path.name}: {first.origin.name} and {read[1].origin.name} have the same times and "
            "columns; give files of different days, or name their cells apart"
        )
    if layout == "services" or (
        layout == "auto" and (n_services == len(values) or len(values) < 2)
    ):
        log.info("%s: each of %d tables is a cell: %s", path.name, len(read), _names_of(read))
        return _stacked(changed(lambda table, name: table.with_columns(cell=pl.lit(name))), path)
    if layout == "wide" or n_services == 0:
        log.info("%s: each of %d tables is a service: %s", path.name, len(read), _names_of(read))

        def long(table: pl.DataFrame, name: str) -> pl.DataFrame:
            return table.unpivot(values, index=first.times, variable_name="cell", value_name=name)

        return _joined(changed(long), [*first.times, "cell"], path)
    raise InputError(
        f"{path.name}: its tables {_names_of(read)} have the same times and columns; ",
        Words(
            "pass {layout:services} if each table is a cell and its columns are services, "
            "{layout:wide} if each is a service and its columns are cells"
        ),
    )


def _stacked_by(
    read: Sequence[_Read], form: Callable[[_Read], Hashable], path: Path, layout: str
) -> list[_Read]:
    """Return one table for each form, such as the sheets of a name in daily workbooks."""
    forms: dict[Hashable, list[_Read]] = {}
    for one in read:
        forms.setdefault(form(one), []).append(one)
    if len(forms) == 1:
        return list(read)
    whole = [own[0] if len(own) == 1 else combine(own, path, layout) for own in forms.values()]
    return [one._replace(name=own[0].name) for one, own in zip(whole, forms.values(), strict=True)]


def _named_without_units(read: Sequence[_Read]) -> Sequence[_Read]:
    """Return tables whose columns have no unit in their names where files differ only in units."""
    names = [{without_unit(c): c for c in one.table.columns} for one in read]
    if any(len(own) < len(one.table.columns) for own, one in zip(names, read, strict=True)):
        return read
    changed = [
        bare
        for bare, name in names[0].items()
        if any(own.get(bare, name) != name for own in names) and all(bare in own for own in names)
    ]
    if not changed:
        return read
    renamed = []
    for one, own in zip(read, names, strict=True):
        units = {bare: unit_of(own[bare]) for bare in changed if unit_of(own[bare])}
        table = one.table.rename({own[bare]: bare for bare in changed})
        origin = dataclasses.replace(one.origin, units={**one.origin.units, **units})
        renamed.append(one._replace(table=table, origin=origin))
    return renamed


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _names_of(read: Sequence[_Read]) -> str:
    return some(list(dict.fromkeys(_stem(one.name) for one in read)), 8)


def _stacked(read: Sequence[_Read], path: Path) -> _Read:
    """Return the rows of all tables below each other; equal rows of two files are kept once."""
    columns, units = read[0].table.columns, _units_of(read, path)
    tables = [_in_units(one, units).select(columns) for one in read]
    kinds = {c: {t[c].dtype for t in tables} for c in columns}
    as_text = [c for c, found in kinds.items() if len(found) > 1 and pl.String in found]
    tables = [t.with_columns(pl.col(as_text).cast(pl.String)) for t in tables]
    whole = pl.concat(tables, how="vertical_relaxed")
    file = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    again = np.zeros(len(whole), dtype=bool)
    if whole.is_duplicated().any():
        of_first = whole.with_columns(file=pl.Series(file)).select(
            pl.col("file").min().over(columns)
        )
        again = of_first["file"].to_numpy() < file
        if again.any():
            log.warning(
                "%s: %s of %s stand in an earlier file, too, and are kept once",
                path.name,
                counted(int(again.sum()), "row"),
                some([read[i].name for i in np.unique(file[again])], 5),
            )
    log.info("%s: %d tables below each other: %s", path.name, len(read), _names_of(read))
    starts = np.cumsum([0, *(len(t) for t in tables)])
    stack = tuple(zip(starts.tolist(), (one.origin for one in read), strict=False))
    origin = dataclasses.replace(
        read[0].origin,
        name=path.name,
        first=0,
        rows=np.flatnonzero(~again),
        stack=stack,
        units=units,
    )
    return _Read(path.name, whole.filter(~again), origin, read[0].times)


def _units_of(read: Sequence[_Read], path: Path) -> dict[str, str]:
    """Return the unit of each column in all tables; refuse units that do not convert to one."""
    units = {}
    for name in {name: None for one in read for name in one.origin.units}:
        own = {one.name: one.origin.units.get(name, "") for one in read}
        common = common_unit(list(own.values()))
        if common is None:
            found = some([f"{u or 'no unit'} in {file}" for file, u in own.items()], 3)
            raise InputError(f"{path.name}: column {name!r} has {found}; write it in one unit")
        units[name] = common
        if len(set(own.values())) > 1:
            found = some(sorted(set(own.values())), 6)
            log.warning("%s: column %r is in %s; converted to %s", path.name, name, found, common)
    return units


def _in_units(one: _Read, units: Mapping[str, str]) -> pl.DataFrame:
    """Return a table in given units."""
    sizes = {c: scale_of(u)[1] / scale_of(units[c])[1] for c, u in one.origin.units.items()}
    changed = {c: size for c, size in sizes.items() if size != 1 and c in one.table.columns}
    return one.table.with_columns(pl.col(name) * size for name, size in changed.items())


def _joined(read: Sequence[_Read], keys: Sequence[str], path: Path) -> _Read:
    """Return the columns of all tables beside each other, by common keys."""
    others = [c for one in read for c in one.table.columns if c not in keys]
    if len(set(others)) < len(others) or not set(read[0].times) <= set(keys):
        raise InputError(
            f"{path.name}: {read[0].name} has the columns {some(read[0].table.columns, 8)}, "
            f"{read[1].name} {some(read[1].table.columns, 8)}; give tables of one form, or with no "
            "column in common but times and cells"
        )
    for one in read:
        if one.table.select(keys).is_duplicated().any():
            raise InputError(
                f"{path.name}: {one.name} has several rows for the same {' and '.join(keys)}; "
                "prepare it alone"
            )

    def join(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return left.join(
            right, on=list(keys), how="full", coalesce=True, maintain_order="left_right"
        )

    log.info(
        "%s: the columns of %d tables beside each other: %s", path.name, len(read), _names_of(read)
    )
    table = reduce(join, (one.table for one in read))
    if short := [one for one in read if len(one.table) < len(table)]:
        log.warning(
            "%s: of %d rows of %s, some tables have fewer: %s; their columns are empty in the "
            "others, as where a column has another name",
            *(path.name, len(table), " and ".join(keys)),
            some([f"{len(one.table)} of {one.name}" for one in short], 5),
        )
    units = {c: u for one in read for c, u in one.origin.units.items()}
    return _Read(path.name, table, Origin(path.name, is_file=True, units=units), read[0].times)
