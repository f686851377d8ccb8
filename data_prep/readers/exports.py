"""Read an export: one file, several in a folder, zip or pattern, or the sheets of a workbook.

Rows that are no records are left out and named: totals, notes, repeated names. A date and a time of
day in two columns become one time.
"""

from __future__ import annotations

import dataclasses
import datetime
import glob
import logging
import re
import zipfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, close_to, counted, no_file, some
from data_prep.base.limits import read_expanded
from data_prep.readers.columns import (
    CLOCK_LIKE,
    HOURS,
    MAX_NAMES,
    SUFFIXES,
    TIME_LIKE,
    TIMES,
    Origin,
    is_service,
    looks_like_values,
    named,
    which_of,
)
from data_prep.readers.delimited import Decimal, Dialect, decide_decimal, to_numbers
from data_prep.readers.files import read_file, sheets_of, to_pandas
from data_prep.readers.head import times_across

TIME = "time"
SEEN = 2000
"""Number of values that show whether a column holds times."""

TOTAL = (
    r"(?i)^\s*(grand |sub-?)?(total|sum|average|avg|mean|overall|summe|gesamt|mittelwert|totale|"
    r"somme|moyenne|promedio|media|minimum|maximum|min|max|合计|总计|平均)s?\b.{0,30}$"
)
"""Pattern of what names a row or cell of totals."""

log = logging.getLogger(__name__)


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
    files = sorted(p for p in found if p.name.endswith(SUFFIXES) and p.name[:1] not in ".~")
    if not files:
        raise no_file(path, "table", f"give one of {', '.join(SUFFIXES)}, or a folder of them")
    return files


def parts_of(path: Path, sheet: str | None) -> list[Part]:
    """Return the files or sheets of an export; the path may be a folder, a zip or a pattern."""
    if (files := files_of(path)) != [path]:
        return [part for file in files for part in parts_of(file, sheet)]
    if path.suffix == ".zip" and path.is_file():
        return list(_members(path))
    if sheet is None and len(names := sheets_of(path)) > 1:
        return [Part(name, path, sheet=name) for name in names]
    return [Part(path.name, path, sheet=sheet)]


def _members(path: Path) -> Iterator[Part]:
    """Yield the tables of a zip, unpacked."""
    try:
        with zipfile.ZipFile(path) as packed:
            names = sorted(n for n in packed.namelist() if n.endswith((".csv", ".tsv", ".txt")))
            if not names:
                raise InputError(
                    f"{path}: holds {some(packed.namelist(), 5) or 'nothing'}, expected .csv, .tsv "
                    "or .txt files; unpack it"
                )
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
    path: Path, *, time: str, keys: Container[str], dialect: Dialect, layout: str = "auto"
) -> tuple[pd.DataFrame, str, Origin]:
    """Read an export; return its table, the column of times and the location of its rows.

    Without times, the column is the given one, and absent.

    Args:
        path: a file, a folder, a zip, or a pattern such as `exports/*.csv`.
        time: name of the column of times, or two names, of dates and of times of day.
        keys: columns to keep as text.
        dialect: how files are written.
        layout: what the columns of several files with the same times are: `"wide"`, cells, or
            `"services"`.
    """
    parts = parts_of(path, dialect.sheet)
    read: list[_Read] = []
    for part in parts:
        table, origin = read_file(part.path, keys, dialect, part.content, part.sheet)
        if len(parts) > 1:
            if part.sheet and not (origin.timed and len(table)):
                log.info("%s: sheet %r has no times and is left out", path.name, part.sheet)
                continue
            origin = dataclasses.replace(origin, name=part.name)
        table, origin = _times_down(table, origin)
        times = read[0].times if read else []
        if not times or not set(times) <= set(table.columns):
            times = find_times(table, time, origin, header=dialect.header)
        if "" in table.columns and "" not in times:
            log.info("%s: the first column has no name and is left out", origin.name)
            table = table.drop("")
        read.append(_Read(part.name, *drop_rows(table, times, origin), times))
    if not read:
        raise InputError(f"{path.name}: no sheet has a table with times; ", Words("choose {sheet}"))
    marks = {decide_decimal(one.table, dialect, keys, one.origin) for one in read}
    mark: Decimal = "comma" if "comma" in marks else "point"
    if mark == "comma" and not all(one.origin.as_text for one in read):
        comma = dataclasses.replace(dialect, decimal=mark)
        return read_export(path, time=time, keys=keys, dialect=comma, layout=layout)
    for i, one in enumerate(read):
        read[i] = one._replace(table=to_numbers(one.table, mark, keys, one.origin))
    _, table, origin, times = read[0] if len(read) == 1 else combine(read, path, layout)
    table, joined = join_times(table, times)
    return to_pandas(table), time if joined is None else joined, origin


