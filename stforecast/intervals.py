"""Prediction intervals of any forecaster, conformally calibrated for each client.

Split conformal prediction widens a band until it covers the nominal share of the validation
targets, with the correction ⌈(n + 1)(1 - α)⌉ / n for a finite number n of them. The initial band of
a point forecast has zero width (Lei et al., JASA 2018); that of quantiles lies between them
(Romano, Patterson, Candès: Conformalized Quantile Regression, NeurIPS 2019, arXiv 1905.03222). Each
client and each step ahead is calibrated separately, so nothing is sent. The guarantee assumes that
validation and test errors are exchangeable, which those of a time series are not: see the measured
`coverage`.

`adaptive` adapts the level to the misses (Gibbs and Candès: Adaptive Conformal Inference Under
Distribution Shift, NeurIPS 2021, arXiv 2106.00170): α ← α + γ (α* - missed), as soon as a target is
known, i.e. h steps later for a forecast h steps ahead. Where α requires more than the largest error
so far, that error is taken; the paper would take an infinite interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat

from stforecast.data.windows import Calendar
from stforecast.federated.options import CheckedOptions
from stforecast.metrics.quantiles import pair_coverages
from stforecast.predictor import Predictor


@dataclass(frozen=True)
class IntervalOptions(CheckedOptions):
    """Settings of prediction intervals.

    Attributes:
        intervals: bounds at --quantiles: `none` (a quantile loss has bounds of its own),
            `conformal` (calibrated on the validation errors of each client and step ahead) or
            `adaptive` (conformal, and widened or narrowed when too many or too few targets are
            missed).
        adapt_rate: γ of adaptive intervals; the paper uses 0.005.
    """

    intervals: Literal["none", "conformal", "adaptive"] = "none"
    adapt_rate: NonNegativeFloat = 0.005


@dataclass(frozen=True, eq=False)
class Bands:
    """A forecast and nested prediction intervals around it.

    Attributes:
        centre: `(cells, windows, horizon)` forecasts.
        bounds: lower and upper bounds of the same shape by coverage, from narrow to wide.
    """

    centre: np.ndarray
    bounds: dict[float, tuple[np.ndarray, np.ndarray]]

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Bands:
        """Apply a function, such as a change of units, to all values."""
        bounds = {c: (function(low), function(high)) for c, (low, high) in self.bounds.items()}
        return Bands(function(self.centre), bounds)


def raw_bands(
    predictor: Predictor,
    series: np.ndarray,
    starts: np.ndarray,
    calendar: Calendar,
    coverages: tuple[float, ...],
) -> Bands:
    """Compute the bands of a forecaster before calibration.

    Args:
        predictor: the forecaster.
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` first target steps.
        calendar: the series' wall clock.
        coverages: coverages for a forecaster without pairs of quantiles; its bands have zero width.
    """
    quantiles = predictor.quantiles(series, starts, calendar)
    centre = quantiles[..., quantiles.shape[-1] // 2]
    bounds = {
        coverage: (quantiles[..., low], quantiles[..., high])
        for coverage, (low, high) in pair_coverages(predictor.levels).items()
    }
    return Bands(centre, bounds or dict.fromkeys(coverages, (centre, centre)))


def scores(bounds: tuple[np.ndarray, np.ndarray], y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Compute conformity scores: the distance of each target outside its interval.

    They are negative inside the interval and NaN where no target was observed.
    """
    lower, upper = bounds
    return np.where(mask, np.maximum(lower - y, y - upper), np.nan)


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
    ordered, n = _ordered(known)
    rank = _rank(n, 1 - coverage)
    return np.where(rank > n, np.inf, _pick(ordered, rank))


def adaptive_radii(
    known: np.ndarray, coming: np.ndarray, coverage: float, rate: float
) -> np.ndarray:
    """Return the radius of adaptive conformal intervals for each test window.

    It depends on the scores before the window only.

    Args:
        known: `(cells, n, horizon)` scores of the calibration windows, NaN where not observed.
        coming: `(cells, windows, horizon)` scores of the test windows, one step apart.
        coverage: 1 - α*.
        rate: γ.

    Returns:
        `(cells, windows + 1, horizon)`; the last is that of the window after the test part.
    """
    ordered, n = _ordered(known)
    largest = _pick(ordered, n)
    alpha = np.full(n.shape, 1 - coverage)
    missed = np.zeros(coming.shape)
    radii = np.empty((coming.shape[0], coming.shape[1] + 1, coming.shape[2]))
    ahead = np.arange(coming.shape[2])
    for t in range(radii.shape[1]):
        steps = ahead[t - ahead > 0]
        window = t - 1 - steps
        new = coming[:, window, steps]
        seen = ~np.isnan(new)
        alpha[:, steps] += np.where(seen, rate * (1 - coverage - missed[:, window, steps]), 0.0)
        largest[:, steps] = np.fmax(largest[:, steps], new)
        rank = _rank(n, alpha)
        radii[:, t] = np.where(rank > n, largest, _pick(ordered, rank))
        if t < coming.shape[1]:
            missed[:, t] = coming[:, t] > radii[:, t]
    return radii


def _ordered(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted scores, unobserved ones last, and the observed counts `(cells, horizon)`."""
    return np.sort(known, axis=1), (~np.isnan(known)).sum(axis=1)


def _rank(n: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
    """Return ⌈(n + 1)(1 - α)⌉, at least 1; rounded first, since 10 · 0.9 may exceed 9."""
    return np.ceil(np.round((n + 1) * (1 - alpha), 9)).astype(int).clip(1)


def _pick(ordered: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return the `rank`-th smallest score `(cells, horizon)`; NaN if there is none."""
    place = (rank - 1).clip(0, ordered.shape[1] - 1)
    return np.take_along_axis(ordered, place[:, None], axis=1)[:, 0]


def widened(bands: Bands, radii: dict[float, np.ndarray]) -> Bands:
    """Move bounds outwards by a radius; a negative one moves them at most to the forecast.

    Args:
        bands: before calibration.
        radii: by coverage, `(cells, windows, horizon)` or `(cells, 1, horizon)`.
    """
    moved = {}
    for coverage, (lower, upper) in bands.bounds.items():
        radius = radii[coverage]
        moved[coverage] = (
            np.minimum(lower - radius, bands.centre),
            np.maximum(upper + radius, bands.centre),
        )
    return Bands(bands.centre, moved)


def calibrated(
    known: tuple[Bands, np.ndarray, np.ndarray],
    coming: tuple[Bands, np.ndarray, np.ndarray],
    options: IntervalOptions,
) -> tuple[Bands, dict[float, np.ndarray]]:
    """Calibrate the bands of the test part on the validation part.

    Args:
        known: bands, targets and mask of windows whose targets are known when the test part begins.
        coming: those of the test part, one step apart; `adaptive` uses a target only once it is
            known.
        options: `conformal` or `adaptive`, with its rate.

    Returns:
        The bands, and the radius `(cells, 1, horizon)` of the window after the test part, by
        coverage.
    """
    radii, after = {}, {}
    for coverage, bounds in known[0].bounds.items():
        errors = scores(bounds, *known[1:])
        if options.intervals == "adaptive":
            new = scores(coming[0].bounds[coverage], *coming[1:])
            all_radii = adaptive_radii(errors, new, coverage, options.adapt_rate)
            radii[coverage], after[coverage] = all_radii[:, :-1], all_radii[:, -1:]
        else:
            radii[coverage] = after[coverage] = conformal_radius(errors, coverage)[:, None]
    return widened(coming[0], radii), after
