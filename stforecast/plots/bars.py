"""Figures of bars: one for each variant."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.federated.plain_figure import PlainFigure
from stforecast.plots.curves import Curve, as_curves
from stforecast.plots.drawing import ONE_COLUMN, SMALL, add_legend, panels
from stforecast.plots.scores import axis_name, mean_and_spread, plus_minus, pooled, short
from stforecast.results import Run

LINE_HEIGHT = 0.12
"""Inches from line to line of small text."""


@listed
def bars(
    runs: Sequence[Run],
    *,
    metric: str = "mse",
    selection: str | None = None,
    reference: str | None = None,
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error of each variant as a bar, such as a method with and without its parts.

    Runs that differ in the seed alone make one bar: their mean, with whiskers of one standard
    deviation (with n - 1). Bars stand in the order of the runs, from the top. As Figure 5 of FUELS
    (arXiv 2404.03702).

    Args:
        runs: finished runs.
        metric: which error, pooled over clients and steps; raw_… is in the data's units.
        selection: which model: best, last, or another that the run has, such as "best (global)"; by
            default the one that each run's settings chose.
        reference: where to draw a line: the name of a bar, or a number such as a published error.
        width: width of the figure in inches.

    Raises:
        InputError: listing the metrics, selections or bars if there is no such one, or if no error
            is finite.
    """
    curves = as_curves(runs)
    scores = [mean_and_spread(pooled(curve.runs, metric, selection)) for curve in curves]
    means, spreads = (np.array(values) for values in zip(*scores, strict=True))
    if not np.isfinite(means).any():
        raise InputError(f"none of these runs has a finite {metric}; there is nothing to draw")
    several = any(len(curve.runs) > 1 for curve in curves)
    whiskers = [None if len(c.runs) == 1 else s for c, s in zip(curves, spreads, strict=True)]
    texts = [plus_minus(*score) for score in scores]
    fig, ax = bar_panel(curves, means, whiskers, texts, width)
    ax.set_xlabel(axis_name(metric, runs, selection, seeds=several))
    if reference is not None:
        named = {curve.name: mean for curve, mean in zip(curves, means, strict=True)}
        level = _level(reference, named)
        label = f"{reference}: {short(level)}" if reference in named else reference
        ax.axvline(level, color="0.2", linestyle="--", linewidth=0.9, label=label)
        add_legend(fig)
    return fig


def bar_panel(
    curves: Sequence[Curve],
    values: np.ndarray,
    whiskers: Sequence[float | np.ndarray | None],
    texts: Sequence[str],
    width: float,
) -> tuple[PlainFigure, Axes]:
    """A figure with one bar for each curve, the first on top, and a column of texts beside them.

    Args:
        curves: what the bars are of.
        values: `(curves,)` lengths.
        whiskers: how far each reaches to both sides, `(2, 1)` to the left and right, or None.
        texts: what to write to the right of each bar.
        width: width of the figure in inches.
    """
    labels = [textwrap.fill(curve.label, int(8 * width)) for curve in curves]
    slots = np.array([label.count("\n") + 1.6 for label in labels])
    middles = slots.cumsum() - slots / 2
    fig, (ax,) = panels(width, 0.5 + LINE_HEIGHT * slots.sum())
    for middle, curve, value, reach, text in zip(
        middles, curves, values, whiskers, texts, strict=True
    ):
        ax.barh(middle, value, 1.2, xerr=reach, color=curve.color, ecolor="0.3", capsize=2)
        ax.text(
            1.01,
            middle,
            text,
            va="center_baseline",
            fontsize=SMALL,
            transform=ax.get_yaxis_transform(),
        )
    ax.set_yticks(middles, labels)
    ax.set_ylim(slots.sum(), 0)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return fig, ax


def _level(reference: str, means: Mapping[str, float]) -> float:
    """Where the line stands."""
    try:
        level = means[reference] if reference in means else float(reference)
    except ValueError as e:
        names = ", ".join(means)
        raise InputError(f"reference {reference!r} is no number and no bar here: {names}") from e
    if not np.isfinite(level):
        raise InputError(f"reference {reference!r} is not finite; name another")
    return level
