"""Columns of a table: their usual names, values and ids, and the place of a row in messages."""

from __future__ import annotations

import dataclasses
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, close_to
from data_prep.readers.written_times import TIME_LIKE

if TYPE_CHECKING:
    import polars as pl

ARROW = (".feather", ".arrow", ".ipc")
"""Ends of the names of files in Arrow's format."""

TEXTS = (".csv", ".tsv", ".txt")
PACKED = (".gz", ".xz", ".bz2")
JSON = (".json", ".jsonl", ".ndjson")
BINARY = (".parquet", *ARROW, ".h5", ".hdf5", *JSON)
"""Ends of the names of files whose columns have types."""

SUFFIXES = (
    *TEXTS, *(f"{text}{packed}" for packed in PACKED for text in TEXTS), ".xlsx", ".zip", *BINARY
)  # fmt: skip
"""Ends of the names of files that hold tables."""


def names_table(path: str) -> bool:
    """Return whether a file is a table by the end of its name, in letters of any case."""
    return path.lower().endswith(SUFFIXES)


def is_table_in_folder(path: str) -> bool:
    """Return whether a file of a folder is a table; JSON often describes the tables beside it."""
    return names_table(path) and not path.lower().endswith(".json")


TIMES = frozenset({
    "time", "timestamp", "datetime", "date", "ds", "utc", "localtime", "starttime", "begintime",
    "startdate", "dateid", "timeid", "periodstarttime", "resulttime", "collecttime",
    "datum", "zeit", "uhrzeit", "zeitpunkt", "zeitstempel", "fecha", "fechahora", "hora", "heure",
    "horodatage", "data", "dataora", "ora", "periodo", "inicio", "时间", "日期", "时段",
    "开始时间", "起始时间", "采集时间", "统计时间",
})  # fmt: skip
CELLS = frozenset({
    "cell", "cellid", "cellname", "station", "stationid", "stationname", "sensor", "sensorid",
    "sensorname", "site", "siteid", "sitename", "node", "nodeid", "detector", "detectorid",
    "enodeb", "enb",
    "gnb", "gnodeb", "basestation", "bs", "sector", "link", "linkid", "road", "roadid", "segment",
    "segmentid", "location", "locationid", "square", "squareid", "meter", "meterid", "uniqueid",
    "eutrancell", "eutrancellname", "eutrancellfdd", "eutrancellid", "nrcell", "nrcellname",
    "nrcelldu", "nrcellid", "ucell", "localcellid", "lncel", "lncelname", "lnbts", "lnbtsname",
    "mrbts", "mrbtsname", "wcel", "managedelement", "managedelementname", "meid", "mename", "ne",
    "nename", "neid", "networkelement", "object", "objectname", "enodebname", "enodebid",
    "gnodebname", "gnodebid", "cellfdnname", "counterid", "countername", "gate", "zone", "zoneid",
    "stopid", "stopname", "standort", "zelle", "zellname", "celda", "cellule", "estacion",
    "stazione", "haltestelle", "zahlstelle", "zst", "scn", "小区", "小区名称", "站点", "站点名称",
    "车站", "车站名称", "网元", "网元名称",
})  # fmt: skip
HOURS = frozenset({
    "hour", "hr", "hours", "hourofday", "stunde", "heure", "hora", "ora", "time", "hourid",
    "hourending", "hourbeginning", "hourbegin", "hourstart", "he", "uhrzeit", "小时",
})  # fmt: skip
MINUTES = frozenset({"minute", "minutes", "minuteid", "minid", "分钟"})
DATE_PARTS = (
    frozenset({"year", "yr", "jahr", "annee", "ano", "anno", "yearid", "年", "年份"}),
    frozenset({"month", "monthname", "monat", "mois", "mes", "mese", "monthid", "月", "月份"}),
    frozenset({"day", "dayofmonth", "tag", "jour", "dia", "giorno", "dayid", "日"}),
)
"""Usual names of columns of years, months and days of the month."""
CALENDAR = frozenset({
    "hour", "minute", "weekday", "dayofweek", "dow", "day", "dayofmonth", "dayofyear", "month",
    "year", "week", "weekofyear", "quarter", "isweekend", "weekend", "holiday", "isholiday",
    "hourofday", "timeofday", "period", "periodmin", "granularity", "granularityperiod", "gp",
    "granularityperiodmin", "periodsec", "index", "rowid", "rownumber", "no", "nr", "hourid",
    "timeinterval", "reliability", "integrity", "id", "mdate", "wotag", "周期", "周期分钟",
    "integrationperiod", "periodointegracion",
    "imsi", "msisdn", "imei", "imeisv",
})  # fmt: skip
LONGITUDES = frozenset({"lon", "lng", "long", "longitude"})
LATITUDES = frozenset({"lat", "latitude"})


