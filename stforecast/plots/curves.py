"""Curves: variants of runs in a figure, and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from data_prep.errors import InputError
from stforecast.results import Run
from stforecast.variants import Variant, as_variants

COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours for all kinds of colour vision (jfly.uni-koeln.de/color), less the black
that observations have and the yellow that is faint on white."""

LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Curve(Variant):
    """A variant and how it is drawn.

    Attributes:
        place: place among the figure's curves, from 0; decides on colour, line and marker.
    """

    place: int

    @property
    def color(self) -> str:
        """Colour; from the seventh curve on they come again, with other lines."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Shape of the curve's points."""
        return MARKERS[self.place % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """Colour, style and width of the curve's lines."""
        style = LINE_STYLES[self.place // len(COLORS) % len(LINE_STYLES)]
        return {"color": self.color, "linestyle": style, "linewidth": 1.2}


def as_curves(runs: Sequence[Run]) -> list[Curve]:
    """A curve for each variant of the runs.

    Args:
        runs: finished runs; a folder given twice counts once.

    Raises:
        InputError: if there is none.
    """
    if not runs:
        raise InputError("no runs to draw; give at least one folder that `stforecast run` wrote")
    return [Curve(v.base, v.tags, v.runs, place) for place, v in enumerate(as_variants(runs))]


def open_forecasts(run: Run) -> xr.Dataset:
    """`forecasts.nc`, lazily: a figure needs one step of it, or its attributes only."""
    return run.open_forecasts()


def quantity(runs: Sequence[Run], *, squared: bool = False) -> str:
    """What was forecast, with its unit: "speed (mph)", or "internet" where there is none.

    Several services together are "traffic".

    Args:
        runs: finished runs.
        squared: whether it is the square of it.
    """
    services = {run.about["service"] for run in runs}
    units = set()
    for run in runs:
        with open_forecasts(run) as ds:
            units.add(ds["y"].attrs.get("units", "1"))
    name = services.pop() if len(services) == 1 else "traffic"
    if len(units) > 1:
        return f"{name} (own units)"
    (unit,) = units
    return name if unit == "1" else f"{name} ({unit}{'²' if squared else ''})"
