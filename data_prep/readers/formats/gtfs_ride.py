"""Boardings of public transport, GTFS-ride: `board_alight.txt` with `stop_times.txt`.

Source: https://github.com/ODOT-PTS/GTFS-ride. A row is a vehicle at a stop, so it is an event:
`--resample 1h --agg total`. Times such as 25:10:00 are of the night after the date of service.
"""

from __future__ import annotations

from collections.abc import Container

import polars as pl

from data_prep.base.errors import counted
from data_prep.readers.formats import Format, Part, contents, table_of
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table

log = StepLog("decode")

VALUES = ("boardings", "alightings")


class GtfsRide(Format):
    """Boardings and alightings at stops: a zip or folder of GTFS-ride."""

    name, how, sign = "gtfs-ride", "as GTFS-ride", "board_alight.txt"

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the vehicles at stops.

        Returns:
            `time` of the arrival, else as scheduled; `stop_id`; `VALUES`.
        """
        wanted = {cls.sign, "stop_times.txt"}
        files = {
            name: pl.read_csv(file.read(), infer_schema=False).rename(str.strip)
            for name, file in contents(part) if name in wanted
        }  # fmt: skip
        rows, at = files[cls.sign], ["trip_id", "stop_sequence"]
        if "stop_times.txt" in files:
            planned = files["stop_times.txt"].select(*at, "arrival_time").unique(at)
            rows = rows.join(planned, on=at, how="left", maintain_order="left")
        times = [c for c in ("service_arrival_time", "arrival_time") if c in rows.columns]
        clock = pl.coalesce(times).str.strip_chars().str.split(":").cast(pl.List(pl.Int64))
        hours, minutes, seconds = (clock.list.get(i) for i in range(3))
        span = pl.duration(hours=hours, minutes=minutes, seconds=seconds)
        day = pl.col("service_date").str.to_datetime("%Y%m%d")
        table = rows.select("stop_id", (day + span).alias("time"), pl.col(VALUES).cast(pl.Float64))
        if without := table["time"].null_count():
            log.warning(part.name, f"{counted(without, 'row')} without a time left out")
        return table_of(part, table.drop_nulls("time").sort("time", "stop_id"))