def _plain(name: str) -> str:
    """Return a name in lower case, without spaces, marks and accents.

    >>> _plain("Station_ID"), _plain("Estación")
    ('stationid', 'estacion')
    """
    letters = unicodedata.normalize("NFKD", name.lower())
    return "".join(letter for letter in letters if letter.isalnum())


def named(columns: Iterable[str], usual: frozenset[str]) -> list[str]:
    """Return the columns whose name is a usual one.

    >>> named(["Time", "HOUR", "v"], CALENDAR)
    ['HOUR']
    """
    return [column for column in columns if _plain(column) in usual]


def number_cells(names: Iterable[str]) -> bool:
    """Return whether names are certainly those of cells: numbers, or `cell_1` and `cell_2`.

    >>> number_cells(["4142", "4143"]), number_cells(["sensor 1"]), number_cells(["counter1"])
    (True, True, False)
    """
    found = [re.fullmatch(r"([a-z]*?)\d+", _plain(name)) for name in names]
    return all(match is not None and (match[1] in CELLS | {""}) for match in found)


@dataclass(frozen=True)
class KeyColumns:
    """The names of the columns to keep as text: of times and ids, given or usual."""

    time: str
    cell: str

    def __contains__(self, name: object) -> bool:
        given = (*self.time.split(","), *self.cell.split(","), self.time, self.cell, "")
        return name in given or _plain(str(name)) in TIMES | CELLS


@dataclass(frozen=True)
class Origin:
    """Location of a table's rows, for error messages.

    Rows of a file or object are named by `unit`, such as "line", and a number from `first` on; if
    some were left out, `rows` `(rows,)` are their positions. `is_file` says whether options apply.
    Columns may have `units`, and `levels` if two rows name them; `timed` says that rows have times,
    `as_text` that numbers are text. In a `stack` of several files, each begins at a row. `texts`
    reads a column of a text file once more, as it is written. `beside` are columns with one value
    for all times that were across.

    >>> Origin("speed.csv", "line", 2).at(3)
    'speed.csv, line 5'
    """

    name: str = "the DataFrame"
    unit: str = "row"
    first: int = 0
    is_file: bool = False
    rows: np.ndarray | None = field(default=None, compare=False)
    units: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    timed: bool = False
    as_text: bool = False
    stack: Sequence[tuple[int, Origin]] = ()
    beside: Sequence[str] = ()
    texts: Callable[[str, np.ndarray | None], pl.Series] | None = field(default=None, compare=False)

    def of_rows(self, at: np.ndarray) -> Origin:
        """Return the place of some rows, of one file if they all stand in the first."""
        rows = at if self.rows is None else self.rows[at]
        if len(self.stack) > 1 and rows.max(initial=0) < self.stack[1][0]:
            return self.stack[0][1].of_rows(rows)
        return dataclasses.replace(self, rows=rows)

    def as_written(self, column: str) -> pl.Series | None:
        """Return a column as text, such as `007`; None if it was not read from texts."""
        if not self.stack:
            return None if self.texts is None else self.texts(column, self.rows)
        parts = [part.as_written(column) for _, part in self.stack]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        import polars as pl  # slow to import, which a cube need not wait for

        return pl.concat(known) if self.rows is None else pl.concat(known)[self.rows]

    def at(self, row: int) -> str:
        """Return the name of a row, counted from 0."""
        return self.place(row) if self.stack else f"{self.name}, {self.place(row)}"

    def place(self, row: int) -> str:
        """Return the number of a row in its file, and the file if there are several."""
        if not self.stack:
            return f"{self.unit} {self.number(row)}"
        start, part = next(s for s in reversed(self.stack) if s[0] <= self.number(row))
        return part.at(self.number(row) - start)

    def number(self, row: int) -> int:
        """Return the number of a row in the file, or in the frame."""
        return self.first + int(row if self.rows is None else self.rows[row])

    def either(self, option: Words, *steps: str) -> str | Words:
        """Return advice: an option for a file, statements that change the frame `df` otherwise."""
        return option if self.is_file else f"`{'; '.join(steps)}`"


