"""Radii of conformal intervals, from scores, and the size of the error to be expected by time.

Quantile tracking keeps the share of misses near its target whatever the drift: the logarithm r of
the radius becomes r + η (missed - α) as soon as a target is known, h steps later for a forecast h
steps ahead (Angelopoulos, Candès, Tibshirani: Conformal PID Control for Time Series Prediction,
NeurIPS 2023, arXiv 2307.16895). There r is the radius itself; with its logarithm η has no unit.

Late feedback lets a radius overshoot: h misses in a row are answered before the first answer shows.
Hence η is divided by √h, the rate of online gradient descent whose feedback is h steps late
(Quanrud and Khashabi: Online Learning with Adversarial Delays, NeurIPS 2015), and no
radius exceeds the largest score that is known. The second also holds in Gibbs and Candès (Adaptive
Conformal Inference Under Distribution Shift, NeurIPS 2021, arXiv 2106.00170), which move α, so
that a radius is always a quantile of earlier scores. Of the remedies measured on real and simulated
data, η / h reacts too slowly to a drift, additive moves narrow too slowly, and moving α is as good
but takes ten times as long.

The best η depends on the data, so the radii of several are averaged, with weights by their pinball
losses so far, as in Zaffran et al. (Adaptive Conformal Predictions for Time Series, ICML 2022,
arXiv 2202.07282). Weights are exponential with the rate √(ln K / Σ max l²) for K values of η, where
l is a loss less the mean of the K; the paper uses Bernstein online aggregation.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stforecast.data.clock import Calendar

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Values of η: one step ahead, a miss widens an interval by 2 to 43 %, a hit narrows it by 0.2 to
4 %."""

SMALLEST = 1e-6
"""Least radius to begin with: one of 0 could never grow."""


