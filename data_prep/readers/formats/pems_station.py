"""Caltrans PeMS's texts of stations, `d04_text_station_5min_2024_03_01.txt`, without a header.

Source: https://pems.dot.ca.gov, Data Clearinghouse, "Station 5-Minute". Twelve columns are of a
station, five more of each of its lanes. Times are California's wall clock, month first. Where 0 %
of a period was observed, PeMS wrote what it imputed: these values are missing.
"""

from __future__ import annotations

import re
from collections.abc import Container

import polars as pl

from data_prep.base.errors import counted
from data_prep.readers.formats import Format, Part, contents, table_of
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table

log = StepLog("decode")

COLUMNS = ("time", "station", "district", "freeway", "direction", "lane_type", "length", "samples",
           "observed", "flow", "occupancy", "speed")  # fmt: skip
VALUES = ("flow", "occupancy", "speed")


class PemsStation(Format):
    """Texts of stations of Caltrans PeMS."""

    name, how, suffixes = "pems-station", "as stations of PeMS", (".txt", ".txt.gz")
    # Time, station, district, freeway, direction, type of lanes.
    begins = re.compile(
        rb"\A\d\d/\d\d/\d{4} \d\d:\d\d:\d\d,\d{6,7},\d{1,2},\d{1,3},[NSEW],[A-Z]{2},"
    )
    together = True

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read all files of a part, without lanes.

        Returns:
            `time`, `station`, descriptions, and `flow`, `occupancy` (a share) and `speed` (mph).
        """
        tables = []
        for _, file in contents(part):
            places = range(len(COLUMNS))
            texts = pl.read_csv(file.read(), has_header=False, columns=places, infer_schema=False)
            tables.append(texts.rename(dict(zip(texts.columns, COLUMNS, strict=True))))
        table = pl.concat(tables).with_columns(pl.col("observed", *VALUES).cast(pl.Float64))
        times = pl.col("time").str.to_datetime("%m/%d/%Y %H:%M:%S")
        values = pl.when(pl.col("observed") > 0).then(pl.col(VALUES))
        imputed = int(((table["observed"] == 0) & table["flow"].is_not_null()).sum())
        if imputed:
            log.warning(part.name, f"{counted(imputed, 'row')} of imputed values are missing")
        table = table.with_columns(times, values).drop("samples", "observed", "length")
        return table_of(part, table).with_(units={"speed": "mile/hour"})
