"""Read a sheet of an Excel workbook (.xlsx) by openpyxl (extra `excel`), bounded in size."""

from __future__ import annotations

import datetime
import zipfile
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

import polars as pl

from data_prep.errors import InputError, close_to
from data_prep.limits import check_expansion
from data_prep.tabular.decimals import Decimal, to_numbers
from data_prep.tabular.delimited import MISSING
from data_prep.tabular.dialect import FIELD, ROW, Dialect, check_columns
from data_prep.tabular.origin import Origin
from data_prep.text import some


def read_excel(path: Path, keys: Container[str], dialect: Dialect) -> tuple[pl.DataFrame, Origin]:
    """Read a sheet of a workbook; formulas give the values that were stored with them.

    Args:
        path: the workbook.
        keys: columns of ids and times; whole numbers there become text without a point.
        dialect: which sheet, and whether its first row holds names.

    Raises:
        InputError: if openpyxl is not installed, there are several sheets and none is chosen, or
            the sheet is too large or holds an error.
    """
    try:
        import openpyxl
    except ImportError as e:
        raise InputError(
            f"{path.name}: Excel files need openpyxl; pip install 'stforecast[excel]', or save the "
            "table as .csv"
        ) from e
    with zipfile.ZipFile(path) as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
    check_expansion(unpacked, path, f"{path.name}: unpacked, it")
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        name = _choose_sheet(book.sheetnames, dialect.sheet, path.name)
        rows = _rows(book[name], path)
    finally:
        book.close()
    names = _names(rows, dialect, path.name)
    body = rows[1:] if dialect.header else rows
    table = pl.DataFrame([_column(n, [r[i] for r in body], n in keys) for i, n in enumerate(names)])
    decimal: Decimal = (
        "comma" if dialect.decimal == "comma" else "point"
    )  # numbers are numbers in a sheet
    first = 2 if dialect.header else 1
    origin = Origin(path.name, "row", first, is_file=True)
    return to_numbers(table, decimal, keys, origin), origin


def _choose_sheet(names: list[str], wanted: str | None, file: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return str(wanted)
    listed = f"its sheets are {some(map(repr, names), 12)}"
    if wanted is None:
        raise InputError(f"{file}: {listed}; choose one with --sheet")
    raise InputError(f"{file}: no sheet {wanted!r}{close_to(wanted, names)}; {listed}")


def _rows(sheet: Any, path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a sheet, equally long, without empty rows and columns at the end."""
    rows: list[tuple[Any, ...]] = []
    n_bytes = width = 0
    for row in sheet.iter_rows(values_only=True):
        n_bytes += ROW + FIELD * len(row)
        check_expansion(n_bytes, path, f"{path.name}: the cells of its sheet")
        filled = [i for i, value in enumerate(row) if value is not None]
        width = max(width, 1 + filled[-1] if filled else 0)
        rows.append(row)
    while rows and all(value is None for value in rows[-1]):
        rows.pop()
    check_columns(width, path.name)
    return [(*row[:width], *[None] * (width - len(row))) for row in rows]


def _names(rows: list[tuple[Any, ...]], dialect: Dialect, file: str) -> list[str]:
    if not rows:
        raise InputError(f"{file}, row 1: empty, expected column names; choose another --sheet")
    if not dialect.header:
        return dialect.numbered(len(rows[0]))
    names = ["" if value is None else str(value).strip() for value in rows[0]]
    if any(isinstance(value, datetime.datetime | float) for value in rows[0]):
        raise InputError(
            f"{file}, row 1: {some(map(repr, names), 4)} are values, expected the columns' names; "
            "pass --no-header to number the columns from 1, or add names"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(
            f"{file}, row 1: column {repeated[0]!r} more than once, expected column names; write "
            "one for each"
        )
    return names


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
