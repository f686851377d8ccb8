"""Mixture of two forecasts of each cell and its usual values, by the errors that are known already.

Weights are the least-squares ones of the last seven days (Granger, Ramanathan, "Improved methods of
combining forecasts", Journal of Forecasting 3, 1984), kept between 0 and 1: first that of the
second forecast, drawn to one half, then that of the usual values in place of what this gives, drawn
to 0. They depend on the cell's own readings before the window alone.
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
"""Weight of what a weight is drawn to, as a share of what a whole week of errors weighs."""


def weights(
    forecast: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    usual: Callable[[np.ndarray], np.ndarray],
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the second forecast and of the usual values, `(cells, windows)` each.

    Args:
        forecast: function of first target steps that returns both forecasts of these windows,
            `(cells, windows, horizon)` each.
        usual: the same of the usual values.
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
        shape = series.shape[1], len(starts)
        return np.full(shape, 0.5), np.zeros(shape)
    first, second = forecast(origins)
    y, mask = training_targets(series, origins, spec, calendar)
    change, habit, error = (
        np.where(mask, part - first, 0.0).astype(np.float64) for part in (second, usual(origins), y)
    )
    start, end = (np.searchsorted(origins, k, side="right") for k in (known - week, known))
    prior = PRIOR * week / (every * np.maximum(end - start, 1))

    def known_sum(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        total = np.pad((one * other).sum(-1).cumsum(1), ((0, 0), (1, 0)))
        return np.asarray(total[:, end] - total[:, start])

    variance, shared = known_sum(change, change), known_sum(habit, change)
    w = _weight(known_sum(change, error), variance, prior, 0.5)
    # Sums over habit - w change and error - w change, which are relative to the mixture.
    further = w * (w * variance - shared)
    covariance = known_sum(habit, error) - w * known_sum(change, error) + further
    return w, _weight(covariance, known_sum(habit, habit) - w * shared + further, prior, 0.0)


def _weight(
    covariance: np.ndarray, variance: np.ndarray, prior: np.ndarray, drawn_to: float
) -> np.ndarray:
    """Return least-squares weights; `prior` is a share of the variance."""
    sure = variance > 0
    found = (covariance + prior * variance * drawn_to) / np.where(sure, variance * (1 + prior), 1.0)
    return np.where(sure, found.clip(0.0, 1.0), drawn_to)
