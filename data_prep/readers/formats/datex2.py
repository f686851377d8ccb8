"""Measured data of road operators in DATEX II, versions 2 and 3, with an envelope or without.

A site measures several values, each with an index. Only the operator's table of sites tells which
lane or class of vehicles an index is of, see `datex2_sites`. So each index is a cell, unless each
site has one alone.
Flows are rates in vehicles an hour, whatever the period. A value that is marked as an error, or a
speed of -1 where no vehicle passed, is missing.
"""

from __future__ import annotations

import re
from collections.abc import Container

import polars as pl

from data_prep.readers.formats import Format, Part
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table
from data_prep.readers.xml import Values, read_values, time_of

QUANTITIES = {
    "vehicleFlowRate": "flow",
    "speed": "speed",
    "percentage": "occupancy",
    "duration": "travel_time",
    "averageTimeHeadway": "headway",
}
"""Name of the service by the element that holds a number, which may lie in one of this name."""

SITE_TABLE = re.compile(rb"<(?:[\w.-]+:)?measurementSite(?:Table|Record)?[\s>]")
"""First elements of a table of sites."""


class _Publication(Values):
    """Collects the values of sites, whose cells are `site/index`."""

    def __init__(self) -> None:
        super().__init__()
        self.site, self.index, self.time = "", "", ""
        self.within = 0
        self.of_site: list[tuple[str, str, float | None]] = []
        self.wrong = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if self.within or tag in ("measuredValueExtension", "basicDataReferenceValue"):
            self.within += 1  # A reference value, which is not measured.
        elif tag == "siteMeasurements":
            self.site, self.time, self.of_site = "", "", []
        elif tag == "measurementSiteReference":
            self.site = attributes["id"]
        elif tag in ("measuredValue", "physicalQuantity") and "index" in attributes:
            self.index, self.wrong = attributes["index"], False

    def stop(self, tag: str) -> None:
        if self.within:
            self.within -= 1
        elif tag in ("measurementTimeDefault", "timeValue") and not self.time:
            self.time = self.text  # Versions 2 and 3 name it so.
        elif tag == "dataError":
            self.wrong = self.text.lower() in ("true", "1")
            if self.wrong and self.of_site and self.of_site[-1][0] == self.index:
                self.of_site[-1] = (*self.of_site[-1][:2], None)
        elif tag in QUANTITIES and (text := self.text):
            value = None if self.wrong else float(text)
            quantity = QUANTITIES[tag]
            missing = quantity == "speed" and value is not None and value < 0
            self.of_site.append((self.index, quantity, None if missing else value))
        elif tag == "siteMeasurements":
            for index, quantity, value in self.of_site:
                self.take(time_of(self.time), f"{self.site}/{index}", quantity, value)

    def table(self) -> pl.DataFrame:
        """Return the columns; a cell has no index where each site has one alone."""
        table = super().table()
        site = table["cell"].str.replace("/[^/]*$", "")
        several = site.n_unique() < table["cell"].n_unique()
        return table if several else table.with_columns(cell=site)


class Datex2(Format):
    """Measured data of road operators, versions 2 and 3."""

    name, how, suffixes = "datex2", "as DATEX II", (".xml", ".xml.gz")
    together = True

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether it holds measurements of sites."""
        # Each is the first element of a publication, apart from an envelope.
        first = rb"<(?:[\w.-]+:)?(?:d2LogicalModel|measuredDataPublication|siteMeasurements)[\s>]"
        return re.search(first, begin) is not None and not SITE_TABLE.search(begin)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the values of the sites from all files of a part.

        Returns:
            `time`, as the publication gives it; `cell`, the site, with `/index` where a site has
            several; and a column for each of `QUANTITIES` that was measured.
        """
        units = {"flow": "veh/h", "speed": "km/h", "occupancy": "%"}
        units |= {"travel_time": "s", "headway": "s"}
        return read_values(part, _Publication(), "publications of MeasuredData").with_(units=units)
