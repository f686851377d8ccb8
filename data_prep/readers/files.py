"""Read a table from a file: text, JSON lines, Parquet, Arrow, HDF5 of pandas or Excel."""

from __future__ import annotations

import codecs
import dataclasses
import datetime
import json
import re
import shlex
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl

from data_prep.base.errors import (
    InputError,
    Words,
    as_text,
    close_to,
    no_file,
    reading,
    some,
)
from data_prep.base.limits import check_expansion, check_size
from data_prep.readers import delimited
from data_prep.readers.columns import ARROW, JSON, SUFFIXES, names_table
from data_prep.readers.head import LINES, MISSING, check_names, find_head
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.packed import arrow_size, parquet_size
from data_prep.readers.pandas_hdf5 import SUFFIXES_OF_FRAMES, read_hdf
from data_prep.readers.sheets import Area, open_book
from data_prep.readers.table import Table, without_nan
from data_prep.readers.written_numbers import decide_decimal, to_numbers


def sheets_of(path: Path) -> list[str]:
    """Return the names of a workbook's sheets; empty for other files."""
    if path.suffix.lower() != ".xlsx" or not path.is_file():
        return []
    with reading(path.name, _HOW[".xlsx"], "save it again"), open_book(path) as book:
        return list(book.sheets)


def read_excel(path: Path, keys: Container[str], options: TableOptions) -> Table:
    """Read a sheet of a workbook; formulas give the values that were stored with them.

    Whole numbers in columns of `keys`, of ids and times, become text without a point. Merged cells
    all have the value of the first of them.
    """
    with open_book(path) as book:
        found, merged = book.rows(_choose_sheet(list(book.sheets), options.sheet, path.name))
    rows = _filled(found, merged, path)
    if not rows:
        raise InputError(
            f"{path.name}, row 1: empty, expected column names; ", Words("choose another {sheet}")
        )
    begin = [["" if v is None else _text(v) for v in row] for row in rows[:LINES]]
    head = find_head(begin, path.name, "row")
    names, skip = delimited.numbered(len(rows[0])), 0
    if not options.no_header:
        names, skip = check_names(head.names, head.before, path.name, "row"), head.rows
    columns = [
        _column(name, [row[i] for row in rows[skip:]], name in keys) for i, name in enumerate(names)
    ]
    n_named = 0 if options.no_header else len(head.names)
    return Table(
        delimited.without_empty(pl.DataFrame(columns), n_named),
        Origin(path.name, "row", skip + 1, is_file=True),
        units=head.units,
        levels=head.levels,
        timed=head.timed,
        as_text=True,  # Numbers are numbers in a sheet.
    )


def _text(value: Any) -> str:
    """Return the text of a cell; a time of a whole day is a date."""
    return str(value).removesuffix(" 00:00:00") if isinstance(value, datetime.date) else str(value)


def _filled(rows: list[tuple[Any, ...]], merged: list[Area], path: Path) -> list[list[Any]]:
    """Return rows equally long, where merged cells of a column all have the value of the first.

    Of cells that are merged across columns, as names are, the first alone has it.
    """
    width = max(map(len, rows), default=0)
    delimited.check_columns(width, path.name)
    check_size((delimited.ROW + delimited.FIELD * width) * len(rows), f"{path.name}: its cells")
    table = [[*row, *[None] * (width - len(row))] for row in rows]
    room = width * len(rows)
    for first, top, last, bottom in merged:
        last, bottom = min(last, width), min(bottom, len(rows))
        room -= max(0, last + 1 - first) * max(0, bottom + 1 - top)
        if room < 0:
            raise InputError(f"{path.name}: its merged cells overlap; save it again")
        cells = table[top - 1 : bottom]
        value = cells[0][first - 1] if cells and first <= last else None
        for row in cells:
            row[first - 1 : last] = [value, *[None] * (last - first)][: last + 1 - first]
            value = value if first == last else None
    return table


