"""Parse the columns of a table: cell ids and values."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.errors import InputError, close_to
from data_prep.tabular.advice import has_comma
from data_prep.tabular.names import CALENDAR, LATITUDES, LONGITUDES, named

if TYPE_CHECKING:
    from data_prep.tabular.origin import Origin

MAX_NAMES = 400
"""Maximum number of characters of column names in an error."""

log = logging.getLogger(__name__)

LARGEST = 1e16
"""Largest absolute value; sums of a million squares fit into single precision."""


def require_columns(df: pd.DataFrame, columns: Iterable[str], origin: Origin) -> None:
    """Check that a table has all of `columns`.

    Raises:
        InputError: if a column is missing.
    """
    for column in columns:
        if column not in df.columns:
            found = ", ".join(map(repr, df.columns[:20]))
            if len(found) > MAX_NAMES:
                found = f"{found[:MAX_NAMES]}…"
            raise InputError(
                f"{origin.name}: no column {column!r} among {found}{close_to(column, df.columns)}; "
                "rename one or choose another"
            )


def value_columns(
    df: pd.DataFrame, keys: Sequence[str], values: Sequence[str] | None, origin: Origin
) -> list[str]:
    """Return the columns to read: `values`, else all but `keys` with at least one number.

    Raises:
        InputError: if there is none, or one of `values` is missing.
    """
    require_columns(df, (*keys, *(values or ())), origin)
    others = [c for c in df.columns if c not in keys]
    columns = list(values) if values else [c for c in others if _holds_numbers(df[c])]
    for c in columns if values else others:
        _refuse_commas(df[c], origin)
    if values is None:
        columns = _without_calendar(columns, origin)
    if not columns:
        raise InputError(f"{origin.name}: no column of numbers beside {', '.join(keys)}; add one")
    if values is None and (text := [c for c in others if not _holds_numbers(df[c])]):
        log.warning("%s: columns without numbers are left out: %s", origin.name, text)
    return columns


def _without_calendar(columns: list[str], origin: Origin) -> list[str]:
    """Leave out columns of the calendar and of places, such as `HOUR` and `lon`, with a notice."""
    names = [c for c in columns if isinstance(c, str)]
    known = named(names, CALENDAR | LONGITUDES | LATITUDES)
    if known and len(known) < len(columns):
        log.info(
            "%s: not taken as values: %s; --values names columns to take", origin.name,
            ", ".join(known),
        )  # fmt: skip
        return [c for c in columns if c not in known]
    return columns


def is_text(column: pd.Series) -> bool:
    """Return whether a column holds neither numbers nor times."""
    return not (types.is_numeric_dtype(column) or types.is_datetime64_any_dtype(column))


def _holds_numbers(column: pd.Series) -> bool:
    return bool(column.isna().all()) or not bool(np.isnan(_coerce(column)).all())


def _refuse_commas(column: pd.Series, origin: Origin) -> None:
    """Refuse a column whose first text is a number with a decimal comma."""
    filled = np.flatnonzero(column.notna())
    first = column.iloc[filled[0]] if filled.size else None
    if not isinstance(first, str) or not has_comma(first):
        return
    at = f"df[{column.name!r}]"
    advice = origin.either(
        "pass --decimal comma", f"{at} = {at}.str.replace(',', '.').astype(float)"
    )
    raise InputError(
        f"{origin.at(filled[0])}: column {column.name!r} holds {first!r}, which has a decimal "
        f"comma, expected numbers with a decimal point in all rows; {advice}, and look at the rows "
        "that are not numbers"
    )


def numbers(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return a column as `(rows,)` float64, NaN where empty.

    Raises:
        InputError: if a row holds anything but a finite number of at most `LARGEST`.
    """
    values = _coerce(column)
    no_number = np.isnan(values) & column.notna().to_numpy()
    wrong = np.flatnonzero(no_number | (np.abs(values) > LARGEST))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"{origin.at(row)}: column {column.name!r} holds {str(column.iloc[row])!r}, expected a "
            f"finite number of at most {LARGEST:g}; correct it, leave it empty if missing, or "
            "choose other columns"
        )
    return values


def _coerce(column: pd.Series) -> np.ndarray:
    """Return a column as `(rows,)` float64, NaN where it holds no number."""
    if types.is_bool_dtype(column) or types.is_datetime64_any_dtype(column):
        return np.full(len(column), np.nan)
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def cell_ids(ids: pd.Index, origin: Origin) -> np.ndarray:
    """Return cell ids as an array of integers or of text, `(cell,)`.

    Raises:
        InputError: if an id is neither, or occurs more than once.
    """
    if ids.has_duplicates:
        raise InputError(
            f"{origin.name}: cell {ids[ids.duplicated()][0]!r} occurs more than once among the "
            "columns, expected one column per cell; rename or merge them"
        )
    if types.is_integer_dtype(ids):
        return ids.to_numpy(dtype=np.int64)
    odd = [i for i in ids if not isinstance(i, str)]
    if odd:
        raise InputError(
            f"{origin.name}: cell id {odd[0]!r} is a {type(odd[0]).__name__}, expected integers "
            "or text throughout; convert the ids"
        )
    if nul := [i for i in ids if "\0" in i]:
        raise InputError(f"{origin.name}: cell id {nul[0]!r} holds a zero byte; remove it")
    return np.array(list(ids), dtype=str)


def factorize(cells: pd.Series, origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted cell ids `(cells,)` and each row's position among them, `(rows,)`.

    Raises:
        InputError: if an id is empty, or neither an integer nor text.
    """
    refuse_empty(cells, "cell id", origin)
    codes, ids = pd.factorize(cells)
    named = cell_ids(pd.Index(ids), origin)
    order = np.argsort(named)
    return named[order], np.argsort(order)[codes]


def refuse_empty(column: pd.Series, what: str, origin: Origin) -> None:
    """Check that a column has no empty field.

    Raises:
        InputError: if a field is empty; `what` names the column in the message.
    """
    empty = np.flatnonzero(column.isna())
    if empty.size:
        raise InputError(
            f"{origin.at(empty[0])}: empty {what} ({empty.size} in all), expected one in every "
            "row; fill it in or remove the row"
        )