WITH_COMMA = r"^\s*[+-]?([0-9]+|[1-9][0-9]{0,2}(\.[0-9]{3})+)(,[0-9]+)?\s*$"
"""Numbers with a decimal comma or without, and separators of thousands, which follow no 0."""


def has_comma(text: str) -> bool:
    """Return whether a text may be a number with a decimal comma.

    >>> has_comma("1,5"), has_comma("1.234,5"), has_comma("1.5"), has_comma("a,5")
    (True, True, False, False)
    """
    return "," in text and re.match(WITH_COMMA, text) is not None


def looks_like_values(names: Sequence[str]) -> bool:
    """Return whether a file's first line holds values: a time, or numbers with a decimal point.

    >>> looks_like_values(["2017-10-23 03:00", "a", "7"]), looks_like_values(["time", "1", "2"])
    (True, False)
    >>> looks_like_values(["1", "2", "3"]), looks_like_values(["1", "0.5", "0.5"])
    (False, True)
    """
    if any(re.match(TIME_LIKE, n) and not n.strip().isdigit() for n in names):
        return True
    numbers = [n for n in names if re.fullmatch(r"-?\d*\.?\d+(e[+-]?\d+)?", n, re.IGNORECASE)]
    return len(numbers) == len(names) > 1 and any("." in n for n in numbers)


def frequency(step: pd.Timedelta) -> str:
    """Return a step as a pandas frequency, such as `"2min"`.

    >>> frequency(pd.Timedelta("1h"))
    '1h'
    """
    return re.sub(r"^(?=\D)", "1", str(pd.tseries.frequencies.to_offset(step).freqstr))


MAX_NAMES = 400
"""Maximum number of characters of column names in an error."""

log = logging.getLogger(__name__)

LARGEST = 2.0**53 - 1
"""Largest absolute value: integers beyond are rounded without a word. Sums of a million squares fit
into single precision."""


def which_of(message: str, option: str, names: Sequence[str]) -> InputError:
    """Return an error that asks which of some columns to take, with the option for each."""
    shown = names[:6]
    choices = [Words(f"{{{option}}}", **{option: name}) for name in shown]
    parts = [part for choice in choices for part in (" or ", choice)][1:]
    return InputError(message % ", ".join(map(repr, shown)), "choose one: ", *parts)


def no_column(name: str, columns: Sequence[str] | pd.Index, origin: Origin) -> str:
    """Say that a table has no column of a name, and which it has."""
    found = ", ".join(map(repr, columns[:20]))[:MAX_NAMES]
    return f"{origin.name}: no column {name!r} among {found}{close_to(name, columns)}; "


def require_columns(df: pd.DataFrame, columns: Iterable[str], origin: Origin) -> None:
    """Check that a table has all of `columns`."""
    for column in columns:
        if column not in df.columns:
            raise InputError(no_column(column, df.columns, origin), "rename one or choose another")


def value_columns(
    df: pd.DataFrame, keys: Sequence[str], values: Sequence[str] | None, origin: Origin
) -> list[str]:
    """Return the columns to read: `values`, else all but `keys` with at least one number."""
    require_columns(df, (*keys, *(values or ())), origin)
    others = [c for c in df.columns if c not in keys]
    has_numbers = {} if values else {c: _holds_numbers(df[c]) for c in others}
    columns = list(values) if values else [c for c in others if has_numbers[c]]
    for c in columns if values else others:
        _refuse_commas(df[c], origin)
    if values is None:
        columns = _values_among(columns, origin)
    if not columns:
        raise InputError(
            f"{origin.name}: no column of numbers beside {', '.join(keys)}; add one or, if each "
            "row is an event such as a trip, ",
            Words("count them with {resample:1h} {agg:count}"),
        )
    if values is None and (text := [c for c in others if not has_numbers[c]]):
        log.warning("%s: columns without numbers are left out: %s", origin.name, text)
    return columns


ID_NAME = r"(^|[ _.-])([iI][dD]|[cC]ode|[nN]o)$|[a-z]I[dD]$"
"""End of the name of a column of ids or codes, such as `Session ID`."""


