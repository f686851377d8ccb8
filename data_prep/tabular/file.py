"""Read a table from a file: CSV, Parquet or Excel."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from data_prep.errors import InputError, no_file, reading
from data_prep.limits import check_expansion
from data_prep.tabular.delimited import read_delimited
from data_prep.tabular.dialect import FIELD, ROW, Dialect, check_columns
from data_prep.tabular.excel import read_excel
from data_prep.tabular.names import SUFFIXES
from data_prep.tabular.origin import Origin
from data_prep.tabular.parquet import unpacked_size
from data_prep.text import as_text

DIALECT = Dialect()
_HOW = {".parquet": "as Parquet", ".xlsx": "as an Excel workbook"}
_WHOLE_NUMBER = r"^(0|[1-9]\d{0,17})$"


def read_table(
    path: Path,
    *,
    text_columns: Container[str] = (),
    dialect: Dialect = DIALECT,
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV, Parquet or Excel file.

    Args:
        path: a file with one of the `SUFFIXES`.
        text_columns: columns of a CSV to keep as text, without type inference.
        dialect: how the file is written.

    Returns:
        The table, NaN or None where a field is empty, and the location of its rows for errors.

    Raises:
        InputError: if the file cannot be read or a line has too few or too many fields.
    """
    if not path.is_file():
        raise no_file(path, "table", f"give one of {', '.join(SUFFIXES)}")
    if as_text(str(path)) != str(path):
        raise InputError(f"{path}: this name is not UTF-8, expected UTF-8 for a table; rename it")
    if not path.name.endswith(SUFFIXES):
        raise InputError(
            f"{path.name}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(SUFFIXES)}; save the table as one of them"
        )
    how = _HOW.get(path.suffix, "as a table in UTF-8")
    remedy = "save it again" if path.suffix in _HOW else "save it again as UTF-8"
    with reading(path.name, how, remedy), _without_panic():
        if path.suffix == ".parquet":
            table, origin = _read_parquet(path)
        elif path.suffix == ".xlsx":
            table, origin = read_excel(path, text_columns, dialect)
        else:
            table, origin = read_delimited(path, text_columns, dialect)
    _check_texts(table, path)
    df = pd.DataFrame({name: _to_pandas(table[name]) for name in table.columns})
    return df, origin


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
    check_columns(len(schema), path.name)
    for name, dtype in schema.items():
        if dtype.is_nested():
            raise InputError(
                f"{path.name}: column {name!r} holds {dtype}, expected numbers, text or times; "
                "unnest it or leave it out"
            )
    n_rows = int(table.select(pl.len()).collect().item())
    n_bytes = n_rows * (ROW + FIELD * len(schema))
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
        return texts.to_numpy()[at.to_numpy().astype(np.intp)]
    values = column.to_numpy()
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        return pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(column.dtype.time_zone)
    return values