def _choose_sheet(names: list[str], wanted: str | None, file: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    listed = f"its sheets are {some(map(repr, names), 12)}"
    if wanted is None:
        raise InputError(f"{file}: {listed}; ", Words("choose one with {sheet}"))
    raise InputError(f"{file}: no sheet {wanted!r}{close_to(wanted, names)}; {listed}")


def _column(name: str, values: list[Any], is_key: bool) -> pl.Series:
    """Return a column as numbers, times or text, depending on what all its filled cells hold."""
    values = [None if isinstance(v, str) and v in MISSING else v for v in values]
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {datetime.datetime, datetime.date}:
        midnight = datetime.time()
        whole = [
            datetime.datetime.combine(v, midnight) if type(v) is datetime.date else v
            for v in values
        ]
        return pl.Series(name, whole, dtype=pl.Datetime("us"))
    if kinds <= {int, float} and not is_key:
        return pl.Series(name, values, dtype=pl.Float64)
    if is_key and kinds <= {int, float}:
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    texts = [None if v is None else str(v) for v in values]
    return pl.Series(name, texts, dtype=pl.String)


_HOW = {".parquet": "as Parquet", ".xlsx": "as an Excel workbook"}
_HOW |= dict.fromkeys(JSON, "as JSON") | dict.fromkeys(ARROW, "as Arrow")
_HOW |= dict.fromkeys(SUFFIXES_OF_FRAMES, "as HDF5")
PANDAS = {
    ".xls": "read_excel", ".ods": "read_excel", ".xlsb": "read_excel",
    ".xml": "read_xml", ".html": "read_html", ".orc": "read_orc", ".dta": "read_stata",
    ".sav": "read_spss", ".sas7bdat": "read_sas", ".xpt": "read_sas",
}  # fmt: skip
"""Functions of pandas for other kinds of files."""

AS_JSON = 4
"""Bytes of memory for a byte of JSON while it is read."""

PIECE = 2**23
"""Bytes of a list in JSON that are read at a time, as they take fourteen times their size."""


def read_table(
    path: Path, *, text_columns: Container[str] = (), options: TableOptions | None = None
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV, Parquet or Excel file; return it with the location of its rows, for errors.

    An empty field is NaN or None. The `text_columns` of a CSV are kept as text.
    """
    options = options or TableOptions()
    table = read_file(path, text_columns, options)
    mark = decide_decimal(table, options.decimal, text_columns)
    if mark == "comma" and not table.as_text:
        comma = dataclasses.replace(options, decimal=mark)
        return read_table(path, text_columns=text_columns, options=comma)
    table = to_numbers(table, mark, text_columns)
    return table.frame(), table.origin


def read_file(
    path: Path,
    text_columns: Container[str],
    options: TableOptions,
    content: bytes | None = None,
    sheet: str | None = None,
) -> Table:
    """Read a file, or the content of a text file, as it stands: numbers with commas are text."""
    if not path.is_file():
        raise no_file(path, "table", f"give one of {', '.join(SUFFIXES)}")
    if as_text(str(path)) != str(path):
        raise InputError(f"{path}: this name is not UTF-8, expected UTF-8 for a table; rename it")
    ending = path.suffix.lower()
    if not names_table(path.name):
        raise InputError(
            f"{path.name}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(SUFFIXES)}; {_other_ways(path)}"
        )
    with reading(path.name, _HOW.get(ending, "as a table"), "save it again"), _without_panic():
        if ending in (".parquet", *ARROW):
            table = _read_columns(path)
        elif ending in JSON:
            table = _read_json(path)
        elif ending in SUFFIXES_OF_FRAMES:
            table = read_hdf(path)
        elif ending == ".xlsx":
            table = read_excel(
                path, text_columns, dataclasses.replace(options, sheet=sheet or options.sheet)
            )
        else:
            table = delimited.read_delimited(path, text_columns, options, content)
    _check_texts(table.columns, path)
    return table.with_(columns=without_nan(table.columns))


def _other_ways(path: Path) -> str:
    """Return how to read a file of another kind: by pandas, if it knows it."""
    reader = PANDAS.get(path.suffix.lower())
    if reader is None:
        return "save the table as one of them"
    saved = f"{path.stem}.parquet"
    return f"convert it in Python: pandas.{reader}({str(path)!r}).to_parquet({saved!r})"


@contextmanager
def _without_panic() -> Iterator[None]:
    """Turn a panic of Polars, a `BaseException`, into a `ValueError`."""
    try:
        yield
    except pl.exceptions.PanicException as e:
        raise ValueError(str(e)) from e


def _read_columns(path: Path) -> Table:
    """Read a file of Parquet or Arrow; categories become text."""
    is_arrow = path.suffix.lower() in ARROW
    table = pl.scan_ipc(path, glob=False) if is_arrow else pl.scan_parquet(path, glob=False)
    schema = table.collect_schema()
    _check_schema(schema, path)
    n_rows = int(table.select(pl.len()).collect().item())
    n_bytes = n_rows * (delimited.ROW + delimited.FIELD * len(schema))
    check_expansion(n_bytes, path, f"{path.name}: {n_rows} rows")
    unpacked = arrow_size(path) if is_arrow else parquet_size(path)
    check_expansion(unpacked, path, f"{path.name}: unpacked, it")
    as_text = pl.col(pl.Categorical).cast(pl.String), pl.col(pl.Enum).cast(pl.String)
    as_numbers = pl.col(pl.Decimal).cast(pl.Float64)
    plain = table.with_columns(as_text).with_columns(as_numbers)
    return Table(plain.collect(), Origin(path.name, "row", 1, is_file=True))


def _read_json(path: Path) -> Table:
    """Read a list of objects, or an object in each line; names joined by points are columns."""
    check_size(AS_JSON * path.stat().st_size, path.name)
    with path.open("rb") as file:
        begin = file.read(PIECE).lstrip(codecs.BOM_UTF8).lstrip()
    if is_list := begin.startswith(b"["):
        parts = [_unnested(part, path) for part in _parts_of_list(path)]
        table = pl.concat(parts, how="diagonal_relaxed")
        nested = {name.rpartition(".")[0] for name in table.columns}  # In other parts.
        table = table.drop([n for n in nested & {*table.columns} if table[n].dtype == pl.Null])
    else:
        _refuse_one_object(begin, path)
        table = _unnested(pl.read_ndjson(path, infer_schema_length=None), path)
    _check_schema(table.schema, path)
    origin = Origin(path.name, "record" if is_list else "line", 1, is_file=True)
    return Table(table, origin)


def _refuse_one_object(begin: bytes, path: Path) -> None:
    """Refuse a file of one object that holds a table, which as one record has endless columns."""
    found = re.match(rb'{\s*"([^"\\]*)"\s*:\s*([\[{])', begin)
    if found is None or re.search(rb"}\s*\n\s*{", begin):
        return
    name = found[1].decode(errors="replace")
    saved = shlex.quote(f"{path.stem}-rows.json")
    if found[2] == b"[" and re.match(rb"\s*{", begin[found.end() :]):
        way = f"jq {shlex.quote(f'.{json.dumps(name)}')} {shlex.quote(path.name)} > {saved}"
        raise InputError(f"{path.name}: one object with a list of rows under {name!r}, expected "
                         f"the list alone; write it, such as by: {way}")  # fmt: skip
    raise InputError(
        f"{path.name}: one object that begins with {name!r}, expected a list of objects, or an "
        "object in each line; if pandas wrote it, write it by "
        "df.reset_index().to_json('rows.json', orient='records')"
    )


def _parts_of_list(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the tables of parts of a list of objects.

    A part ends between two objects. If that was within a text or a nested list, it is no valid
    JSON, and is read together with twice as much of what follows.
    """
    with path.open("rb") as file:
        begin, rest, size = b"", b"", PIECE
        while more := file.read(size):
            rest += more
            ends = [m.end() for m in re.finditer(rb"}\s*(?=,\s*{)", rest)]
            if ends and len(rest) >= PIECE:
                try:
                    found = pl.read_json(begin + rest[: ends[-1]] + b"]", infer_schema_length=None)
                except pl.exceptions.PolarsError:
                    size *= 2
                    continue
                yield found
                begin, rest, size = b"[", rest[ends[-1] :].lstrip().removeprefix(b","), PIECE
        yield pl.read_json(begin + rest, infer_schema_length=None)


def _unnested(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Return a table with the fields of objects as columns."""
    while objects := [name for name, dtype in table.schema.items() if dtype == pl.Struct]:
        table = table.unnest(objects, separator=".")
        delimited.check_columns(table.width, path.name)
    return table


def _check_schema(schema: pl.Schema, path: Path) -> None:
    """Refuse too many columns, and columns of lists or objects."""
    delimited.check_columns(len(schema), path.name)
    for name, dtype in schema.items():
        if dtype.is_nested():
            raise InputError(
                f"{path.name}: column {name!r} holds {dtype}, expected numbers, text or times; "
                "unnest it or leave it out"
            )


def _check_texts(table: pl.DataFrame, path: Path) -> None:
    """Refuse texts that are too long in total; equal ones may be stored only once."""
    for column in table.iter_columns():
        if column.dtype == pl.String:
            n_bytes = int(column.str.len_bytes().sum())
            check_expansion(n_bytes, path, f"{path.name}: the text of column {column.name!r}")
