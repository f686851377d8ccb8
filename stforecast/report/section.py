"""A section of a page, and parts of its charts and maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stforecast.bench.curves import HUES
from stforecast.plots.cell_map import Places
from stforecast.report.tables import Arrays, DataSheet, RunsSheet, Table


@dataclass(frozen=True)
class Chart:
    """A chart of lines, each with the number of its `method` and values `x` and `y`.

    Without `x`, a line is the distribution of `y`.
    """

    caption: str
    x: str
    y: str
    lines: Sequence[Mapping[str, object]]
    log: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture that is part of the page; its source is a `data:` address."""

    heading: str
    source: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A section of a page, such as one task or the coming span, see `page/page.html`.

    Attributes:
        name: heading.
        claims: sentences below it.
        tables: tables; tables of cells have the map between them.
        charts: numbers of `page/*.js`; empty without charts and maps.
        about_map: what the map of the cells shows.
        picture: picture below the tables; without charts, above them.
        data: data of a task.
        runs: its runs.
        alarms: sentences above all others.
    """

    name: str
    claims: Sequence[str]
    tables: Sequence[Table]
    charts: Mapping[str, object] = field(default_factory=dict)
    about_map: str = ""
    picture: Picture | None = None
    data: DataSheet | None = None
    runs: RunsSheet | None = None
    alarms: Sequence[str] = ()


def map_of(places: Places, arrays: Arrays) -> dict[str, object]:
    """Return what the page draws a map of; outlines are paths, in kilometres east and south."""
    paths = [
        "".join(f"M{' '.join(f'{x:.3f} {-y:.3f}' for x, y in ring[:-1])}Z" for ring in rings)
        for rings in places.outlines
    ]
    bounds = []
    if places.outlines:  # Left, top, right and bottom.
        corners = np.concatenate([ring for rings in places.outlines for ring in rings])
        (west, south), (east, north) = corners.min(axis=0), corners.max(axis=0)
        bounds = [float(west), float(-north), float(east), float(-south)]
    return {
        "kind": places.kind,
        "east": arrays.floats(places.east),
        "north": arrays.floats(places.north),
        "size": places.size,
        "roads": places.roads,
        "outlines": paths,
        "bounds": bounds,
    }


def map_value(
    arrays: Arrays,
    title: str,
    of_methods: Sequence[np.ndarray | None],
    *,
    middle: float | None = None,
    share: bool | str = False,
) -> dict[str, object]:
    """Add a value `(cells,)` of each method to the page's arrays, for the map to show.

    A value with a `middle` is drawn in two colours around it; shares are shown in per cent, and the
    logarithm to base 10 of how rare something is (`log`) as one in so many.
    """
    of = [None if values is None else arrays.floats(values) for values in of_methods]
    return {"title": title, "middle": middle, "share": share, "of": of}


def looks(places: Mapping[str, int]) -> list[dict[str, str]]:
    """Return name, colour and line style of each line."""
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # As in figures.
    return [
        {
            "name": name,
            "color": HUES[place % len(HUES)],
            "dash": dashes[place // len(HUES) % len(dashes)],
        }
        for name, place in places.items()
    ]


def evenly(n: int) -> np.ndarray:
    """Return the places to draw of `n` rounds: all, or evenly spread ones with the last."""
    return np.unique(np.linspace(0, n - 1, 400).round().astype(int))
