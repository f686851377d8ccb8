"""Figures of test errors over clients and over steps ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.bench.bars import bar_panel
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import ONE_COLUMN, add_legend, count_axis, panels
from stforecast.bench.numbers import short
from stforecast.bench.run_groups import by_client, by_step
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


@listed
def horizon(
    runs: Sequence[ForecastRun], *, metric: str = "raw_mae", width: float = ONE_COLUMN
) -> Figure:
    """Test error at each step ahead, pooled over clients; with one step, a bar for each curve.

    Runs that differ only in the seed are drawn as their mean, with whiskers from lowest to highest.

    Args:
        runs: finished runs.
        metric: name of the error; raw_… is in the data's units.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric is unknown, listing the known ones.
    """
    curves = as_curves(runs)
    errors = [pd.concat([_step_errors(r, metric) for r in c.runs], axis=1) for c in curves]
    name = f"test {error_name(metric, runs)}"
    if all(len(table) == 1 for table in errors):
        means = np.concatenate([_mean(table) for table in errors])
        texts = [short(mean) for mean in means]
        fig, ax = bar_panel(curves, means, [_whiskers(table) for table in errors], texts, width)
        ax.set_xlabel(name)
        return fig
    fig, (ax,) = panels(width, 2.3)
    for curve, table in zip(curves, errors, strict=True):
        mean = _mean(table)
        label = curve.label if np.isfinite(mean).all() else f"{curve.label}, not finite everywhere"
        style = {**curve.line, "marker": curve.marker, "markersize": 3.5}
        ax.errorbar(table.index, mean, _whiskers(table), label=label, **style)
    count_axis(ax, "steps ahead")
    ax.set_ylabel(name)
    add_legend(fig)
    return fig


def _client_errors(run: ForecastRun, metric: str) -> np.ndarray:
    """Return the errors `(clients,)` over the whole horizon."""
    return by_client(error_rows(run, metric))["value"].to_numpy()


def _step_errors(run: ForecastRun, metric: str) -> pd.Series:
    """Return the errors `(horizon,)` pooled over clients, by step."""
    table = by_step(error_rows(run, metric))
    return table.set_index(table["horizon"].astype(int))["value"].sort_index()


def _mean(table: pd.DataFrame) -> np.ndarray:
    """Return the mean over runs `(horizon,)`; NaN where a run has no error."""
    return table.mean(axis=1, skipna=False).to_numpy()


def _whiskers(table: pd.DataFrame) -> np.ndarray | None:
    """Return the distances of the lowest and highest run from the mean, `(2, horizon)`."""
    if table.shape[1] == 1:
        return None
    mean = _mean(table)
    reach = np.array([mean - table.min(axis=1), table.max(axis=1) - mean])
    return reach.clip(min=0)  # The mean of equal numbers may be off by its rounding.
