"""Read a text file of separated values, without guessing and without dropping a field.

Numbers may have a decimal comma, and separators of thousands.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import polars as pl

from data_prep.base.errors import InputError, Words, choose, some
from data_prep.base.limits import CHUNK, check_size, gunzip
from data_prep.readers.columns import WITH_COMMA, Origin, looks_like_values

Decimal = Literal["auto", "point", "comma"]
DECIMALS = ("auto", "point", "comma")

_POINT = r"^\s*[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?\s*$"
# Not 1,234, whose comma may separate thousands: another number of digits, a 0, or both marks.
_SURELY = r"^\s*[+-]?(\d*,(\d{1,2}|\d{4,})|0+,\d+|\d{4,},\d+|[1-9]\d{0,2}(\.\d{3})+,\d+)\s*$"

log = logging.getLogger(__name__)


def find_decimal(table: pl.DataFrame, keys: Container[str], origin: Origin) -> Decimal:
    """Return the decimal mark of a table that was read with points.

    It is `"comma"` if the texts allow nothing else, else `"point"`; commas that may separate
    thousands as well are refused. Columns of `keys`, of times and ids, hold no values.
    """
    unclear: str | None = None
    for column in table.iter_columns():
        if column.dtype != pl.String or column.name in keys:
            continue
        texts = column.drop_nulls()
        with_comma = texts.filter(texts.str.contains(",", literal=True))
        if not len(with_comma) or not texts.str.contains(WITH_COMMA).all():
            continue
        if texts.str.contains(_SURELY).any():
            log.info(
                "%s: decimal commas, such as %r in column %r; %s",
                origin.name,
                with_comma[0],
                column.name,
                Words("pass {decimal:point} if they separate thousands"),
            )
            return "comma"
        unclear = unclear or f"column {column.name!r} holds {with_comma[0]!r}"
    if unclear:
        raise InputError(
            f"{origin.name}: {unclear}: a decimal comma or a separator of thousands? ",
            Words(
                "pass {decimal:comma} if it is decimal, {decimal:point} if it separates thousands"
            ),
        )
    return "point"


def to_numbers(
    table: pl.DataFrame, decimal: Decimal, keys: Container[str], origin: Origin
) -> pl.DataFrame:
    """Convert the columns of text that hold numbers only, with separators of thousands or without.

    >>> table = pl.DataFrame({"a": ["1.234,5", None], "b": ["x", "1,5"]})
    >>> to_numbers(table, "comma", [], Origin())["a"].to_list()
    [1234.5, None]
    """
    pattern, thousands = (WITH_COMMA, ".") if decimal == "comma" else (_POINT, ",")
    converted, grouped = [], []
    for column in table.iter_columns():
        if column.dtype != pl.String or column.name in keys:
            continue
        texts = column.drop_nulls()
        if len(texts) and texts.str.contains(pattern).all():
            if decimal == "comma" and texts.str.contains(".", literal=True).any():
                grouped.append(column.name)
            plain = column.str.strip_chars().str.replace_all(thousands, "", literal=True)
            converted.append(plain.str.replace(",", ".", literal=True).cast(pl.Float64))
        elif len(texts) and decimal == "comma" and texts.str.contains(_POINT).all():
            other = texts.filter(~texts.str.contains(pattern))[0]
            raise InputError(
                f"{origin.name}: column {column.name!r} holds {other!r}, which has a decimal "
                "point, expected decimal commas as in the rest of the table; write all numbers "
                "with the same decimal mark"
            )
    if grouped:
        log.warning(
            "%s: points are read as separators of thousands in columns %s, since the table has "
            "decimal commas",
            origin.name,
            some(map(repr, grouped)),
        )
    return table.with_columns(converted)


MAX_COLUMNS = 20_000  # twice the cells of Milan; the parser needs kilobytes for each
ROW, FIELD = 32, 16  # minimum bytes of memory for each while a table is read


@dataclass(frozen=True)
class Dialect:
    """How a file is written.

    The decimal mark `"auto"` takes a comma if nothing else fits; a workbook's `sheet` may be left
    out if it is the only one.
    """

    header: bool = True
    decimal: Decimal = "auto"
    sheet: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in DECIMALS:
            raise choose("decimal mark", self.decimal, DECIMALS)

    @staticmethod
    def numbered(n: int) -> list[str]:
        """Return the names of the columns of a file without a header: 1, 2, and so on."""
        return [str(i) for i in range(1, n + 1)]


def check_columns(n: int, name: str) -> None:
    """Refuse a table with too many columns."""
    if n > MAX_COLUMNS:
        raise InputError(
            f"{name}: {n} columns, expected at most {MAX_COLUMNS}; write a long table, with a row "
            "for each time and cell"
        )


MISSING = ["", "NA", "N/A", "NaN", "nan", "null"]
MAX_HEADER = 2**22  # characters in the line of column names
MIN_LINES = 5  # lines whose numbers show with how many decimals a file is written


def read_delimited(
    path: Path, keys: Container[str], dialect: Dialect
) -> tuple[pl.DataFrame, Origin]:
    """Read a file of values that are separated by commas, semicolons, tabs or bars.

    It may be packed by gzip. Columns of `keys` stay text. A line with too few or too many fields is
    refused.
    """
    with _open(path) as file:
        header = file.readline(MAX_HEADER)
    if len(header) == MAX_HEADER:
        raise InputError(
            f"{path.name}, line 1: longer than {MAX_HEADER:,} characters, expected column names"
        )
    if "\N{REPLACEMENT CHARACTER}" in header:
        raise InputError(
            f"{path.name}, line 1: {header.strip()!r:.100} is not UTF-8; save the table as UTF-8, "
            f"from Latin-1 with pandas.read_csv({path.name!r}, encoding='latin-1')"
            ".to_csv('utf8.csv', index=False)"
        )
    separator = max(",;\t|", key=header.count)
    check_columns(header.count(separator) + 1, path.name)
    first = next(csv.reader([header], delimiter=separator), [])
    names = _names(path, first, dialect)
    origin = Origin(path.name, "line", 2 if dialect.header else 1, is_file=True)
    text = _text_of(path, separator.encode())
    if _is_short(path if text is None else text, separator.encode(), len(names)):
        _check_field_counts(path, separator, len(names))
    _check_end(path, separator)
    source = path if text is None else text
    table = _parse(path, source, separator, names, keys, dialect, dialect.decimal != "auto")
    if table[table.columns[-1]].null_count():
        # Polars fills a short row with nulls, so the last field of such a row is null.
        _check_field_counts(path, separator, len(names))
    decimal = dialect.decimal
    if decimal == "auto" and find_decimal(table, keys, origin) == "comma":
        decimal = "comma"
        table = _parse(path, source, separator, names, keys, dialect, True)
    return (table if decimal == "auto" else to_numbers(table, decimal, keys, origin)), origin


def _names(path: Path, first: list[str], dialect: Dialect) -> list[str]:
    """Return the names of the columns, from the first line or numbered from 1."""
    if not dialect.header:
        return dialect.numbered(len(first))
    if looks_like_values(first):
        raise InputError(
            f"{path.name}, line 1: {', '.join(map(repr, first[:4]))} are values, expected the "
            "columns' names; ",
            Words("pass {no_header} to number the columns from 1, or add names", no_header=True),
        )
    repeated = [name for name, count in Counter(first).items() if count > 1]
    if repeated or not first:
        found = f"column {repeated[0]!r} more than once" if repeated else "nothing"
        raise InputError(f"{path.name}, line 1: {found}, expected column names; write one for each")
    return first


def _parse(
    path: Path,
    source: Path | bytes,
    separator: str,
    names: list[str],
    keys: Container[str],
    dialect: Dialect,
    as_text: bool,
) -> pl.DataFrame:
    try:
        return pl.read_csv(
            source,
            glob=False,
            separator=separator,
            has_header=dialect.header,
            new_columns=None if dialect.header else names,
            infer_schema=not as_text,
            infer_schema_length=None,
            null_values=MISSING,
            schema_overrides={} if as_text else {n: pl.String for n in names if n in keys},
        )
    except pl.exceptions.PolarsError:
        _check_field_counts(path, separator, len(names))
        raise


def _text_of(path: Path, separator: bytes) -> bytes | None:
    """Check a table's size; return its text if the file is packed, else None."""
    if path.suffix != ".gz":
        check_size(4 * path.stat().st_size, path.name)
        return None

    def cost(text: bytes) -> int:
        n_lines = text.count(b"\n")
        return len(text) + FIELD * (text.count(separator) + n_lines) + ROW * n_lines

    return gunzip(path, cost)


