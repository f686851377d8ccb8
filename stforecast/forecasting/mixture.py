"""Mixture of two forecasts of each cell, weighted by the errors that are known already.

The weight is the least-squares one of the last seven days (Granger, Ramanathan, "Improved methods
of combining forecasts", Journal of Forecasting 3, 1984), drawn to one half and kept between 0 and
1. It depends on the cell's own readings before the window alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stforecast.data.clock import Calendar
from stforecast.data.dates import WEEK
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import training_targets

PER_HORIZON = 4
"""Windows whose errors count, per horizon: those of each step would take long to forecast."""

PRIOR = 0.2
"""Weight of one half, as a share of what a whole week of errors weighs."""


def weights(
    forecast: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> np.ndarray:
    """Return the weight of the second forecast of each window, `(cells, windows)`.

    Args:
        forecast: function of first target steps that returns both forecasts of these windows,
            `(cells, windows, horizon)` each.
        series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
        starts: `(windows,)` first target steps of the windows to forecast.
        spec: the windows' shape.
        calendar: the series' wall clock.
    """
    every, week = max(1, spec.horizon // PER_HORIZON), calendar.steps_in(WEEK)
    known = np.asarray(starts) - spec.horizon
    begin = max(spec.max_lag, known.min() + 1 - week)
    origins = np.arange(-(-begin // every) * every, known.max() + 1, every)
    if not len(origins):
        return np.full((series.shape[1], len(starts)), 0.5)
    first, second = forecast(origins)
    y, mask = training_targets(series, origins, spec, calendar)
    change = np.where(mask, second - first, 0.0).astype(np.float64)
    products = change * np.where(mask, y - first, 0.0), change**2
    totals = [np.pad(p.sum(-1).cumsum(1), ((0, 0), (1, 0))) for p in products]
    start, end = (np.searchsorted(origins, k, side="right") for k in (known - week, known))
    covariance, variance = (total[:, end] - total[:, start] for total in totals)
    prior = PRIOR * week / (every * np.maximum(end - start, 1)) * variance
    sure = variance > 0
    weight = (covariance + prior / 2) / np.where(sure, variance + prior, 1.0)
    return np.where(sure, weight.clip(0.0, 1.0), 0.5)
