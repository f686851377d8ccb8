"""Figures of finished runs, for `stforecast plot`: every function in `PLOTS` makes one.

Runs that differ in nothing but their seed share a colour and an entry in the legend, "fuels (3
runs)"; what a figure does with them stands in its docstring. Colours go by the place in the list of
runs: the same runs have the same colours in every figure. What cannot be drawn is named in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from stforecast.plots.bars import bars
from stforecast.plots.divergence import divergence
from stforecast.plots.drawing import save_figure
from stforecast.plots.errors import cdf, horizon
from stforecast.plots.filters import filter
from stforecast.plots.forecasts import predictions
from stforecast.plots.intervals import intervals
from stforecast.plots.losses import communication, rounds
from stforecast.plots.sweep import sweep

__all__ = [
    "PLOTS", "save_figure", "predictions", "intervals", "cdf", "communication", "horizon", "rounds",
    "bars", "sweep", "divergence", "filter",
]  # fmt: skip

PLOTS: Mapping[str, Callable[..., Figure]] = {
    plot.__name__: plot
    for plot in (
        predictions,
        intervals,
        cdf,
        communication,
        horizon,
        rounds,
        bars,
        sweep,
        divergence,
        filter,
    )
}
"""Every figure by name; each takes runs and options of its own."""
