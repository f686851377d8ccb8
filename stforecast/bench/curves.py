"""Curves: groups of runs in a figure and their style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from data_prep.errors import InputError
from stforecast.bench.run_groups import R, RunGroup, group_runs

COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours for all kinds of colour vision (jfly.uni-koeln.de/color), without black,
which observations use, and yellow, which is faint on white."""

LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")


def point_look(place: int, markers: Sequence[str] = MARKERS) -> tuple[str, str]:
    """Return colour and marker of the points at a place; markers change when colours repeat."""
    return COLORS[place % len(COLORS)], markers[place // len(COLORS) % len(markers)]


@dataclass(frozen=True)
class Curve(RunGroup[R]):
    """A group of runs and its style.

    Attributes:
        place: place among the figure's curves, from 0; determines colour, line and marker.
    """

    place: int

    @property
    def color(self) -> str:
        """Colour of the curve; from the seventh curve on, colours repeat with other lines."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Shape of the curve's points; where a colour repeats, the shape differs."""
        return MARKERS[(self.place + self.place // len(COLORS)) % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """Colour, style and width of the curve's lines."""
        style = LINE_STYLES[self.place // len(COLORS) % len(LINE_STYLES)]
        return {"color": self.color, "linestyle": style, "linewidth": 1.2}

    def draw_mean(self, ax: Axes, table: pd.DataFrame, **style: Any) -> None:
        """Draw the mean of several numbers at each x, in a band of one standard deviation.

        Args:
            ax: axes.
            table: a row for each x, a column for each number.
            **style: further properties of the line.
        """
        mean, deviation = table.mean(axis=1), table.std(axis=1).fillna(0)
        ax.plot(mean.index, mean, **{"label": self.label, **self.line, **style})
        if table.shape[1] > 1:
            ax.fill_between(mean.index, mean - deviation, mean + deviation, **self.band)

    @property
    def band(self) -> dict[str, Any]:
        """Style of the curve's bands."""
        return {"color": self.color, "alpha": 0.2, "linewidth": 0}


def as_curves(runs: Sequence[R]) -> list[Curve[R]]:
    """Return a curve for each group of the runs.

    Args:
        runs: finished runs; a folder given twice counts once.

    Raises:
        InputError: if there are no runs.
    """
    if not runs:
        raise InputError("no runs to draw; give at least one folder of a finished run")
    groups = group_runs(runs)
    return [Curve(g.base, g.tags, g.runs, place) for place, g in enumerate(groups)]
