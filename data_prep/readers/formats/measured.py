"""Files of networks and roads: measurements of network elements, and DATEX II."""

from __future__ import annotations

import io
from collections.abc import Callable, Container, Iterator
from typing import IO

import polars as pl

from data_prep.readers.datex2 import is_datex2, read_datex2
from data_prep.readers.formats import Format, Part
from data_prep.readers.formats.text import unpacked
from data_prep.readers.measurements import (
    Take,
    is_measurements,
    read_measurements,
    walk_events,
    walk_xml,
)
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table

SUFFIXES = (".xml", ".xml.gz")

Walk = Callable[[IO[bytes], Take], None]

log = StepLog("decode")


def _files(part: Part) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the unpacked content of each file of a part."""
    for path in part.files or (part.path,):
        content = part.content or unpacked(path)
        with path.open("rb") if content is None else io.BytesIO(content) as file:
            yield path.name, file


def _table(part: Part, found: pl.DataFrame) -> Table:
    return Table(found, Origin(part.path.name, "row", 1, is_file=not part.files))


def _measurements(part: Part, options: TableOptions, walk: Walk) -> Table:
    """Read the objects of one class."""
    wanted = [name.strip() for name in (options.values or "").split(",") if name.strip()]

    object_class = options.object_class
    found, notices = read_measurements(_files(part), part.name, object_class, wanted, walk)
    for notice in notices:
        log.warning(part.name, notice)
    return _table(part, found)


class MeasurementsXml(Format):
    """Counters of managed objects: 3GPP TS 32.435 and 32.401, Nokia's OMeS."""

    name, how, suffixes = "measurements", "as measurements in XML", SUFFIXES
    together = True

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether the first element is one of these formats'."""
        return is_measurements(begin)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of one class."""
        return _measurements(part, options, walk_xml)


class VesEvents(Format):
    """Events of 3GPP TS 28.532 with measurements, `perf3gpp`."""

    name, how, suffixes = "ves", "as VES events of measurements", (".json", ".json.gz")
    together = True

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether an event of measurements begins so."""
        return b'"perf3gppFields"' in begin

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of one class."""
        return _measurements(part, options, walk_events)


class Datex2(Format):
    """Measured data of road operators, versions 2 and 3."""

    name, how, suffixes = "datex2", "as DATEX II", SUFFIXES
    together = True

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether it holds measurements of sites."""
        return is_datex2(begin)

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the values of the sites."""
        return _table(part, read_datex2(_files(part)))
