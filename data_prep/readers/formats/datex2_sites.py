"""Tables of measurement sites in DATEX II, versions 2 and 3, for `--sites`.

They say where a site is, and which lane and class of vehicles each index of its values is of.
"""

from __future__ import annotations

from collections.abc import Container

from data_prep.readers.formats import Format, Part, table_of
from data_prep.readers.formats.datex2 import SITE_TABLE
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table
from data_prep.readers.xml import Rows, read_rows

SITES = ("measurementSiteRecord", "measurementSite")
"""Elements of a site, in versions 2 and 3."""

CHARACTERISTICS = "measurementSpecificCharacteristics"
"""Element of an index of values."""

FIELDS = {
    "latitude": "lat",
    "longitude": "lon",
    "value": "name",
    "measurementSiteNumberOfLanes": "lanes",
    "measurementSide": "direction",
    "specificLane": "lane",
    "specificMeasurementValueType": "quantity",
    "vehicleType": "vehicles",
}
"""Columns by the elements that hold them; the first of a site or an index counts."""


class _Sites(Rows):
    """Collects a row for each index of a site, or for a site without any."""

    def __init__(self) -> None:
        super().__init__()
        self.site: dict[str, str] = {}
        self.indices: list[dict[str, str]] = []
        self.within = self.compared = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in SITES:
            self.site, self.indices, self.within = {"site": attributes["id"]}, [], ""
        elif tag == CHARACTERISTICS and "index" in attributes:
            self.indices.append({"cell": f"{self.site.get('site', '')}/{attributes['index']}"})
            self.within = tag
        elif tag in ("measurementSiteName", "measurementSiteLocation"):
            self.within = tag

    def stop(self, tag: str) -> None:
        text = self.text
        own = self.indices[-1] if self.within == CHARACTERISTICS else self.site
        if tag in SITES:
            self.rows += [{**self.site, **index} for index in self.indices or [{}]]
        elif tag in FIELDS and text and (tag != "value" or self.within == "measurementSiteName"):
            own.setdefault(FIELDS[tag], text)
        elif tag == "comparisonOperator":
            self.compared = text
        elif tag == "vehicleLength":
            own["vehicles"] = f"{own.get('vehicles', '')} {self.compared} {text} m".strip()


class Datex2Sites(Format):
    """Sites of measured data of road operators, for `--sites`."""

    name, how, suffixes = "datex2-sites", "as sites of DATEX II", (".xml", ".xml.gz")
    begins = SITE_TABLE

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a row for each index of a site.

        Returns:
            `site`; `cell`, the site with `/index`; and a column for each of `FIELDS` that is given.

        Raises:
            InputError: if it holds no site.
        """
        return table_of(part, read_rows(part, _Sites(), "a table of measurement sites"))