def _times_down(table: pl.DataFrame, origin: Origin) -> tuple[pl.DataFrame, Origin]:
    """Return a long table of one that has a column for each time."""
    across = times_across(table.columns)
    if not across:
        return table, origin
    log.info("%s: %d columns are times, such as %r", origin.name, len(across), across[0])
    table = table.with_columns(pl.col(across).cast(pl.String))
    others = [name for name in table.columns if name not in across]
    rows = np.arange(len(table)) if origin.rows is None else origin.rows
    long = table.unpivot(across, index=others, variable_name=TIME, value_name="value")
    return long, dataclasses.replace(origin, rows=np.tile(rows, len(across)))


def _kind(column: pl.Series) -> str:
    """Return what most values are: `"time"`, `"date"`, `"clock"`, `"hour"`, or `""`."""
    if column.dtype == pl.Date:
        return "date"
    if column.dtype == pl.Time:
        return "clock"
    if isinstance(column.dtype, pl.Datetime):
        midnight = datetime.time()
        return "date" if bool((column.drop_nulls().dt.time() == midnight).all()) else "time"
    texts = column.head(SEEN).drop_nulls().cast(pl.String).str.strip_chars()
    if not len(texts):
        return ""
    hours = texts.str.contains(r"^([01]?\d|2[0-4])(\.0)?$")
    if named([column.name], HOURS) and _share(hours) > MOST:
        return "hour"
    if column.dtype.is_float() or _share(texts.str.contains(TIME_LIKE)) <= MOST:
        is_clock = column.dtype == pl.String and _share(texts.str.contains(CLOCK_LIKE)) > MOST
        return "clock" if is_clock else ""
    if column.dtype == pl.String and not texts.str.contains(r"^\d{9,}$").any():
        plain = texts.str.replace(MIDNIGHT, "")
        return "time" if plain.str.contains(r"^.{5,}[T_ ,]\s*\d{1,2}(:|$)").any() else "date"
    return "date" if _share(texts.str.contains(r"^\d{8}$")) > MOST else "time"


def _share(mask: pl.Series) -> float:
    """Return the share of true values."""
    return float(mask.to_numpy().mean())


MOST = 0.8
"""Share of values above which a column is one of times, as totals and notes stand among them."""

MIDNIGHT = r"[T ]0?0:00(:00(\.0+)?)?$"


def find_times(table: pl.DataFrame, time: str, origin: Origin, *, header: bool) -> list[str]:
    """Return the column of times, or those of dates and times of day; empty if none is found.

    It is the named one, else one with a usual name, else the only one that holds times. The first
    column is taken if it has no name, as `DataFrame.to_csv` writes an index.
    """
    columns = table.columns
    if "," in time and time not in columns:
        return [_named(part.strip(), columns, origin) for part in time.split(",")]
    if time in columns and time != TIME:
        return [time]
    if time != TIME:
        return [_named(time, columns, origin)]
    unnamed_first = "" in columns[:1] and (_kind(table[""]) or not named(columns, TIMES))
    if unnamed_first or (not header and len(table) and looks_like_values([str(table[0, 0])])):
        return [columns[0]]
    kinds = {name: _kind(table[name]) for name in columns}
    exact = [name for name, kind in kinds.items() if kind == "time"]
    usual = named(exact, TIMES) or ([] if len(named(columns, TIMES)) == 1 else exact)
    dates = [name for name, kind in kinds.items() if kind == "date"]
    clocks = [name for name, kind in kinds.items() if kind in ("clock", "hour")]
    found = usual[:1] if len(usual) == 1 else _earlier(table, usual)
    if not usual and dates and clocks:
        dates, clocks = named(dates, TIMES) or dates, named(clocks, TIMES) or clocks
        both = [_earlier(table, dates) or dates, _earlier(table, clocks) or clocks]
        found = [one[0] for one in both if len(one) == 1]
    elif not usual:
        dates = named(columns, TIMES) or dates
        found = dates if len(dates) == 1 else _earlier(table, dates)
    if not found and len(usual or dates) > 1:
        raise which_of(f"{origin.name}: %s may hold the times; ", "time", usual or dates)
    if found and found != [TIME]:
        log.info(
            "%s: using column%s %s for the times; %s",
            origin.name,
            "s" * (len(found) > 1),
            " and ".join(map(repr, found)),
            Words("pass {time} for another"),
        )
    return found or ([TIME] if TIME in columns else [])


