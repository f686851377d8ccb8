"""Read a table from a file: CSV, Parquet or Excel (.xlsx, by openpyxl, the extra `excel`).

The unpacked size of a Parquet file is computed from its headers, without reading its pages
(parquet.apache.org; its structures use Thrift's compact encoding). A table may be far larger than
its unpacked pages, because repeated values are stored once; so the rows are counted, too.
"""

from __future__ import annotations

import dataclasses
import datetime
import mmap
import zipfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, as_text, close_to, no_file, reading, some
from data_prep.base.limits import check_expansion
from data_prep.readers import delimited
from data_prep.readers.columns import SUFFIXES, Origin
from data_prep.readers.head import LINES, MISSING, check_names, find_head
from data_prep.readers.written_numbers import decide_decimal, to_numbers


def sheets_of(path: Path) -> list[str]:
    """Return the names of a workbook's sheets; empty for other files."""
    if path.suffix != ".xlsx" or not path.is_file():
        return []
    with reading(path.name, _HOW[".xlsx"], "save it again"):
        book = _open_book(path, read_only=True)
        try:
            return list(book.sheetnames)
        finally:
            book.close()


def _open_book(path: Path, *, read_only: bool) -> Any:
    try:
        import openpyxl
    except ImportError as e:
        raise InputError(
            f"{path.name}: Excel files need openpyxl; pip install 'stforecast[excel]', or save the "
            "table as .csv"
        ) from e
    return openpyxl.load_workbook(path, read_only=read_only, data_only=True)


def read_excel(
    path: Path, keys: Container[str], dialect: delimited.Dialect
) -> tuple[pl.DataFrame, Origin]:
    """Read a sheet of a workbook; formulas give the values that were stored with them.

    Whole numbers in columns of `keys`, of ids and times, become text without a point. Merged cells
    all have the value of the first of them.
    """
    with zipfile.ZipFile(path) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
        check_expansion(unpacked, path, f"{path.name}: unpacked, it")
        sheets = [
            n for n in parts.namelist() if n.startswith("xl/worksheets/") and n[-4:] == ".xml"
        ]
        merged = any(b"<mergeCell " in parts.read(sheet) for sheet in sheets)
    book = _open_book(path, read_only=not merged)
    try:
        sheet = book[_choose_sheet(book.sheetnames, dialect.sheet, path.name)]
        rows = _rows(sheet, path)
        for area in sheet.merged_cells.ranges if merged else ():
            _fill(rows, area)
    finally:
        book.close()
    if not rows:
        raise InputError(
            f"{path.name}, row 1: empty, expected column names; ", Words("choose another {sheet}")
        )
    begin = [["" if v is None else _text(v) for v in row] for row in rows[:LINES]]
    head = find_head(begin, path.name, "row")
    names, skip = delimited.Dialect.numbered(len(rows[0])), 0
    if dialect.header:
        names, skip = check_names(head.names, head.before, path.name, "row"), head.rows
    columns = [
        _column(name, [row[i] for row in rows[skip:]], name in keys) for i, name in enumerate(names)
    ]
    table = pl.DataFrame(columns)
    origin = Origin(path.name, "row", skip + 1, is_file=True)
    origin = dataclasses.replace(origin, units=head.units, levels=head.levels, timed=head.timed)
    origin = dataclasses.replace(origin, as_text=True)  # Numbers are numbers in a sheet.
    return delimited.without_empty(table, len(head.names) if dialect.header else 0), origin


def _text(value: Any) -> str:
    """Return the text of a cell; a time of a whole day is a date."""
    return str(value).removesuffix(" 00:00:00") if isinstance(value, datetime.date) else str(value)


def _fill(rows: list[tuple[Any, ...]], area: Any) -> None:
    """Give merged cells the value of the first; an upper name across columns stands once."""
    first = rows[area.min_row - 1][area.min_col - 1]
    for at in range(area.min_row - 1, min(area.max_row, len(rows))):
        row = list(rows[at])
        if area.min_col == area.max_col:
            row[area.min_col - 1] = first
        rows[at] = tuple(row)