def without_calendar(columns: Iterable[str]) -> list[str]:
    """Return the columns that are none of the calendar, of periods and of places."""
    usual = CALENDAR | TIMES | LONGITUDES | LATITUDES
    return [c for c in columns if not (isinstance(c, str) and named([c], usual))]


def _values_among(columns: list[str], origin: Origin) -> list[str]:
    """Leave out columns of the calendar, periods, places, days and ids, with a notice."""
    left = [c for c in without_calendar(columns) if c not in origin.beside]
    left = [c for c in left if not re.search(ID_NAME, c)]
    known = [c for c in columns if c not in left]
    if known and left:
        log.info(
            "%s: not taken as values: %s; %s",
            origin.name,
            ", ".join(known),
            Words("pass {values} to choose columns"),
        )
        return left
    return columns


def written(value: object) -> str:
    """Return a value as Python writes it, and a NumPy scalar as the number or text that it holds.

    >>> written(np.int64(4142)), written(np.str_("a")), written("b")
    ('4142', "'a'", "'b'")
    """
    return repr(value.item() if isinstance(value, np.generic) else value)


def is_text(column: pd.Series) -> bool:
    """Return whether a column holds neither numbers nor times."""
    return not (types.is_numeric_dtype(column) or types.is_datetime64_any_dtype(column))


def _holds_numbers(column: pd.Series) -> bool:
    """Return whether a column holds numbers; of texts, at least half, as hashes may look like some.

    >>> [_holds_numbers(pd.Series(v)) for v in (["1", "2", "x"], ["7e12", "a3", "b4"], [None])]
    [True, False, True]
    """
    if not is_text(column):
        return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    return bool(column.isna().all()) or bool(
        np.isnan(_coerce(pd.Series(column.dropna().unique()))).mean() <= 0.5
    )


def _refuse_commas(column: pd.Series, origin: Origin) -> None:
    """Refuse a column whose first text is a number with a decimal comma."""
    filled = np.flatnonzero(column.notna())
    first = column.iloc[filled[0]] if filled.size else None
    if not isinstance(first, str) or not has_comma(first):
        return
    name = written(column.name)
    at = f"df[{name}]"
    advice = origin.either(
        Words("pass {decimal:comma}"), f"{at} = {at}.str.replace(',', '.').astype(float)"
    )
    raise InputError(
        f"{origin.at(filled[0])}: column {name} holds {first!r}, which has a decimal "
        "comma, expected numbers with a decimal point in all rows; ",
        advice,
        ", and look at the rows that are not numbers",
    )


def numbers(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return a column as `(rows,)` float64, NaN where empty; refuse other than finite numbers."""
    values = _coerce(column)
    no_number = np.isnan(values) & column.notna().to_numpy()
    wrong = np.flatnonzero(no_number | (np.abs(values) > LARGEST))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"{origin.at(row)}: column {written(column.name)} holds {str(column.iloc[row])!r}, "
            f"expected a finite number of at most {LARGEST:g}; correct it, leave it empty if "
            "missing, or choose other columns"
        )
    return values


def _coerce(column: pd.Series) -> np.ndarray:
    """Return a column as `(rows,)` float64, NaN where it holds no number."""
    if types.is_bool_dtype(column) or types.is_datetime64_any_dtype(column):
        return np.full(len(column), np.nan)
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def cell_ids(ids: pd.Index, origin: Origin) -> np.ndarray:
    """Return cell ids as an array of integers or of text, `(cell,)`."""
    if ids.has_duplicates:
        raise InputError(
            f"{origin.name}: cell {written(ids[ids.duplicated()][0])} occurs more than once "
            "among the columns, expected one column per cell; rename or merge them"
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
    """Return the sorted cell ids `(cells,)` and each row's position among them, `(rows,)`."""
    refuse_empty(cells, "cell id", origin)
    codes, ids = pd.factorize(cells)
    named = cell_ids(pd.Index(ids), origin)
    order = np.argsort(named)
    return named[order], np.argsort(order)[codes]


def refuse_empty(column: pd.Series, what: str, origin: Origin) -> None:
    """Check that a column has no empty field."""
    empty = np.flatnonzero(column.isna())
    if empty.size:
        raise InputError(
            f"{origin.at(empty[0])}: empty {what} ({empty.size} in all; NA, N/A, NaN, nan and null "
            "count as empty), expected one in every row; fill it in, rename it or remove the row"
        )