def _named(name: str, columns: Sequence[str], origin: Origin) -> str:
    if name in columns:
        return name
    names = ", ".join(map(repr, columns[:20]))[:MAX_NAMES]
    raise InputError(
        f"{origin.name}: no column {name!r} among {names}{close_to(name, columns)}; ",
        Words("name the column of times with {time}"),
    )


def _earlier(table: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the first of two columns whose times begin and end spans, or one of one; else none."""
    if len(names) != 2:
        return list(names) if len(names) == 1 else []
    first, second = (table[name].head(SEEN).cast(pl.String) for name in names)
    shifted = first.slice(1) == second.head(len(second) - 1)
    if bool((first == second).all()) or (len(shifted) and _share(shifted) > 0.5):
        return [names[0]]
    words = [re.search(r"(?i)start|begin|from|von|debut|inicio", name) for name in names]
    return [name for name, word in zip(names, words, strict=True) if word][:1]


def drop_rows(
    table: pl.DataFrame, times: Sequence[str], origin: Origin
) -> tuple[pl.DataFrame, Origin]:
    """Leave out rows that are no records, and log what they are and how many.

    Such a row has no time, and is empty, repeats the names of the columns, has a word such as
    Total, or is a note: text in one column.
    """
    texts = [name for name in times if table[name].dtype == pl.String]
    odd = pl.Series(np.zeros(len(table), dtype=bool))
    for name in times:
        column = table[name]
        missing = column.is_null()
        if name in texts:
            distinct = column.unique().drop_nulls()
            like = distinct.str.contains(TIME_LIKE) | distinct.str.contains(CLOCK_LIKE)
            wrong = distinct.filter(~like & ~distinct.str.contains(r"^\s*\d+(\.0)?\s*$"))
            missing = missing | column.is_in(wrong.implode()) if len(wrong) else missing
        odd |= missing
    if not odd.any():
        return table, origin
    reasons: dict[str, list[int]] = {}
    for row in np.flatnonzero(odd.to_numpy()).tolist():
        if reason := _no_record(table.columns, table.row(row), times):
            reasons.setdefault(reason, []).append(row)
    if not reasons:
        return table, origin
    for reason, rows in reasons.items():
        first = table.row(rows[0])
        shown = " ".join(str(field) for field in first if field is not None)
        level = logging.INFO if reason == "empty" else logging.WARNING
        log.log(
            level,
            "%s: left out %s: %s, the first in %s %d%s",
            origin.name,
            counted(len(rows), "row"),
            reason,
            origin.unit,
            origin.number(rows[0]),
            f" ({shown:.50})" if shown else "",
        )
    kept = np.setdiff1d(np.arange(len(table)), np.concatenate([*map(np.array, reasons.values())]))
    places = kept if origin.rows is None else origin.rows[kept]
    return table[kept], dataclasses.replace(origin, rows=places)


def _no_record(names: Sequence[str], row: Sequence[object], times: Sequence[str]) -> str:
    """Return why a row without a time is no record; empty if it may be one."""
    filled = {name: str(value) for name, value in zip(names, row, strict=True) if value is not None}
    if not filled:
        return "empty"
    if all(name.endswith(value.strip()) for name, value in filled.items()):
        return "the columns' names again"
    words = [v for v in filled.values() if re.search(r"[^\W\d_]{3}", v)]
    if any(re.match(TOTAL, value) for value in words):
        return "totals"
    if words and len(filled) == 1 and times[0] in (*filled, names[0]):
        return "notes"
    return ""


def combine(read: Sequence[_Read], path: Path, layout: str) -> _Read:
    """Return one table of several: their rows below each other, or a service or cell of each."""
    first = read[0]
    for one in read[1:]:
        if one.times != first.times:
            raise InputError(
                f"{path.name}: {one.name} has its times in {one.times}, {first.name} in "
                f"{first.times}; give tables of one form"
            )
    texts = [c for c in first.table.columns if first.table[c].dtype == pl.String]
    keys = list(dict.fromkeys([*first.times, *texts]))
    same = all(set(one.table.columns) == set(first.table.columns) for one in read)
    if not same:
        return _joined(read, [k for k in keys if all(k in o.table.columns for o in read)], path)
    sets = [one.table.select(keys).unique() for one in read]
    together = pl.concat(sets, how="vertical_relaxed")
    n_common = len(together) - len(together.unique())
    if 2 * n_common <= min(map(len, sets)):
        return _stacked(read, path)
    values = [c for c in first.table.columns if c not in keys]
    n_services = sum(map(is_service, values))
    if len(texts) > len(set(texts) & set(first.times)):
        if len(values) == 1:
            named_values = [
                one._replace(table=one.table.rename({values[0]: _stem(one.name)})) for one in read
            ]
            return _joined(named_values, keys, path)
        return _stacked(read, path)
    if layout == "services" or (
        layout == "auto" and (n_services == len(values) or len(values) < 2)
    ):
        log.info("%s: each of %d tables is a cell: %s", path.name, len(read), _names_of(read))
        cells = [
            one._replace(table=one.table.with_columns(pl.lit(_stem(one.name)).alias("cell")))
            for one in read
        ]
        return _stacked(cells, path)
    if layout == "wide" or n_services == 0:
        log.info("%s: each of %d tables is a service: %s", path.name, len(read), _names_of(read))
        long = [
            one._replace(
                table=one.table.unpivot(
                    values, index=one.times, variable_name="cell", value_name=_stem(one.name)
                )
            )
            for one in read
        ]
        return _joined(long, [*first.times, "cell"], path)
    raise InputError(
        f"{path.name}: its tables {_names_of(read)} have the same times and columns; ",
        Words(
            "pass {layout:services} if each table is a cell and its columns are services, "
            "{layout:wide} if each is a service and its columns are cells"
        ),
    )


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _names_of(read: Sequence[_Read]) -> str:
    return some([_stem(one.name) for one in read], 8)


def _stacked(read: Sequence[_Read], path: Path) -> _Read:
    """Return the rows of all tables below each other; equal rows of two files are kept once."""
    columns = read[0].table.columns
    tables = [one.table.select(columns) for one in read]
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
        units={c: u for one in read for c, u in one.origin.units.items()},
    )
    return _Read(path.name, whole.filter(~again), origin, read[0].times)


def _joined(read: Sequence[_Read], keys: Sequence[str], path: Path) -> _Read:
    """Return the columns of all tables beside each other, by common keys."""
    others = [set(one.table.columns) - set(keys) for one in read]
    twice = set.intersection(*others) if not set(read[0].times) <= set(keys) else set()
    for i, own in enumerate(others):
        twice |= own & set[str]().union(*others[:i])
    if twice or not set(read[0].times) <= set(keys):
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
    units = {c: u for one in read for c, u in one.origin.units.items()}
    return _Read(path.name, table, Origin(path.name, is_file=True, units=units), read[0].times)


def join_times(table: pl.DataFrame, times: Sequence[str]) -> tuple[pl.DataFrame, str | None]:
    """Return the table with one column of times, made of dates and times of day, and its name."""
    if len(times) < 2:
        return table, times[0] if times else None
    date, clock = (table[name] for name in times)
    day = date.dt.strftime("%Y-%m-%d") if date.dtype.is_temporal() else date.cast(pl.String)
    day = day.str.strip_chars().str.replace(MIDNIGHT, "")
    if clock.dtype.is_temporal():
        hour = clock.dt.strftime("%H:%M:%S")
    else:
        hour = clock.cast(pl.String).str.strip_chars().str.replace(r"\s*(-|–|to|bis)\s*\d.*$", "")
        hour = hour.str.replace(r"^(\d{1,2})(\.0)?$", "$1:00")
    hour = hour.str.replace(r"^(\d:)", "0$1")
    if day.str.contains(r"^\d{8}$").all():
        day = day.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3")
    name = TIME if TIME not in table.columns or TIME in times else times[0]
    joined = (day + " " + hour).alias(name)
    return table.drop(times).insert_column(0, joined), name
