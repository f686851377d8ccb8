"""Distribution of test errors over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import ONE_COLUMN, add_legend, panels
from stforecast.bench.numbers import short
from stforecast.bench.run_groups import by_client
from stforecast.plots.scores import error_name, error_rows
from stforecast.results import ForecastRun


@listed
def cdf(runs: Sequence[ForecastRun], *, metric: str = "mse", width: float = ONE_COLUMN) -> Figure:
    """Distribution of the test error over clients: the share of clients with an error of at most x.

    The clients of runs that differ only in the seed are pooled. The dot marks the median; the mean
    is the area to the left of the curve. As Figure 3 (bottom) of FUELS (arXiv 2404.03702).

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
    fig, (ax,) = panels(width, 2.3)
    for curve, errors in zip(curves, pooled, strict=True):
        known = np.sort(errors[np.isfinite(errors)])
        label = curve.label
        if len(known):
            label += f": median {short(np.median(known))}, mean {short(known.mean())}"
            ax.plot(np.median(known), 0.5, ".", color=curve.color, markersize=7)
        if unknown := len(errors) - len(known):
            label += f" ({unknown} of {len(errors)} clients have no finite error)"
        shares = np.arange(len(known) + 1) / max(1, len(known))
        ax.step([0.0, *known], shares, where="post", label=label, **curve.line)
    ax.set_xlim(left=0)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel(f"test {error_name(metric, runs)}, per client")
    ax.set_ylabel("share of clients")
    add_legend(fig)
    return fig


def _client_errors(run: ForecastRun, metric: str) -> np.ndarray:
    """Return the errors `(clients,)` over the whole horizon."""
    return by_client(error_rows(run, metric))["value"].to_numpy()
