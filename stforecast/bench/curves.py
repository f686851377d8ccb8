"""Curves: groups of runs in a figure and their style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from data_prep.errors import InputError, choose
from stforecast.bench.look import current
from stforecast.bench.run_groups import R, RunGroup, group_runs

COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours for all kinds of colour vision (jfly.uni-koeln.de/color), without black,
which observations use, and yellow, which is faint on white."""

FAINT = "0.75"
"""Grey of curves in the background."""

MOST_TOGETHER = len(COLORS)
"""Number of curves that can be told apart in one panel; more are drawn as small multiples."""

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
        faint: whether it is in the background, in grey.
    """

    place: int
    faint: bool = False

    @property
    def color(self) -> str:
        """Colour of the curve; from the seventh curve on, colours repeat with other lines."""
        return FAINT if self.faint else COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """Shape of the curve's points; where a colour repeats, the shape differs."""
        return MARKERS[(self.place + self.place // len(COLORS)) % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """Colour, style and width of the curve's lines."""
        style = LINE_STYLES[self.place // len(COLORS) % len(LINE_STYLES)]
        if self.faint:
            return {"color": self.color, "linestyle": "-", "linewidth": 0.7, "zorder": 1.5}
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
        return {"color": self.color, "alpha": 0.0 if self.faint else 0.2, "linewidth": 0}

    @property
    def behind(self) -> Curve[R]:
        """The same curve in the background."""
        return replace(self, faint=True)

    @property
    def alone(self) -> Curve[R]:
        """The same curve as the only one in colour, with the first colour and a full line."""
        return replace(self, place=0, faint=False)


def as_curves(runs: Sequence[R]) -> list[Curve[R]]:
    """Return a curve for each group of the runs.

    Args:
        runs: finished runs; a folder given twice counts once.

    Raises:
        InputError: if there are no runs, or a highlighted name is unknown.
    """
    if not runs:
        raise InputError("no runs to draw; give at least one folder of a finished run")
    groups = group_runs(runs)
    shown = set(current().highlight)
    if unknown := shown - {name for g in groups for name in (g.name, g.base)}:
        raise choose("name to highlight", min(unknown), [g.name for g in groups])
    return [
        Curve(g.base, g.tags, g.runs, place, bool(shown) and not shown & {g.name, g.base})
        for place, g in enumerate(groups)
    ]