def _choose_sheet(names: list[str], wanted: str | None, file: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    listed = f"its sheets are {some(map(repr, names), 12)}"
    if wanted is None:
        raise InputError(f"{file}: {listed}; ", Words("choose one with {sheet}"))
    raise InputError(f"{file}: no sheet {wanted!r}{close_to(wanted, names)}; {listed}")


def _rows(sheet: Any, path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a sheet, equally long, without empty rows and columns at the end."""
    rows: list[tuple[Any, ...]] = []
    n_bytes = width = 0
    for row in sheet.iter_rows(values_only=True):
        n_bytes += delimited.ROW + delimited.FIELD * len(row)
        check_expansion(n_bytes, path, f"{path.name}: the cells of its sheet")
        filled = [i for i, value in enumerate(row) if value is not None]
        width = max(width, 1 + filled[-1] if filled else 0)
        rows.append(row)
    while rows and all(value is None for value in rows[-1]):
        rows.pop()
    delimited.check_columns(width, path.name)
    return [(*row[:width], *[None] * (width - len(row))) for row in rows]


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


MAGIC = b"PAR1"
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
"""Types of Thrift's compact encoding; those in between are integers."""

# Numbers that the format gives to the fields used here.
ROW_GROUPS, COLUMNS, META = 4, 1, 3
PACKED_SIZE, DATA_PAGES, DICTIONARY_PAGE = 7, 9, 11
PAGE_UNPACKED, PAGE_PACKED = 2, 3


def unpacked_size(path: Path) -> int:
    """Return the unpacked bytes of all pages, as declared by their headers."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        length = int.from_bytes(data[-8:-4], "little")
        if data[-4:] != MAGIC or not 0 < length <= len(data) - 12:
            raise ValueError("no footer of a Parquet file")
        about = _Reader(data, len(data) - 8 - length).struct()
        return sum(
            _unpacked_chunk(data, chunk[META])
            for group in about.get(ROW_GROUPS, [])
            for chunk in group[COLUMNS]
        )


def _unpacked_chunk(data: mmap.mmap, meta: dict[int, Any]) -> int:
    """Return the unpacked bytes of a column's pages within a row group."""
    at = min(meta[DATA_PAGES], meta.get(DICTIONARY_PAGE) or meta[DATA_PAGES])
    end, size = at + meta[PACKED_SIZE], 0
    while 0 <= at < end:
        reader = _Reader(data, at)
        page = reader.struct()
        size += page[PAGE_UNPACKED]
        at = reader.at + max(0, page[PAGE_PACKED])
    return size


class _Reader:
    """Reader of Thrift's compact encoding; a structure is a dictionary of fields by number."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.whole()
            fields[number] = self.value(head & 15)
        return fields

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def count(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def whole(self) -> int:
        number = self.count()
        return (number >> 1) ^ -(number & 1)

    def value(self, kind: int, *, inside: bool = False) -> Any:
        if kind in (TRUE, FALSE):  # a field's type is its value; in a list it is a byte
            return self.byte() == TRUE if inside else kind == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (DOUBLE, BINARY):
            length = self.count() if kind == BINARY else 8
            self.at += length
            return None
        if kind in (LIST, SET):
            head = self.byte()
            n = self.count() if head >> 4 == 15 else head >> 4
            return [self.value(head & 15, inside=True) for _ in range(n)]
        if kind == STRUCT:
            return self.struct()
        if kind == MAP:
            raise ValueError("a map in the footer, which no version of the format has")
        return self.whole()


DIALECT = delimited.Dialect()
_HOW = {".parquet": "as Parquet", ".xlsx": "as an Excel workbook"}
_WHOLE_NUMBER = r"^(0|[1-9]\d{0,17})$"


def read_table(
    path: Path, *, text_columns: Container[str] = (), dialect: delimited.Dialect = DIALECT
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV, Parquet or Excel file; return it with the location of its rows, for errors.

    An empty field is NaN or None. The `text_columns` of a CSV are kept as text.
    """
    table, origin = read_file(path, text_columns, dialect)
    mark = decide_decimal(table, dialect.decimal, text_columns, origin)
    if mark == "comma" and not origin.as_text:
        comma = dataclasses.replace(dialect, decimal=mark)
        return read_table(path, text_columns=text_columns, dialect=comma)
    table, origin = to_numbers(table, mark, text_columns, origin)
    return to_pandas(table), origin


def read_file(
    path: Path,
    text_columns: Container[str],
    dialect: delimited.Dialect,
    content: bytes | None = None,
    sheet: str | None = None,
) -> tuple[pl.DataFrame, Origin]:
    """Read a file, or the content of a text file, as it stands: numbers with commas are text."""
    if not path.is_file():
        raise no_file(path, "table", f"give one of {', '.join(SUFFIXES)}")
    if as_text(str(path)) != str(path):
        raise InputError(f"{path}: this name is not UTF-8, expected UTF-8 for a table; rename it")
    if not path.name.endswith(SUFFIXES):
        raise InputError(
            f"{path.name}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(SUFFIXES)}; save the table as one of them"
        )
    with reading(path.name, _HOW.get(path.suffix, "as a table"), "save it again"), _without_panic():
        if path.suffix == ".parquet":
            table, origin = _read_parquet(path)
        elif path.suffix == ".xlsx":
            table, origin = read_excel(
                path, text_columns, dataclasses.replace(dialect, sheet=sheet or dialect.sheet)
            )
        else:
            table, origin = delimited.read_delimited(path, text_columns, dialect, content)
    _check_texts(table, path)
    return table, origin


def to_pandas(table: pl.DataFrame) -> pd.DataFrame:
    """Return a table as a frame, in which equal texts are stored once."""
    return pd.DataFrame({name: _to_pandas(table[name]) for name in table.columns})


@contextmanager
def _without_panic() -> Iterator[None]:
    """Turn a panic of Polars, a `BaseException`, into a `ValueError`."""
    try:
        yield
    except pl.exceptions.PanicException as e:
        raise ValueError(str(e)) from e


def _read_parquet(path: Path) -> tuple[pl.DataFrame, Origin]:
    table = pl.scan_parquet(path, glob=False)
    schema = table.collect_schema()
    delimited.check_columns(len(schema), path.name)
    for name, dtype in schema.items():
        if dtype.is_nested():
            raise InputError(
                f"{path.name}: column {name!r} holds {dtype}, expected numbers, text or times; "
                "unnest it or leave it out"
            )
    n_rows = int(table.select(pl.len()).collect().item())
    n_bytes = n_rows * (delimited.ROW + delimited.FIELD * len(schema))
    check_expansion(n_bytes, path, f"{path.name}: {n_rows} rows")
    check_expansion(unpacked_size(path), path, f"{path.name}: unpacked, it")
    return table.collect(), Origin(path.name, "row", 1, is_file=True)


def _check_texts(table: pl.DataFrame, path: Path) -> None:
    """Refuse texts that are too long in total; equal ones may be stored only once."""
    for column in table.iter_columns():
        if column.dtype == pl.String:
            n_bytes = int(column.str.len_bytes().sum())
            check_expansion(n_bytes, path, f"{path.name}: the text of column {column.name!r}")


def whole_numbers(ids: pl.Series) -> pl.Series:
    """Return text ids as integers if all of them look like integers, else unchanged."""
    if ids.dtype != pl.String:
        return ids
    return ids.cast(pl.Int64) if ids.str.contains(_WHOLE_NUMBER).all() else ids


def _to_pandas(column: pl.Series) -> np.ndarray | pd.DatetimeIndex:
    if column.dtype == pl.String:  # share equal texts to save memory: times and ids repeat often
        texts = column.unique()
        places = pl.arange(len(texts), eager=True)
        at = column.replace_strict(texts, places, return_dtype=pl.Int64)
        result: np.ndarray | pd.DatetimeIndex = texts.to_numpy()[at.to_numpy().astype(np.intp)]
        return result
    if column.dtype == pl.Int128:  # whole numbers of 20 digits or more; NumPy has no such type
        return np.array(column.to_list(), dtype=object)
    values = column.to_numpy()
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        return pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(column.dtype.time_zone)
    return values
