"""Errors by cell relative to those of one method."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from data_prep.errors import InputError, choose
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, panels
from stforecast.bench.run_groups import ALL
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.skill import errors_by_cell
from stforecast.plots.figure import figure
from stforecast.plots.scores import error_name, refuse_different_tests
from stforecast.results import ForecastRun

ROW = 0.32
"""Height of a row in inches."""

N_WORST = 3
"""Number of cells to name."""

RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)
"""Labelled ratios on the axis."""


@figure
def cells(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    reference: str = SEASONAL,
    width: float = TWO_COLUMNS,
) -> Figure:
    """Error of each method at each cell, as a ratio to the error of one method at that cell.

    A point for each cell, sorted from the lowest ratio at the bottom of a row to the highest at its
    top; a bar at the median. Rows are sorted by their medians. At the right: the share of cells
    with a lower error than the reference, and the cells with the highest ratios. Errors are means
    over seeds.

    Args:
        runs: runs tested on the same targets.
        metric: error of each cell over all steps; raw_… is in the data's units.
        reference: label of the runs to compare with; by default seasonal naive, which repeats the
            day before.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric or reference is unknown, or the runs were tested on different
            targets.
    """
    curves = as_curves(runs)
    refuse_different_tests(runs)
    base = _errors_of(reference, curves, metric)
    others = [curve for curve in curves if curve.name != reference]
    if not others:
        raise InputError(f"{reference} is the only method here; add runs to compare with it")
    ratios = [errors_by_cell(curve, metric)[ALL] / base for curve in others]
    order = np.argsort([ratio.median() for ratio in ratios], kind="stable")
    fig, (ax,) = panels(width, 0.6 + ROW * len(others))
    ax.set_xscale("log")
    ax.axvline(1, color="0.2", linestyle="--", linewidth=0.9)
    for row, place in enumerate(order):
        _draw_row(ax, row, others[place], ratios[place])
    labels = [textwrap.fill(others[place].label, int(5 * width)) for place in order]
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(FixedLocator(RATIOS) if high > 2 * low else MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"test {error_name(metric, runs)} of a cell, divided by that of {reference}")
    return fig


def _errors_of(reference: str, curves: Sequence[Curve[ForecastRun]], metric: str) -> pd.Series:
    """Return the errors of the reference by cell."""
    named = {curve.name: curve for curve in curves}
    if reference in named:
        return errors_by_cell(named[reference], metric)[ALL]
    if reference != SEASONAL:
        raise choose("reference", reference, [SEASONAL, *named])
    return errors_by_cell(curves[0], metric, naive=True)[ALL]


def _draw_row(ax: Axes, row: int, curve: Curve[ForecastRun], ratios: pd.Series) -> None:
    """Draw the points of one method, and describe them at the right."""
    known = ratios[np.isfinite(ratios) & (ratios > 0)].sort_values(kind="stable")
    n = len(known)
    heights = row + 0.35 - 0.7 * (np.arange(n) + 0.5) / max(n, 1)
    ax.plot(
        known, heights, ".", color=curve.color, label=curve.label, markersize=4, alpha=0.6,
        markeredgewidth=0,
    )  # fmt: skip
    if n:
        ax.plot([known.median()] * 2, [row - 0.4, row + 0.4], color="0.1", linewidth=1.2)
    seen = ratios.dropna()
    worst = ", ".join(str(cell) for cell in seen.nlargest(N_WORST).index)
    text = f"lower in {(seen < 1).mean():.0%} of cells\nhighest: {worst}" if len(seen) else "none"
    ax.text(1.01, row, text, va="center", fontsize=SMALL - 1, transform=ax.get_yaxis_transform())