def _is_short(source: Path | bytes, separator: bytes, n_columns: int) -> bool:
    """Return whether some line lacks fields; a one-byte line would become a full row of nulls."""
    n_separators = n_lines = 0
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
        while part := file.read(CHUNK):
            if b'"' in part:  # a quoted field may contain separators or newlines
                return False
            n_separators += part.count(separator)
            n_lines += part.count(b"\n")
    return n_separators < (n_columns - 1) * n_lines


def _check_field_counts(path: Path, separator: str, expected: int) -> None:
    with _open(path) as file:
        reader = csv.reader(file, delimiter=separator)
        for row in reader:
            if len(row) != expected:
                raise InputError(
                    f"{path.name}, line {reader.line_num}: {len(row)} fields, expected {expected} "
                    "as in line 1; complete or remove the line"
                )


def _check_end(path: Path, separator: str) -> None:
    """Refuse a last number with fewer decimals than all others; warn of one that may have been cut.

    Many programs end the last line with nothing, so this is not refused. A packed file has its own
    checksum.
    """
    if path.suffix == ".gz":
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - CHUNK))
        tail = file.read()
        if tail.endswith((b"\n", b"\r")):
            return
        file.seek(0)
        number = 1 + sum(part.count(b"\n") for part in iter(lambda: file.read(CHUNK), b""))
    lines = tail.decode(errors="replace").split("\n")
    *others, last = (line.rpartition(separator)[2].strip('"\r ') for line in lines)
    counts = {_decimals(field) for field in others[1:]}  # The first may be names, or a part.
    if len(others) > MIN_LINES and len(counts) == 1 and _decimals(last) < min(counts):
        raise InputError(
            f"{path.name}, line {number}: {last!r} has fewer decimals than all before and no line "
            "end follows it, so the file was cut; get it again, or remove the line"
        )
    log.warning(
        "%s, line %d: no line end after %r; if the file was cut there, get it again",
        path.name,
        number,
        last,
    )


def _decimals(field: str) -> int:
    """Count the digits after the decimal point or comma."""
    found = re.search(r"[.,](\d*)$", field)
    return len(found[1]) if found else 0


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")
