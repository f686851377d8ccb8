"""New York taxis: hourly trips between 30 × 30 zones, May and June 2018.

- Source: trip records of New York's Taxi and Limousine Commission; as in a public repository under
  the MIT licence, laid out as a table: `time` and a column for each pair, such as `from03to17`.
- 1,464 hours, 2018-05-01 00:00 to 2018-06-30 23:00, America/New_York; 900 cells, pairs of zones.
- `trips`: trips that begin in the hour; sparse counts without gaps.
- Trap: 61 × 24 hours on the wall clock; no change of daylight saving time lies within.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import xarray as xr

from data_prep.cube import write_read
from data_prep.sets.table import read_wide

SOURCES: tuple[()] = ()
BY_HAND = "its copy is a tensor of a public repository: lay it out as a table of pairs"


def read(raw: Path) -> xr.Dataset:
    """Read the table as a cube.

    Args:
        raw: The table, .csv or .csv.gz: `time`, then a column for each pair of zones.
    """
    return read_wide(
        raw,
        "trips",
        title="New York taxi trips between zones",
        source="New York City Taxi and Limousine Commission",
        license="MIT, of the copy; the records are public",
        units="trips",
        time_zone="America/New_York",
    )


prepare = partial(write_read, read)
