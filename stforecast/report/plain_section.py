"""Section of a page on runs without cells: tables, a picture, and charts of lines alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stforecast.report.curves import looks
from stforecast.report.data_sheet import DataSheet
from stforecast.report.runs_sheet import RunsSheet
from stforecast.report.tables import Table


@dataclass(frozen=True)
class Chart:
    """A chart of lines.

    Attributes:
        caption: what it shows.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        lines: number of the `method`, and values `x` and `y` of each line; without `x`, the
            values of a distribution.
        log: whether the horizontal axis is logarithmic.
    """

    caption: str
    x: str
    y: str
    lines: Sequence[dict[str, Any]]
    log: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture that is part of the page.

    Attributes:
        heading: its heading.
        source: `data:` address of its content.
        caption: what it shows.
    """

    heading: str
    source: str
    caption: str


@dataclass(frozen=True)
class PlainSection:
    """One task on a page, such as an image set.

    Attributes:
        name: name of the task.
        claims: what the numbers show, in words.
        tables: tables, the leaderboard first.
        methods: name of each line in the charts to its place among the looks of lines.
        plots: the charts.
        picture: a picture of the data.
        data: data sheet.
        runs: settings and commands.
    """

    name: str
    claims: Sequence[str]
    tables: Sequence[Table]
    methods: Mapping[str, int]
    plots: Sequence[Chart]
    picture: Picture
    data: DataSheet
    runs: RunsSheet

    @property
    def charts(self) -> dict[str, Any]:
        """Numbers of the charts, see `page/*.js`."""
        return {"methods": looks(self.methods), "plots": [vars(plot) for plot in self.plots]}
