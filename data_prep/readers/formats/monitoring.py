"""Series of monitoring systems: answers of Prometheus, and InfluxDB's line protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Container

import polars as pl

from data_prep.base.limits import check_size
from data_prep.readers.formats import Format, Part
from data_prep.readers.formats.json import AS_JSON
from data_prep.readers.formats.text import unpacked
from data_prep.readers.monitoring import prometheus_series, table_of_lines, table_of_series
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table

ANSWER = re.compile(
    rb'\s*(?:\[\s*{\s*"metric"\s*:|{\s*"(?:status|data)"\s*:.{0,200}?"result(?:Type)?")', re.DOTALL
)
"""How an answer of Prometheus begins, or a list of its series."""


def _content(part: Part) -> bytes:
    content = unpacked(part.path) if part.content is None else part.content
    return part.path.read_bytes() if content is None else content


def _table(part: Part, found: pl.DataFrame) -> Table:
    return Table(found, Origin(part.path.name, "row", 1, is_file=True))


class Prometheus(Format):
    """Answers of Prometheus, Thanos or VictoriaMetrics."""

    name, how, suffixes = "prometheus", "as series of Prometheus", (".json", ".json.gz")

    @classmethod
    def recognises(cls, begin: bytes) -> bool:
        """Return whether it begins as such an answer."""
        return ANSWER.match(begin) is not None

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read all series."""
        content = _content(part)
        check_size(AS_JSON * len(content), part.path.name)
        if (found := prometheus_series(json.loads(content))) is None:
            raise ValueError("expected a list of series, each with metric and values")
        return _table(part, table_of_series(found))


class LineProtocol(Format):
    """Points of InfluxDB."""

    name, how = "line-protocol", "as InfluxDB's line protocol"
    suffixes = (".lp", ".influx", ".lp.gz", ".influx.gz")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read all points."""
        return _table(part, table_of_lines(_content(part).decode().splitlines()))
