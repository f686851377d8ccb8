"""Numbers written with a decimal comma, and with separators of thousands."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Literal

import polars as pl

from data_prep.errors import InputError
from data_prep.tabular.advice import WITH_COMMA
from data_prep.tabular.origin import Origin
from data_prep.text import some

Decimal = Literal["auto", "point", "comma"]
DECIMALS = ("auto", "point", "comma")

_POINT = r"^\s*[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?\s*$"
# Not 1,234, whose comma may separate thousands: another number of digits, a 0, or both marks.
_SURELY = r"^\s*[+-]?(\d*,(\d{1,2}|\d{4,})|0+,\d+|\d{4,},\d+|[1-9]\d{0,2}(\.\d{3})+,\d+)\s*$"

log = logging.getLogger(__name__)


def find_decimal(table: pl.DataFrame, keys: Container[str], origin: Origin) -> Decimal:
    """Find the decimal mark of a table that was read with points.

    Args:
        table: the table; a column with commas holds text.
        keys: columns of times and ids, which hold no values.
        origin: location of the rows.

    Returns:
        `"comma"` if the texts allow nothing else, else `"point"`.

    Raises:
        InputError: if the commas may separate thousands as well.
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
                "%s: decimal commas, such as %r in column %r; pass --decimal point if they "
                "separate thousands", origin.name, with_comma[0], column.name,
            )  # fmt: skip
            return "comma"
        unclear = unclear or f"column {column.name!r} holds {with_comma[0]!r}"
    if unclear:
        raise InputError(
            f"{origin.name}: {unclear}: a decimal comma or a separator of thousands? pass "
            "--decimal comma if it is decimal, --decimal point if it separates thousands"
        )
    return "point"


def to_numbers(
    table: pl.DataFrame, decimal: Decimal, keys: Container[str], origin: Origin
) -> pl.DataFrame:
    """Convert the columns of text that hold numbers only, with separators of thousands or without.

    Args:
        table: the table, as text.
        decimal: the decimal mark of the whole table.
        keys: columns of times and ids, which hold no values.
        origin: location of the rows.

    Raises:
        InputError: if another column has decimal points in a table with decimal commas.

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
            "decimal commas", origin.name, some(map(repr, grouped)),
        )  # fmt: skip
    return table.with_columns(converted)
