"""Distribution of test errors over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import ONE_COLUMN, add_legend
from stforecast.bench.multiples import draw_curves, outer_labels
from stforecast.bench.numbers import short
from stforecast.bench.run_groups import by_client
from stforecast.plots.figure import figure
from stforecast.plots.scores import error_name, error_rows
from stforecast.results import ForecastRun

HEIGHT = 2.3
"""Height of a single panel in inches."""


@figure
def cdf(runs: Sequence[ForecastRun], *, metric: str = "mse", width: float = ONE_COLUMN) -> Figure:
    """Distribution of the test error over clients: the share of clients with an error of at most x.

    The clients of runs that differ only in the seed are pooled. Curves are sorted by the mean, the
    lowest first; more than six have a panel each. The dot marks the median; the mean
    is the area to the left of the curve. As in Figure 3 (bottom) of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        metric: error of each client over all steps; raw_… is in the data's units.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric is unknown, listing the known ones, or if no client has an error.
    """
    curves = as_curves(runs)
    pooled = [np.concatenate([_client_errors(run, metric) for run in c.runs]) for c in curves]
    if not any(np.isfinite(errors).any() for errors in pooled):
        raise InputError(f"no client of these runs has a finite {metric}; there is nothing to draw")
    order = np.argsort([_mean(errors) for errors in pooled], kind="stable")
    errors_of = {curves[i].name: pooled[i] for i in order}
    curves = [curves[i] for i in order]
    labels = [_label(curve, errors_of[curve.name]) for curve in curves]

    def draw(ax: Axes, curve: Curve[ForecastRun], label: str) -> None:
        known = np.sort(_known(errors_of[curve.name]))
        if len(known) and not curve.faint:
            ax.plot(np.median(known), 0.5, ".", color=curve.color, markersize=7)
        shares = np.arange(len(known) + 1) / max(1, len(known))
        ax.step([0.0, *known], shares, where="post", label=label, **curve.line)

    fig, axes = draw_curves(curves, labels, draw, width, HEIGHT)
    for ax in axes:
        ax.set_xlim(left=0)
        ax.set_ylim(0, 1.02)
    name = f"test {error_name(metric, runs)}, per client"
    outer_labels(axes, name, "share of clients", width, HEIGHT)
    add_legend(fig)
    return fig


def _known(errors: np.ndarray) -> np.ndarray:
    return errors[np.isfinite(errors)]


def _mean(errors: np.ndarray) -> float:
    known = _known(errors)
    return float(known.mean()) if len(known) else np.inf


def _label(curve: Curve[ForecastRun], errors: np.ndarray) -> str:
    """Return the name of a curve with the median and the mean of its errors."""
    known, label = _known(errors), curve.label
    if len(known):
        label += f": median {short(np.median(known))}, mean {short(known.mean())}"
    if unknown := len(errors) - len(known):
        label += f" ({unknown} of {len(errors)} clients have no finite error)"
    return label


def _client_errors(run: ForecastRun, metric: str) -> np.ndarray:
    """Return the errors `(clients,)` over the whole horizon."""
    return by_client(error_rows(run, metric))["value"].to_numpy()
