"""Usual names of tables and of their columns: times, cells, places and the calendar."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".parquet", ".xlsx")
"""Ends of the names of files that hold tables."""

TIMES = frozenset({
    "time", "timestamp", "datetime", "date", "ds", "utc", "localtime", "starttime",
})  # fmt: skip
CELLS = frozenset({
    "cell", "cellid", "cellname", "station", "stationid", "stationname", "sensor", "sensorid",
    "site", "siteid", "sitename", "node", "nodeid", "detector", "detectorid", "enodeb", "enb",
    "gnb", "gnodeb", "basestation", "bs", "sector", "link", "linkid", "road", "roadid", "segment",
    "segmentid", "location", "locationid", "square", "squareid", "meter", "meterid", "uniqueid",
})  # fmt: skip
CALENDAR = frozenset({
    "hour", "minute", "weekday", "dayofweek", "dow", "day", "dayofmonth", "dayofyear", "month",
    "year", "week", "weekofyear", "quarter", "isweekend", "weekend", "holiday", "isholiday",
    "hourofday", "timeofday",
})  # fmt: skip
LONGITUDES = frozenset({"lon", "lng", "long", "longitude"})
LATITUDES = frozenset({"lat", "latitude"})


def plain(name: str) -> str:
    """Return a name in lower case, without spaces and marks.

    >>> plain("Station_ID")
    'stationid'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def named(columns: Iterable[str], usual: frozenset[str]) -> list[str]:
    """Return the columns whose name is a usual one.

    >>> named(["Time", "HOUR", "v"], CALENDAR)
    ['HOUR']
    """
    return [column for column in columns if plain(column) in usual]


def number_cells(names: Iterable[str]) -> bool:
    """Return whether names are certainly those of cells: numbers, or `cell_1` and `cell_2`.

    >>> number_cells(["4142", "4143"]), number_cells(["sensor 1"]), number_cells(["counter1"])
    (True, True, False)
    """
    found = [re.fullmatch(r"([a-z]*?)\d+", plain(name)) for name in names]
    return all(match is not None and (match[1] in CELLS | {""}) for match in found)


@dataclass(frozen=True)
class KeyColumns:
    """The names of the columns to keep as text: of times and ids, given or usual.

    Args:
        time: given name of the column of times.
        cell: given name of the column of cells.
    """

    time: str
    cell: str

    def __contains__(self, name: object) -> bool:
        return name in ("", self.time, self.cell) or plain(str(name)) in TIMES | CELLS
