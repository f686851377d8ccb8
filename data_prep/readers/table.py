"""A table on its way from a file to a cube."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from data_prep.readers.origin import Origin

Codes = tuple[np.ndarray, list[Any]]
"""The number of each value of a column among its different ones, `(rows,)`, and these."""


@dataclass(frozen=True)
class Table:
    """A table and the findings so far.

    Attributes:
        columns: its columns, `(rows,)` each.
        origin: where its rows stand.
        name: name of the file, sheet or member of a zip.
        times: names of the columns of times, or of their parts.
        cells: names of the columns that name a cell together.
        values: names of the columns of values.
        kind: `"long"`, one row per time and cell; `"wide"`, one column per cell; `"services"`, one
            column per service of a single cell; or `"auto"` if it is still to be found.
        units: units of columns by name.
        levels: upper and lower name of the columns that two rows name.
        labels: texts above the names by their labels, such as Site.
        timed: whether a row of a text or a sheet was recognised by its time.
        as_text: whether its columns are texts, whatever they hold.
        separator: what separates the fields of a text.
        typed: whether its format gives columns types.
        mark: decimal mark of its numbers; empty without one.
        ends: name of the times that are ends of steps; empty if none are, None if not known.
        beside: columns with one value for all times that were across.
        decided: options by name with which a later table is read in the same way.
        about: title, source and checksums for the cube.
    """

    columns: pl.DataFrame = field(default_factory=pl.DataFrame)
    origin: Origin = field(default_factory=Origin)
    name: str = ""
    times: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    kind: str = "auto"
    units: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    timed: bool = False
    as_text: bool = False
    separator: str = ""
    typed: bool = False
    mark: str = ""
    ends: str | None = None
    beside: Sequence[str] = ()
    decided: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    _codes: dict[str, Codes] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, column: object) -> bool:
        return column in self.columns.columns

    def __getitem__(self, column: str) -> pl.Series:
        return self.columns[column]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return self.columns.columns

    @property
    def time(self) -> str:
        """The column of times."""
        return self.times[0]

    def with_(self, **changes: Any) -> Table:
        """Return a table with other attributes."""
        codes = {} if "columns" in changes else self._codes
        return dataclasses.replace(self, **{"_codes": codes, **changes})

    def deciding(self, **options: Any) -> Table:
        """Return a table with options by which a later one is read in the same way."""
        return self.with_(decided={**self.decided, **options})

    def with_columns(self, *columns: pl.Series) -> Table:
        """Return a table with further or other columns."""
        new = {column.name for column in columns}
        codes = {name: own for name, own in self._codes.items() if name not in new}
        return self.with_(columns=self.columns.with_columns(columns), _codes=codes)

    def without(self, columns: Sequence[str]) -> Table:
        """Return a table without some columns."""
        if not columns:
            return self
        return self.with_(columns=self.columns.drop(columns), _codes=self._codes)

    def take(self, rows: np.ndarray) -> Table:
        """Return some rows, by their positions."""
        return self.with_(columns=self.columns[rows], origin=self.origin.of_rows(rows))

    def rename(self, new: Mapping[str, str]) -> Table:
        """Return a table with other names of columns."""
        if not new:
            return self
        return self.with_(
            columns=self.columns.rename(new),
            values=tuple(new.get(name, name) for name in self.values),
            units={new.get(name, name): unit for name, unit in self.units.items()},
        )

    def codes(self, name: str) -> Codes:
        """Return the number of each value of a column in the order of appearance, and the values.

        Missing values have the number -1.
        """
        if name not in self._codes:
            self._codes[name] = _codes_of(self.columns[name])
        return self._codes[name]

    def n_unique(self, *names: str) -> int:
        """Return the number of different rows in some columns."""
        together, n = np.zeros(len(self), dtype=np.int64), 1
        for name in names:
            codes, known = self.codes(name)
            n *= len(known) + 1
            if n > 2**62:  # They would not fit into an integer.
                return self.columns.select(names).n_unique()
            together = together * (len(known) + 1) + codes
        return len(pd.unique(together))

    def repeats(self, *names: str) -> bool:
        """Return whether rows repeat an earlier one in some columns."""
        return self.n_unique(*names) < len(self)

    def share_repeated(self, *names: str) -> float:
        """Return the share of rows that repeat an earlier one in some columns."""
        return 1 - self.n_unique(*names) / max(1, len(self))

    def packed(self) -> Table:
        """Return a table that holds texts of times and cells once; pandas shares its numbers."""
        names = [c for c in (*self.times, *self.cells) if self[c].dtype == pl.String]
        kinds = {name: pl.Enum(self.codes(name)[1]) for name in names}
        columns = self.columns.with_columns(pl.col(c).cast(kind) for c, kind in kinds.items())
        return self.with_(columns=columns.rechunk(), _codes=self._codes)

    def series(self, name: str) -> pd.Series:
        """Return a column for pandas, whose texts are categories."""
        column = self.columns[name]
        if column.dtype not in (pl.String, pl.Enum):
            return pd.Series(_to_pandas(column), name=name, copy=False)
        codes, known = self.codes(name)  # Times and ids repeat often.
        kind = pd.CategoricalDtype(known)
        return pd.Series(pd.Categorical.from_codes(codes, dtype=kind), name=name)

    def frame(self) -> pd.DataFrame:
        """Return the columns for pandas, whose texts are categories."""
        return pd.DataFrame({name: self.series(name) for name in self.names})


def _codes_of(column: pl.Series) -> Codes:
    if isinstance(column.dtype, pl.Enum):
        codes = column.to_physical().cast(pl.Int32).fill_null(-1).to_numpy()
        return codes, list(column.dtype.categories)
    if column.dtype != pl.String:
        codes, known = pd.factorize(_to_pandas(column))
        return codes, list(known)
    distinct = column.unique(maintain_order=True).drop_nulls()
    at = column.cast(pl.Enum(distinct)).to_physical().cast(pl.Int32).fill_null(-1)
    return at.to_numpy(), distinct.to_list()


def _to_pandas(column: pl.Series) -> np.ndarray | pd.DatetimeIndex:
    if column.dtype == pl.Int128:  # whole numbers of 20 digits or more; NumPy has no such type
        return np.array(column.to_list(), dtype=object)
    values = column.to_numpy()
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        return pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(column.dtype.time_zone)
    return values


def from_pandas(df: pd.DataFrame) -> pl.DataFrame:
    """Return a frame without its index; what is neither number nor time becomes text."""
    return pl.DataFrame([_from_pandas(str(name), column) for name, column in df.items()])


def without_nan(columns: pl.DataFrame) -> pl.DataFrame:
    """Return columns in which what is no number is missing."""
    return columns.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))


def _from_pandas(name: str, column: pd.Series) -> pl.Series:
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        utc = pl.Series(name, column.dt.tz_convert(None).to_numpy())
        return utc.dt.replace_time_zone("UTC").dt.convert_time_zone(str(column.dt.tz))
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biufM":
        return pl.Series(name, column.to_numpy())
    return pl.Series(name, [None if pd.isna(v) else str(v) for v in column], dtype=pl.String)


def is_text(column: pl.Series) -> bool:
    """Return whether a column holds neither numbers nor times."""
    kind = column.dtype
    known = kind.is_numeric() or isinstance(kind, pl.Boolean | pl.Date | pl.Datetime)
    return not known or kind == pl.Int128  # wider than any number


def is_float(column: pl.Series) -> bool:
    """Return whether a column holds numbers that are not all whole and known."""
    return column.dtype.is_float() or (column.dtype.is_integer() and column.null_count() > 0)


def n_known(column: pl.Series) -> int:
    """Return the number of different values, without missing ones."""
    return column.drop_nulls().n_unique()


def as_numbers(column: pl.Series) -> pl.Series:
    """Return numbers, also of texts; missing where a value is none."""
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    texts = column.str.strip_chars() if column.dtype == pl.String else column
    return texts.cast(pl.Float64, strict=False)
