"""Radii of conformal intervals, from scores.

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

from collections.abc import Sequence

import numpy as np

RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Values of η: one step ahead, a miss widens an interval by 2 to 43 %, a hit narrows it by 0.2 to
4 %."""

SMALLEST = 1e-6
"""Least radius to begin with: one of 0 could never grow."""


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
    n = (~np.isnan(known)).sum(axis=1)
    # Rounded first, since 10 · 0.9 may exceed 9.
    rank = np.ceil(np.round((n + 1) * coverage, 9)).astype(int)
    place = (rank - 1).clip(0, known.shape[1] - 1)
    radius = np.take_along_axis(np.sort(known, axis=1), place[:, None], axis=1)[:, 0]
    return np.where(rank > n, np.inf, radius)


def largest_known(known: np.ndarray, coming: np.ndarray) -> np.ndarray:
    """Return the largest score that is known at each test window.

    Args:
        known: `(cells, n, horizon)` scores of the calibration windows, NaN where not observed.
        coming: `(cells, windows, horizon)` scores of the test windows, one step apart.

    Returns:
        `(cells, windows + 1, horizon)`; -inf as long as none is known.
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

    It begins with that of split conformal intervals, or the largest score if there are too few.

    Args:
        known: `(cells, n, horizon)` scores of the calibration windows, NaN where not observed.
        coming: `(cells, windows, horizon)` scores of the test windows, one step apart.
        coverage: 1 - α.
        rates: values of η.

    Returns:
        `(cells, windows + 1, horizon)`, positive; the last is that of the window after the test
        part. None exceeds `largest_known`, or `SMALLEST` if that is larger. Infinite as long as a
        client has no known score.
    """
    most = largest_known(known, coming)
    first = np.minimum(conformal_radius(known, coverage), most[:, 0])
    first[np.isinf(first)] = np.nan
    most = np.maximum(most, SMALLEST)
    steps = [
        _tracked(first[:, h], coming[..., h], most[..., h], h + 1, coverage, np.asarray(rates))
        for h in range(coming.shape[2])
    ]
    return np.stack(steps, axis=-1)


def _tracked(
    first: np.ndarray, coming: np.ndarray, most: np.ndarray, delay: int, coverage: float,
    rates: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return the radii `(cells, windows + 1)` of one step ahead.

    Args:
        first: `(cells,)` radii to begin with; NaN takes the first score.
        coming: `(cells, windows)` scores; each is known `delay` windows later.
        most: `(cells, windows + 1)` largest radii.
        delay: the step ahead, from 1.
        coverage: 1 - α.
        rates: `(rates,)` values of η for a delay of 1.
    """
    rates = rates / np.sqrt(delay)
    n_cells, n_windows = coming.shape
    radius = np.repeat(np.maximum(first, SMALLEST)[:, None], len(rates), axis=1)
    regret, squares = np.zeros(radius.shape), np.zeros((n_cells, 1))
    single, mean = np.empty((n_windows + 1, *radius.shape)), np.empty((n_windows + 1, n_cells))
    for t in range(n_windows + 1):
        if t >= delay:
            score, was = coming[:, t - delay, None], single[t - delay]
            move = np.where(np.isnan(score), 0.0, (score > was) - (1 - coverage))
            radius = np.minimum(radius * np.exp(rates * move), most[:, t, None])
            radius = np.where(np.isnan(radius), np.maximum(score, SMALLEST), radius)
            loss = _pinball(score - was, coverage)
            loss -= loss.mean(axis=1, keepdims=True)
            regret += loss
            squares += (loss**2).max(axis=1, keepdims=True)
        single[t] = radius
        mean[t] = (_weights(regret, squares) * radius).sum(axis=1)
    return np.where(np.isnan(mean), np.inf, mean).T


def _pinball(error: np.ndarray, level: float) -> np.ndarray:
    """Return pinball losses; 0 where no score or no radius was known."""
    return np.nan_to_num(np.maximum(level * error, (level - 1) * error))


def _weights(regret: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return exponential weights `(cells, rates)` by the losses so far."""
    rate = np.sqrt(np.log(regret.shape[1]) / np.maximum(squares, np.finfo(float).tiny))
    weights = np.exp(-rate * (regret - regret.min(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True)
