"""Columns of a table: their usual names, values and ids, and the place of a row in messages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, close_to
from data_prep.readers.origin import Origin
from data_prep.readers.written_times import TIME_LIKE

TIMES = frozenset({
    "time", "timestamp", "datetime", "date", "ds", "ts", "utc",
    "localtime", "starttime", "begintime",
    "startdate", "dateid", "timeid", "periodstarttime", "resulttime", "collecttime",
    "datum", "zeit", "uhrzeit", "zeitpunkt", "zeitstempel", "fecha", "fechahora", "hora", "heure",
    "horodatage", "data", "dataora", "ora", "periodo", "inicio", "时间", "日期", "时段",
    "开始时间", "起始时间", "采集时间", "统计时间", "時刻", "日時", "日付", "年月日",
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
    "车站", "车站名称", "网元", "网元名称", "基地局", "セル", "地点", "観測地点",
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
    "imsi", "msisdn", "imei", "imeisv", "offset", "partition",
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
    """Return the columns whose name is a usual one, also of a field of an object.

    >>> named(["Time", "HOUR", "v", "message.hour"], CALENDAR)
    ['HOUR', 'message.hour']
    """
    fields = {c: c if " " in c else c.rpartition(".")[2] for c in columns}
    return [c for c, field in fields.items() if {_plain(c), _plain(field)} & usual]


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


WITH_COMMA = (
    r"^\s*[+-]?([1-9][0-9]{0,2}(\.[0-9]{3})+(,[0-9]+)?|[0-9]+(,[0-9]+)?([eE][+-]?[0-9]+)?)\s*$"
)
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


LARGEST = 2.0**53 - 1
"""Largest absolute value: integers beyond are rounded without a word. Sums of a million squares fit
into single precision."""


def which_of(message: str, option: str, names: Sequence[str]) -> InputError:
    """Return an error that asks which of some columns to take, with the option for each."""
    shown = names[:6]
    choices = [Words(f"{{{option}}}", **{option: name}) for name in shown]
    return InputError(message % ", ".join(map(repr, shown)), "choose one: ", *either(choices))


def either(choices: Sequence[Words]) -> list[str | Words]:
    """Return words with " or " between them."""
    return [part for choice in choices for part in (" or ", choice)][1:]


def no_column(name: str, columns: Sequence[str], origin: Origin) -> str:
    """Say that a table has no column of a name, and which it has."""
    found = ", ".join(map(repr, columns[:20]))[:400]
    return f"{origin.name}: no column {name!r} among {found}{close_to(name, columns)}; "


def require_columns(names: Sequence[str], columns: Iterable[str], origin: Origin) -> None:
    """Check that all of `columns` are among a table's names."""
    for column in columns:
        if column not in names:
            raise InputError(no_column(column, names, origin), "rename one or choose another")


ID_NAME = r"(^|[ _.-])([iI][dD]|[cC]ode|[nN]o)$|[a-z]I[dD]$"
"""End of the name of a column of ids or codes, such as `Session ID`."""


def without_calendar(columns: Iterable[str]) -> list[str]:
    """Return the columns that are none of the calendar, of periods and of places."""
    usual = CALENDAR | TIMES | LONGITUDES | LATITUDES
    return [c for c in columns if not (isinstance(c, str) and named([c], usual))]


def written(value: object) -> str:
    """Return a value as Python writes it, and a NumPy scalar as the number or text that it holds.

    >>> written(np.int64(4142)), written(np.str_("a")), written("b")
    ('4142', "'a'", "'b'")
    """
    return repr(value.item() if isinstance(value, np.generic) else value)


def numbers(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return a column as `(rows,)` float64, NaN where empty; refuse other than finite numbers."""
    values = coerce(column)
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


def coerce(column: pd.Series) -> np.ndarray:
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
