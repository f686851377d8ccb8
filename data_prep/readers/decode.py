"""Read a part of a file as a table, by its format."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from pathlib import Path

import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, as_text, counted, no_file, reading
from data_prep.base.limits import check_expansion
from data_prep.readers.formats import Format, Part, format_of, names_table, suffixes
from data_prep.readers.numbers import decide_decimal, to_numbers
from data_prep.readers.options import READ_BY, TableOptions
from data_prep.readers.origin import FIRST, Origin, StepLog
from data_prep.readers.table import Table, without_nan

log = StepLog("decode")


def read_table(
    path: Path, *, text_columns: Container[str] = (), options: TableOptions | None = None
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV, Parquet or Excel file; return it with the location of its rows, for errors.

    An empty field is NaN or None. The `text_columns` of a CSV are kept as text.
    """
    options = options or TableOptions()
    table = read_part(Part(path.name, path), options, text_columns)
    remedy = "write its numbers without points or commas, or with four decimals"
    mark = decide_decimal([table], options.decimal, text_columns, remedy)
    if mark == "comma" and not table.as_text:
        comma = dataclasses.replace(options, decimal=mark)
        return read_table(path, text_columns=text_columns, options=comma)
    return to_numbers(table, mark, text_columns).frame(), table.origin


def apply(parts: Sequence[Part], options: TableOptions) -> list[Table]:
    """Return the tables of all parts; of several sheets, those that have times."""
    tables: list[tuple[Part, Table]] = []
    refuse_unread(parts, options)
    for part in parts:
        table = read_part(part, options, options.keys)
        if len(parts) > 1 and part.sheet and not (table.timed and len(table)):
            log.info(part.path.name, f"sheet {part.sheet!r} has no times and is left out")
        else:
            tables.append((part, table))
    if not tables:
        name = parts[0].path.name
        raise InputError(f"{name}: no sheet has a table with times; ", Words("choose {sheet}"))
    n_files = len({part.path for part in parts})
    return [
        _named(table, part, alone=n_files == len(tables)) if len(parts) > 1 else table
        for part, table in tables
    ]


def refuse_unread(parts: Sequence[Part], options: TableOptions) -> None:
    """Refuse options that no format of the parts reads; without parts, of a frame."""
    known = FIRST.get(None) is not None  # Later records may be in another format.
    given = [o for o in READ_BY if not known and getattr(options, o) not in (None, False)]
    found = [_format_of(part) for part in parts] if given else []
    own = {one.name for one in found if one.__module__.startswith(__name__.partition(".")[0])}
    for option in given if len(own) == len({*found}) else ():  # Others may read any option.
        if own.isdisjoint(READ_BY[option]):
            value = getattr(options, option)
            raise InputError(
                f"{parts[0].path.name if parts else 'the DataFrame'} has no use for {option} "
                f"{value!r}, which only these formats read: {', '.join(READ_BY[option])}; ",
                Words(f"leave out {{{option}}}", **{option: value}),
            )


def _format_of(part: Part) -> type[Format]:
    return part.format or checked_format((part.files or (part.path,))[0], part.content)


def _named(table: Table, part: Part, *, alone: bool) -> Table:
    """Return a table of several, named by its file if that has no other."""
    name = part.name if not part.sheet else str(Path(part.name).with_name(part.path.name))
    of_sheet = bool(part.sheet) and not alone
    shown = f"{part.path.name}, {part.name}" if of_sheet else name
    origin = dataclasses.replace(table.origin, name=shown)
    return table.with_(origin=origin, name=part.name if of_sheet else name)


def read_part(part: Part, options: TableOptions, keys: Container[str]) -> Table:
    """Read a part as it stands: numbers with commas are text; columns of `keys` stay text."""
    path = part.path
    found = _format_of(part)
    with reading(path.name, found.how, "save it again"):
        try:
            table = found.read(part, options, keys)
        except pl.exceptions.PanicException as e:  # a `BaseException`
            raise ValueError(str(e)) from e
    for column in table.columns.select(pl.col(pl.String)).iter_columns():
        n_bytes = int(column.str.len_bytes().sum())  # Equal texts may be stored only once.
        check_expansion(n_bytes, path, f"{path.name}: the text of column {column.name!r}")
    width = counted(len(table.names), "column")
    log.note(part.name, f"{found.how.removeprefix('as ')}: {len(table):,} rows of {width}")
    if found.typed:
        seconds = table.columns.select(pl.col(pl.Duration).dt.total_microseconds() / 1e6)
        units = {**table.units, **dict.fromkeys(seconds.columns, "s")}
        columns = without_nan(table.columns.with_columns(seconds))
        table = table.with_(columns=columns, typed=True, units=units)
    return table.with_(name=part.name)


def checked_format(path: Path, content: bytes | None = None) -> type[Format]:
    """Return the format of a file.

    Raises:
        InputError: if there is no such file, or it is of no known format.
    """
    if not path.is_file():
        raise no_file(path, "table", f"give one of {', '.join(suffixes())}")
    if as_text(str(path)) != str(path):
        raise InputError(f"{path}: this name is not UTF-8, expected UTF-8 for a table; rename it")
    if (found := format_of(path, content)) is None and names_table(path.name):
        raise InputError(
            f"{path.name}: no table of a known kind; export it as another, such as CSV"
        )
    if found is None:
        raise InputError(
            f"{path.name}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(suffixes())}; export it as one of them, such as CSV"
        )
    return found
