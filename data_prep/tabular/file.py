"""Read a CSV or Parquet file, without guessing and without dropping a field."""

from __future__ import annotations

import csv
import gzip
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
import polars as pl

from data_prep.errors import InputError, no_file, reading
from data_prep.limits import CHUNK, check_expansion, check_size, gunzip
from data_prep.tabular.advice import looks_like_values
from data_prep.tabular.parquet import unpacked_size
from data_prep.text import as_text

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".parquet")
MISSING = ["", "NA", "N/A", "NaN", "nan", "null"]
MAX_NAMED = 12
MAX_HEADER = 2**22  # characters in the line of column names
MAX_COLUMNS = 20_000  # twice the cells of Milan; the parser needs kilobytes for each
ROW, FIELD = 32, 16  # minimum bytes of memory for each while a table is read
_WHOLE_NUMBER = r"^(0|[1-9]\d{0,17})$"


@dataclass(frozen=True)
class Origin:
    """Location of a table's rows, for error messages.

    Args:
        name: the file or object.
        unit: name of a row, such as `"line"`.
        first: number of the first row of data.
        reader: pandas call that reads the table, for advice; empty for a frame.

    >>> Origin("speed.csv", "line", 2).at(3)
    'speed.csv, line 5'
    """

    name: str = "the DataFrame"
    unit: str = "row"
    first: int = 0
    reader: str = ""

    def advice(self, *steps: str, **options: object) -> str:
        """Return a line of pandas code that repairs the table.

        Args:
            steps: statements that change the frame `df`.
            options: arguments of the call that reads the file.
        """
        if not self.reader:
            return f"`{'; '.join(steps)}`"
        given = "".join(f", {name}={value!r}" for name, value in options.items())
        read = f"import pandas as pd; df = {self.reader[:-1]}{given})"
        return f"`{'; '.join([read, *steps])}; df.to_csv('mended.csv', index=False)`"

    def at(self, row: int) -> str:
        """Return the name of a row, counted from 0."""
        return f"{self.name}, {self.unit} {self.first + int(row)}"


def read_table(
    path: Path, *, text_columns: Sequence[str] = (), id_column: str | None = None
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV or Parquet file.

    Args:
        path: a file with one of the `SUFFIXES`.
        text_columns: columns of a CSV to keep as text, without type inference.
        id_column: a column of ids: integers if all of them look like integers, else text.

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
    parquet = path.suffix == ".parquet"
    texts = [*text_columns, *([id_column] if id_column is not None else [])]
    how = "as Parquet" if parquet else "as a table in UTF-8"
    remedy = "save it again" if parquet else "save it again as UTF-8"
    with reading(path.name, how, remedy), _without_panic():
        table, origin = _read_parquet(path) if parquet else _read_text(path, texts)
    if id_column in table.columns:
        table = table.with_columns(whole_numbers(table[id_column]))
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
    _check_columns(len(schema), path.name)
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
    return table.collect(), Origin(path.name, "row", 1, f"pd.read_parquet({path.name!r})")


def _check_columns(n: int, name: str) -> None:
    if n > MAX_COLUMNS:
        raise InputError(
            f"{name}: {n} columns, expected at most {MAX_COLUMNS}; write a long table, with a row "
            "for each time and cell"
        )


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


def _read_text(path: Path, text_columns: Iterable[str]) -> tuple[pl.DataFrame, Origin]:
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
    separator = max(",;\t", key=header.count)
    _check_columns(header.count(separator) + 1, path.name)
    names = next(csv.reader([header], delimiter=separator), [])
    sep = "" if separator == "," else f", sep={separator!r}"
    origin = Origin(path.name, "line", 2, f"pd.read_csv({path.name!r}{sep})")
    if looks_like_values(names):
        wanted = ["time", *(f"cell{i}" for i in range(1, len(names)))]
        raise InputError(
            f"{path.name}, line 1: {', '.join(map(repr, names[:4]))} are values, expected the "
            "columns' names; add your own, such as with "
            f"{origin.advice(header=None, names=wanted[:MAX_NAMED])}"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated or not names:
        found = f"column {repeated[0]!r} more than once" if repeated else "nothing"
        raise InputError(f"{path.name}, line 1: {found}, expected column names; write one for each")
    text = _text_of(path, separator.encode())
    if _is_short(path if text is None else text, separator.encode(), len(names)):
        _check_field_counts(path, separator, len(names))
    try:
        table = pl.read_csv(
            path if text is None else text,
            glob=False,
            separator=separator,
            infer_schema_length=None,
            null_values=MISSING,
            schema_overrides={name: pl.String for name in text_columns if name in names},
        )
    except pl.exceptions.PolarsError:
        _check_field_counts(path, separator, len(names))
        raise
    # Polars fills a short row with nulls, so the last field of such a row is null.
    if table[table.columns[-1]].null_count():
        _check_field_counts(path, separator, len(names))
    return table, origin


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


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


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
