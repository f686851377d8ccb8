"""Bar chart of test errors, one bar for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from data_prep.errors import InputError
from stforecast.bench.bars import score_bars
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import ONE_COLUMN, add_legend
from stforecast.bench.numbers import short
from stforecast.plots.figure import figure
from stforecast.plots.scores import axis_name, pooled_errors
from stforecast.results import ForecastRun


@figure
def bars(
    runs: Sequence[ForecastRun],
    *,
    metric: str = "mse",
    selection: str | None = None,
    reference: str | None = None,
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error of each variant as a bar, such as a method with and without its parts.

    Runs that differ only in the seed share one bar: their mean, with whiskers of one standard
    deviation (with n - 1). The lowest is on top. As in Figure 5 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        metric: error pooled over clients and steps; raw_… is in the data's units.
        selection: model to evaluate: best, last, or another one of the run, such as "best
            (global)"; by default the one selected by each run's settings.
        reference: where to draw a line: the name of a bar, or a number such as a published error.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric, selection or bar is unknown, listing the known ones, or if no
            error is finite.
    """
    unsorted = as_curves(runs)
    errors = [pooled_errors(curve.runs, metric, selection) for curve in unsorted]
    order = np.argsort([some.mean() for some in errors], kind="stable")
    curves, errors = [unsorted[i] for i in order], [errors[i] for i in order]
    means = [float(some.mean()) for some in errors]
    if not np.isfinite(means).any():
        raise InputError(f"none of these runs has a finite {metric}; there is nothing to draw")
    fig, ax = score_bars(curves, errors, width)
    several = any(len(curve.runs) > 1 for curve in curves)
    ax.set_xlabel(axis_name(metric, runs, selection, seeds=several))
    if reference is not None:
        named = {curve.name: mean for curve, mean in zip(curves, means, strict=True)}
        level = _level(reference, named)
        label = f"{reference}: {short(level)}" if reference in named else reference
        ax.axvline(level, color="0.2", linestyle="--", linewidth=0.9, label=label)
        add_legend(fig)
    return fig


def _level(reference: str, means: Mapping[str, float]) -> float:
    """Return the position of the reference line."""
    try:
        level = means[reference] if reference in means else float(reference)
    except ValueError as e:
        names = ", ".join(means)
        raise InputError(f"reference {reference!r} is neither a number nor a bar: {names}") from e
    if not np.isfinite(level):
        raise InputError(f"reference {reference!r} is not finite; name another")
    return level
