"""Size of the error to be expected of a forecast, from what is known when it is made.

The scale is exp(w · x): a Poisson regression of absolute validation errors on features x of the
forecast and of the series before it. Each error is first divided by the mean of its client and step
ahead. The weights w are fitted to all clients and steps together, since a validation part is too
short for weights of each client. In a federation the server would need only sums over clients, of
features and of gradients; nothing else leaves a client.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stforecast.data.clock import Calendar

FEATURES = ("recent change", "deviation at this hour", "level", "move")
"""Features of a forecast: logarithm of the latest changes of the series over their mean; logarithm
of the series' mean deviation from the median of the target's hour, over that of all hours; the
forecast; and its distance from the last value."""

RECENT = 0.7 ** np.arange(12)
"""Weights of the latest changes, newest first."""

OFFSET = 0.1
"""Added to ratios before their logarithm, for series at rest."""

FURTHEST = 3.0
"""Limit of standardised features, so that odd inputs do not make boundless intervals."""

PRIOR = 20
"""Number of errors that the prior, weights of 0, counts as."""


@dataclass(frozen=True, eq=False)
class ErrorScale:
    """Size of each client's errors by time.

    Attributes:
        change: `(cells,)` mean absolute change between steps of the training part.
        by_hour: `(24, cells)` mean deviation from the hour's median in each hour of the day, over
            the mean of all hours.
        centre: `(features,)` means of the features.
        spread: `(features,)` their standard deviations.
        weights: `(features,)` w.
    """

    change: np.ndarray
    by_hour: np.ndarray
    centre: np.ndarray
    spread: np.ndarray
    weights: np.ndarray

    @classmethod
    def fit(
        cls,
        series: np.ndarray,
        training: slice,
        calendar: Calendar,
        starts: np.ndarray,
        y_hat: np.ndarray,
        errors: np.ndarray,
    ) -> ErrorScale:
        """Fit the profile to the training part, and the weights to errors after it.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing.
            training: steps of the training part.
            calendar: the series' wall clock.
            starts: `(windows,)` first target steps of the forecasts.
            y_hat: `(cells, windows, horizon)` forecasts.
            errors: `(cells, windows, horizon)` their absolute errors, NaN where not observed.
        """
        values = series[training]
        hours = calendar.local_times(np.arange(training.start, training.stop)).hour.to_numpy()
        change = _positive(_average(np.abs(np.diff(values, axis=0))))
        n = len(FEATURES)
        plain = cls(change, _profile(values, hours), np.zeros(n), np.ones(n), np.zeros(n))
        x = np.stack([*plain._features(series, starts, y_hat, calendar)], axis=2)
        centre, spread = x.mean(axis=(0, 1, 2)), x.std(axis=(0, 1, 2))
        spread = np.where(spread > 1e-6, spread, 1.0)
        weights = _weights(_standardised(x, centre, spread), errors)
        return cls(change, plain.by_hour, centre, spread, weights)

    def at(
        self, series: np.ndarray, starts: np.ndarray, y_hat: np.ndarray, calendar: Calendar
    ) -> np.ndarray:
        """Return the scale of forecasts; of the series it reads only the steps before each start.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing.
            starts: `(windows,)` first target steps; may be the step just after the series.
            y_hat: `(cells, windows, horizon)` forecasts.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)`, positive; 1 for mean features.
        """
        scale = np.empty(y_hat.shape)
        for h, x in enumerate(self._features(series, starts, y_hat, calendar)):
            scale[..., h] = np.exp(_standardised(x, self.centre, self.spread) @ self.weights)
        return scale

    def _features(
        self, series: np.ndarray, starts: np.ndarray, y_hat: np.ndarray, calendar: Calendar
    ) -> Iterator[np.ndarray]:
        """Yield `FEATURES` of the forecasts of each step ahead, `(cells, windows, features)`."""
        recent = np.log(self._recent_change(series, starts) + OFFSET)
        last = np.nan_to_num(series[np.maximum(starts - 1, 0)]).T
        by_hour = np.log(self.by_hour + OFFSET).T
        for h in range(y_hat.shape[2]):
            deviation = by_hour[:, calendar.local_times(starts + h).hour]
            level = y_hat[..., h].astype(np.float64)
            yield np.stack([recent, deviation, level, np.abs(level - last)], axis=-1)

    def _recent_change(self, series: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return the weighted mean of the latest changes over the mean change `(cells, windows)`.

        A change that was not observed counts as a mean one.
        """
        n = len(RECENT)
        before = np.full((n + 1, series.shape[1]), np.nan)
        # Row n + k is the change from step k - 1 to step k.
        changes = np.abs(np.diff(np.concatenate([before, series]), axis=0)) / self.change
        changes[np.isnan(changes)] = 1.0
        weights = RECENT / RECENT.sum()
        return np.asarray(sum(w * changes[starts + n - 1 - j].T for j, w in enumerate(weights)))


def scale_shapes(n_cells: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a scale."""
    of_features = dict.fromkeys(("centre", "spread", "weights"), (len(FEATURES),))
    return {"change": (n_cells,), "by_hour": (24, n_cells), **of_features}


def _profile(values: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """Return the mean deviation of each hour over that of all hours, `(24, cells)`.

    Args:
        values: `(steps, cells)` of the training part.
        hours: `(steps,)` hour of each step.
    """
    within = [values[hours == hour] for hour in range(24)]
    sizes = [np.abs(of_hour - _average(of_hour, np.nanmedian)) for of_hour in within]
    mean = _positive(_average(np.concatenate(sizes)))
    # Hours that training lacks count as mean ones.
    return np.stack([np.nan_to_num(_average(of_hour) / mean, nan=1.0) for of_hour in sizes])


def _weights(x: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the weights `(features,)`.

    Args:
        x: `(cells, windows, horizon, features)` standardised features.
        errors: `(cells, windows, horizon)` absolute errors, NaN where not observed.
    """
    from sklearn.linear_model import PoissonRegressor  # slow

    relative = errors / _positive(_average(errors.swapaxes(0, 1)))[:, None]
    seen = ~np.isnan(relative)
    if not relative[seen].any():
        return np.zeros(x.shape[-1])
    model = PoissonRegressor(alpha=PRIOR / seen.sum(), solver="newton-cholesky")
    return model.fit(x[seen], relative[seen]).coef_


def _standardised(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return ((x - centre) / spread).clip(-FURTHEST, FURTHEST)


def _average(values: np.ndarray, how: Callable[..., np.ndarray] = np.nanmean) -> np.ndarray:
    """Average over the first axis without NaN; NaN where there is nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return how(values, axis=0)


def _positive(sizes: np.ndarray) -> np.ndarray:
    """Replace sizes of constant series, which divide nothing but 0, by 1."""
    return np.where(sizes > 0, sizes, 1.0)
