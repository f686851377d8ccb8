"""Flanders' minute counts, `miv`, and the places of their sites, `mivconfig`, for `--sites`.

Source: https://opendata.vlaanderen.be, "Meten-in-Vlaanderen". Each lane is a site, and vehicles are
counted by class: 1 motorcycles, 2 cars, 3 vans, 4 lorries, 5 long lorries. Speeds above 250 are
codes: 252 means that no vehicle passed.
"""

from __future__ import annotations

import re
from collections.abc import Container

import polars as pl

from data_prep.readers.formats import Format, Part, table_of
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table
from data_prep.readers.xml import Rows, Values, read_rows, read_values, time_of

QUANTITIES = {
    "verkeersintensiteit": "flow",
    "voertuigsnelheid_harmonisch": "speed",
    "bezettingsgraad": "occupancy",
}
COLUMNS = {"lengtegraad_EPSG_4326": "lon", "breedtegraad_EPSG_4326": "lat"}
"""Columns of degrees, which are written with a comma."""


class _Counts(Values):
    """Collects the counts of sites."""

    site = time = kind = ""
    usable = True

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "meetpunt":
            self.site, self.usable = attributes["unieke_id"], True
        elif tag in ("meetdata", "rekendata"):
            self.kind = f"_{attributes['klasse_id']}" if tag == "meetdata" else ""

    def stop(self, tag: str) -> None:
        if tag == "tijd_waarneming":
            self.time = self.text
        elif (tag, self.text) in (("defect", "1"), ("beschikbaar", "0")):
            self.usable = False
        elif tag in QUANTITIES:
            quantity, value = QUANTITIES[tag], float(self.text)
            known = self.usable and (quantity != "speed" or value <= 250)  # Others are codes.
            time = time_of(self.time)
            self.take(time, self.site, quantity + self.kind, value if known else None)


class Miv(Format):
    """Minute counts of Flanders by class of vehicles."""

    name, how, suffixes = "miv", "as counts of Flanders", (".xml", ".xml.gz")
    begins = re.compile(rb"<miv(?!config)")
    together = True

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the counts of all files of a part.

        Returns:
            `time`, `cell` (`unieke_id`), `flow_1` to `flow_5` in vehicles a minute, `speed_1` to
            `speed_5` in km/h, and `occupancy`.
        """
        table = read_values(part, _Counts(), "minutes of miv")
        known = (("flow", "veh"), ("speed", "km/h"))
        units = {f"{name}_{k}": unit for name, unit in known for k in range(1, 6)}
        return table.with_(units={**units, "occupancy": "%"})


class _Sites(Rows):
    """Collects the texts of each site by the names of its elements."""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "meetpunt":
            self.rows.append({"cell": attributes["unieke_id"]})

    def stop(self, tag: str) -> None:
        if self.rows and tag not in ("meetpunt", "mivconfig"):
            self.rows[-1][COLUMNS.get(tag, tag)] = self.text


class MivSites(Format):
    """Places of Flanders' sites, for `--sites`."""

    name, how, suffixes = "miv-sites", "as sites of Flanders", (".xml", ".xml.gz")
    begins = re.compile(rb"<mivconfig")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a row for each site: `cell`, `lon`, `lat` and its descriptions."""
        table = read_rows(part, _Sites(), "the configuration of miv")
        degrees = [pl.col(c).str.replace(",", ".") for c in COLUMNS.values() if c in table.columns]
        return table_of(part, table.with_columns(degrees))