def side_scores(
    bounds: tuple[np.ndarray, np.ndarray], y: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute conformity scores of each side: how far targets lie below and above the interval.

    They are negative inside the interval and NaN where no target was observed.
    """
    lower, upper = bounds
    return np.where(mask, lower - y, np.nan), np.where(mask, y - upper, np.nan)


def conformal_radius(known: np.ndarray, coverage: float) -> np.ndarray:
    """Return the radius of split conformal intervals: the ⌈(n + 1) coverage⌉-th smallest score.

    >>> errors = np.array([3.0, 1.0, 2.0, 4.0]).reshape(1, 4, 1)
    >>> float(conformal_radius(errors, 0.6).item()), float(conformal_radius(errors, 0.9).item())
    (3.0, inf)

    Args:
        known: `(cells, n, horizon)` scores of the calibration windows, NaN where not observed.
        coverage: 1 - α.

    Returns:
        `(cells, horizon)`; infinite where n is too small for the coverage.
    """
    n = (~np.isnan(known)).sum(axis=1)
    # Rounded first, since 10 · 0.9 may exceed 9.
    rank = np.ceil(np.round((n + 1) * coverage, 9)).astype(int)
    place = (rank - 1).clip(0, known.shape[1] - 1)
    radius = np.take_along_axis(np.sort(known, axis=1), place[:, None], axis=1)[:, 0]
    return np.where(rank > n, np.inf, radius)


def largest_known(known: np.ndarray, coming: np.ndarray) -> np.ndarray:
    """Return the largest score that is known at each test window.

    Scores are as for `tracked_radii`; the result is `(cells, windows + 1, horizon)`, -inf as long
    as none is known.
    """
    first = np.fmax.reduce(known, axis=1, keepdims=True, initial=-np.inf)
    largest = np.fmax.accumulate(np.concatenate([first, coming], axis=1), axis=1)
    n_windows, horizon = coming.shape[1:]
    # At window t, the scores h steps ahead are known of windows before t - h + 1.
    n_known = np.maximum(np.arange(n_windows + 1)[:, None] - np.arange(horizon), 0)
    return np.take_along_axis(largest, n_known[None], axis=1)


def tracked_radii(
    known: np.ndarray, coming: np.ndarray, coverage: float, rates: Sequence[float] = RATES
) -> np.ndarray:
    """Return the radius for each test window, which depends on the scores before it only.

    It begins with the radius of split conformal intervals, or the largest score if there are too
    few.

    Args:
        known: `(cells, n, horizon)` scores of the calibration windows, NaN where not observed.
        coming: `(cells, windows, horizon)` scores of the test windows, one step apart.
        coverage: 1 - α.
        rates: values of η.

    Returns:
        `(cells, windows + 1, horizon)`, positive; the last belongs to the window after the test
        part. None exceeds `largest_known`, or `SMALLEST` if that is larger. Infinite as long as a
        client has no known score.
    """
    most = largest_known(known, coming)
    first = np.minimum(conformal_radius(known, coverage), most[:, 0])
    first[np.isinf(first)] = np.nan
    most = np.maximum(most, SMALLEST)
    return _tracked(first, coming, most, coverage, np.asarray(rates))


def _tracked(
    first: np.ndarray, coming: np.ndarray, most: np.ndarray, coverage: float, rates: np.ndarray
) -> np.ndarray:
    """Return the radii `(cells, windows + 1, horizon)`, of all steps ahead together.

    Args:
        first: `(cells, horizon)` radii to begin with; NaN takes the first score.
        coming: `(cells, windows, horizon)` scores; one h steps ahead is known h windows later.
        most: `(cells, windows + 1, horizon)` largest radii.
        coverage: 1 - α.
        rates: `(rates,)` values of η for one step ahead.
    """
    n_cells, n_windows, horizon = coming.shape
    ahead = np.arange(horizon)
    # The cells come last: they are many, and every operation runs along them.
    coming, most = coming.transpose(1, 2, 0), most.transpose(1, 2, 0)
    coming, most = np.ascontiguousarray(coming)[:, :, None], np.ascontiguousarray(most)[:, :, None]
    rates = (rates / np.sqrt(ahead + 1)[:, None])[..., None]
    wider, narrower = np.exp(rates * coverage), np.exp(rates * (coverage - 1))
    gaps = bool(np.isnan(first).any() or np.isnan(coming).any())
    radius = np.repeat(np.maximum(first.T, SMALLEST)[:, None], rates.shape[1], axis=1)
    regret, squares = np.zeros(radius.shape), np.zeros((horizon, 1, n_cells))
    mean = np.empty((n_windows + 1, horizon, n_cells))
    # The radii of the last windows, each in turn at one of `horizon + 1` places.
    single = np.empty((horizon + 1, *radius.shape))
    for t in range(n_windows + 1):
        n = min(t, horizon)  # Steps ahead whose score of an earlier window becomes known now.
        if n:
            then = t - 1 - ahead[:n]
            score, was = coming[then, ahead[:n]], single[then % len(single), ahead[:n]]
            factor = np.repeat(narrower[:n], n_cells, axis=2)
            np.copyto(factor, wider[:n], where=score > was)
            if gaps:
                np.copyto(factor, 1.0, where=np.isnan(score))
            moved = np.multiply(radius[:n], factor, out=radius[:n])
            np.minimum(moved, most[t, :n], out=moved)
            if gaps:
                np.copyto(moved, np.maximum(score, SMALLEST), where=np.isnan(moved))
            error = score - was  # No loss where no score or no radius was known.
            loss = np.fmax(np.maximum(coverage * error, (coverage - 1) * error), 0.0)
            loss -= loss.mean(axis=1, keepdims=True)
            regret[:n] += loss
            squares[:n] += np.square(loss, out=loss).max(axis=1, keepdims=True)
        single[t % len(single)] = radius
        mean[t] = (_weights(regret, squares) * radius).sum(axis=1)
    return np.where(np.isnan(mean), np.inf, mean).transpose(2, 0, 1)


def _weights(regret: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return exponential weights `(…, rates, cells)` by the losses so far."""
    rate = np.sqrt(np.log(regret.shape[1]) / np.maximum(squares, np.finfo(float).tiny))
    weights = regret - regret.min(axis=1, keepdims=True)
    np.exp(np.multiply(weights, -rate, out=weights), out=weights)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


FEATURES = ("recent change", "deviation at this hour", "level", "move")
"""Features of a forecast: logarithm of the latest changes of the series over their mean; logarithm
of the series' mean deviation from the median of the target's hour, over the deviation of all hours;
the forecast; and its distance from the last value."""

RECENT = 0.7 ** np.arange(12)
"""Weights of the latest changes, newest first."""

OFFSET = 0.1
"""Added to ratios before their logarithm, for series at rest."""

FURTHEST = 3.0
"""Limit of standardised features, so that odd inputs do not make boundless intervals."""


def fitted(n_cells: int) -> slice:
    """Return the cells to whose errors the weights are fitted: at most about 500.

    >>> fitted(400), fitted(1200)
    (slice(None, None, 1), slice(None, None, 3))
    """
    return slice(None, None, -(-n_cells // 500))


@dataclass(frozen=True, eq=False)
class ErrorScale:
    """Size of the error to be expected of a forecast, from the values known when it is made.

    The scale is exp(w · x): a Poisson regression of absolute validation errors on features x of the
    forecast and of the series before it. Each error is first divided by the mean of its client and
    step ahead. The weights w are fitted to all clients and steps together, since a validation part
    is too short for weights of each client. In a federation the server would need only sums over
    clients, of features and of gradients; nothing else leaves a client.

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
            y_hat: `(fitted, windows, horizon)` forecasts of the cells that are `fitted`.
            errors: `(fitted, windows, horizon)` their absolute errors, NaN where not observed.
        """
        n, none = len(FEATURES), np.empty(0)
        unfitted = cls(none, none, np.zeros(n), np.ones(n), np.zeros(n))
        plain = unfitted.of_series(series, training, calendar)
        some = fitted(series.shape[1])
        of_some = plain.of_cells(some)._features(series[:, some], starts, y_hat, calendar)
        x = np.stack([*of_some], axis=2)
        centre, spread = x.mean(axis=(0, 1, 2)), x.std(axis=(0, 1, 2))
        spread = np.where(spread > 1e-6, spread, 1.0)
        weights = _poisson_weights(_standardised(x, centre, spread), errors)
        return cls(plain.change, plain.by_hour, centre, spread, weights)

    def of_series(self, series: np.ndarray, training: slice, calendar: Calendar) -> ErrorScale:
        """Return the scale of a series' cells with the same weights; arguments as in `fit`."""
        values = series[training]
        hours = calendar.local_times(np.arange(training.start, training.stop)).hour.to_numpy()
        change = _positive(_average(np.abs(np.diff(values, axis=0))))
        return dataclasses.replace(self, change=change, by_hour=_profile(values, hours))

    @classmethod
    def of_parts(cls, parts: Sequence[ErrorScale]) -> ErrorScale:
        """Return the scale of the cells of all parts, which have the same weights."""
        change = np.concatenate([part.change for part in parts])
        by_hour = np.concatenate([part.by_hour for part in parts], axis=1)
        return dataclasses.replace(parts[0], change=change, by_hour=by_hour)

    def of_cells(self, some: slice) -> ErrorScale:
        """Return the scale of some cells."""
        return dataclasses.replace(self, change=self.change[some], by_hour=self.by_hour[:, some])

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
    """Return the mean deviation of each hour over the mean of all hours, `(24, cells)`.

    Args:
        values: `(steps, cells)` of the training part.
        hours: `(steps,)` hour of each step.
    """
    within = [values[hours == hour] for hour in range(24)]
    sizes = [np.abs(of_hour - _average(of_hour, np.nanmedian)) for of_hour in within]
    mean = _positive(_average(np.concatenate(sizes)))
    # Hours that training lacks count as mean ones.
    return np.stack([np.nan_to_num(_average(of_hour) / mean, nan=1.0) for of_hour in sizes])


def _poisson_weights(x: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the weights `(features,)` of a Poisson regression of relative errors y.

    Newton's method minimises Σ (exp(w · x + b) - y (w · x + b)) + 10 |w|²: the prior, weights of 0,
    counts as 20 errors. The intercept b is left out.

    Args:
        x: `(cells, windows, horizon, features)` standardised features.
        errors: `(cells, windows, horizon)` absolute errors, NaN where not observed.
    """
    relative = errors / _positive(_average(errors.swapaxes(0, 1)))[:, None]
    seen = ~np.isnan(relative)
    y = relative[seen]
    if not y.any():
        return np.zeros(x.shape[-1])
    x = np.column_stack([x[seen], np.ones(len(y))])
    penalties = np.array([20] * (x.shape[1] - 1) + [0.0])
    weights = np.append(np.zeros(x.shape[1] - 1), np.log(y.mean()))

    def loss(weights: np.ndarray) -> float:
        at = x @ weights
        with np.errstate(over="ignore"):
            return float((np.exp(at) - y * at).sum() + penalties @ weights**2 / 2)

    now, smallest = loss(weights), 1e-9
    for _ in range(50):
        mean = np.exp(x @ weights)
        slope = x.T @ (mean - y) + penalties * weights
        step = np.linalg.solve((x.T * mean) @ x + np.diag(penalties), slope)
        while not (new := loss(weights - step)) <= now and np.abs(step).max() > smallest:
            step = step / 2
        weights, now = weights - step, new
        if np.abs(step).max() <= smallest:
            break
    found: np.ndarray = weights[:-1]
    return found


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
