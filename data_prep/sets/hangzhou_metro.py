"""Hangzhou metro: passengers who enter 80 stations each ten minutes, January 2019.

- Source: Alibaba Tianchi's challenge on the metro of Hangzhou; as in a public repository under the
  MIT licence, laid out as a table: `time` and a column for each station.
- 25 days from 2019-01-01, 06:00 to 24:00, Asia/Shanghai: 2,700 rows without gaps within a day; the
  cube has the nights as missing values. 80 cells named `station00` and on.
- `passengers`: persons entering in the step; many zeros early and late.
- Trap: the original challenge's stations are numbered 0 to 80, of which number 54 is closed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import xarray as xr

from data_prep.cube import write_read
from data_prep.sets.table import read_wide

SOURCES: tuple[()] = ()
BY_HAND = "its copy is a tensor of a public repository: lay it out as a table of stations"


def read(raw: Path) -> xr.Dataset:
    """Read the table as a cube.

    Args:
        raw: The table, .csv or .csv.gz: `time`, then a column for each station.
    """
    return read_wide(
        raw,
        "passengers",
        title="Hangzhou metro entries",
        source="Alibaba Tianchi, metro of Hangzhou",
        license="MIT, of the copy; none stated by the publisher",
        units="persons",
        time_zone="Asia/Shanghai",
    )


prepare = partial(write_read, read)
