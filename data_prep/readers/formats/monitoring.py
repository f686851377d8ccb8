r"""Series of monitoring systems: Prometheus's answers, and InfluxDB's line protocol.

A series is named by labels (Prometheus) or tags (InfluxDB). The labels that differ between series
name the cell, and each metric or field is a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from data_prep.base.limits import check_size
from data_prep.readers.formats import Format, Part, contents, table_of
from data_prep.readers.formats.json import AS_JSON
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table

NAME = "__name__"
"""Label that holds the name of a metric."""

LINE = re.compile(
    r"""(?P<series>(?:\\.|[^\\ ])+)\ +
        (?P<fields>(?:"(?:\\.|[^"\\])*"|\\.|[^\\ "])+)
        (?:\ +(?P<time>-?\d+))?\s*""",
    re.VERBOSE,
)
PART = re.compile(r'(?:"(?:\\.|[^"\\])*"|\\.|[^\\,"])+')
EQUAL = re.compile(r"((?:\\.|[^\\=])+)=(.*)", re.DOTALL)
ESCAPED = re.compile(r"\\([,= \\])")
NUMBER = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)[iu]?")
"""Field that is a number, such as 12i, 7u or 2.5, and no text or truth value."""

Point = tuple[str, dict[str, str], dict[str, str], str | None]
"""Measurement, tags, fields and time, as written."""

Series = tuple[Mapping[str, str], Sequence[tuple[float, str]]]
"""Labels, and seconds since 1970 with the value's text."""


def prometheus_series(document: Any) -> list[Series] | None:
    """Return the series of an answer of Prometheus's, or of a list of them; None if it is none.

    >>> prometheus_series([{"metric": {"cell": "a"}, "values": [[60, "1.5"]]}])
    [({'cell': 'a'}, [(60.0, '1.5')])]
    """
    found: list[Series] = []
    try:
        for each in document["data"]["result"] if isinstance(document, dict) else document:
            labels = {str(name): str(value) for name, value in each["metric"].items()}
            values = each["values"] if "values" in each else [each["value"]]
            found.append((labels, [(float(time), str(value)) for time, value in values]))
    except (AttributeError, KeyError, TypeError):
        return None
    return found or None


def table_of_series(found: Sequence[Series]) -> pl.DataFrame:
    """Return a row for each cell and time, with a column for each metric.

    Returns:
        `time`, in UTC; `cell`, the labels that differ, in the order of their names; the metrics,
        where NaN and infinite values are missing.
    """
    names = sorted({name for labels, _ in found for name in labels} - {NAME})
    differing = [n for n in names if len({labels.get(n) for labels, _ in found}) > 1] or names
    frames = []
    for labels, values in found:
        times, texts = zip(*values, strict=True) if values else ((), ())
        cell = ",".join(labels.get(name, "") for name in differing) or "all"
        number = pl.Series(texts, dtype=pl.String).cast(pl.Float64, strict=False)
        column = labels.get(NAME, "value")
        at = (pl.Series(times, dtype=pl.Float64) * 1e6).round().cast(pl.Int64)
        time = at.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        frames.append(pl.DataFrame({"time": time, "cell": cell, column: number}))
    return _one_table(frames)


def _one_table(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return frames of several columns below each other, one row for each time and cell."""
    keys, table = ["time", "cell"], pl.concat(frames, how="diagonal")
    numbers = pl.all().exclude(keys)
    table = table.with_columns(pl.when(numbers.is_finite()).then(numbers))
    if len(table.columns) > 3 and table.select(keys).is_duplicated().any():
        # Rows that hold other columns of the same time and cell; true duplicates stay.
        turn = pl.int_range(pl.len()).over([*keys, "column"])
        long = table.unpivot(index=keys, variable_name="column", value_name="value")
        long = long.drop_nulls("value").with_columns(turn=turn)
        table = long.pivot("column", index=[*keys, "turn"], values="value").drop("turn")
    return table.sort("cell", "time", maintain_order=True)


def parse_points(lines: Iterable[str]) -> Iterator[Point]:
    """Yield the points of lines.

    Raises:
        ValueError: naming the line that is no point.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = LINE.fullmatch(line.rstrip("\n"))
        if found is None:
            raise ValueError(f"line {number} is no point of the line protocol: {line!r:.60}")
        name, *tags = PART.findall(found["series"])
        pairs = [
            {ESCAPED.sub(r"\1", k): ESCAPED.sub(r"\1", v) for k, v in map(_pair, parts)}
            for parts in (tags, PART.findall(found["fields"]))
        ]
        yield ESCAPED.sub(r"\1", name), pairs[0], pairs[1], found["time"]


def _pair(text: str) -> tuple[str, str]:
    found = EQUAL.fullmatch(text)
    if found is None:
        raise ValueError(f"expected name=value, found {text!r:.60}")
    return found[1], found[2]


def table_of_lines(lines: Iterable[str]) -> pl.DataFrame:
    """Return a row for each cell and time, with a column for each field that holds numbers.

    Returns:
        `time`, in UTC; `cell`, the tags that differ; fields, with the measurement's name before
        them if there are several.

    Raises:
        ValueError: if a line is no point, or has no time.
    """
    rows = list(parse_points(lines))
    without = next((i for i, row in enumerate(rows, start=1) if row[3] is None), 0)
    if without:
        raise ValueError(f"point {without} has no time; export the points with their times")
    # Seconds since 1970 are about a thousand million, or these in a smaller unit.
    first = abs(int(rows[0][3] or 0)) if rows else 0
    per_second = next((1e9 / size for size in (1e9, 1e12, 1e15) if first < 100 * size), 1e-9)
    several = len({measurement for measurement, *_ in rows}) > 1
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, str]]] = {}
    for measurement, tags, fields, time in rows:
        for name, text in fields.items():
            if number := NUMBER.fullmatch(text):
                column = f"{measurement}.{name}" if several else name
                labels = ((NAME, column), *sorted(tags.items()))
                series.setdefault(labels, []).append((int(time or 0) * per_second, number[1]))
    if not series:
        raise ValueError("its fields hold no numbers")
    return table_of_series([(dict(labels), values) for labels, values in series.items()])


class Prometheus(Format):
    """Answers of Prometheus, Thanos or VictoriaMetrics."""

    name, how, suffixes = "prometheus", "as series of Prometheus", (".json", ".json.gz")
    begins = re.compile(
        rb'\A\s*(?:\[\s*|{\s*"(?:status|data)"\s*:.{0,200}?)'
        rb'(?:"resultType"\s*:|"result"\s*:\s*\[\s*{\s*"metric"|{\s*"metric"\s*:)',
        re.DOTALL,
    )

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read all series."""
        (content,) = (file.read() for _, file in contents(part))
        check_size(AS_JSON * len(content), part.path.name)
        if (found := prometheus_series(json.loads(content))) is None:
            raise ValueError("expected a list of series, each with metric and values")
        return table_of(part, table_of_series(found))


class LineProtocol(Format):
    """Points of InfluxDB."""

    name, how = "line-protocol", "as InfluxDB's line protocol"
    suffixes = (".lp", ".influx", ".lp.gz", ".influx.gz")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read all points."""
        (text,) = (file.read().decode() for _, file in contents(part))
        return table_of(part, table_of_lines(text.splitlines()))
