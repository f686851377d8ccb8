"""Metrics of intervals: coverage, width, pinball loss and CRPS, summed and divided once; levels.

Nested intervals give quantiles: the bounds of the interval with coverage c have the levels
(1 - c) / 2 and (1 + c) / 2, and the forecast itself is the median. The CRPS of a distribution is
twice the integral of its pinball losses over all levels; here each known level represents the
levels nearest to it, so with three levels it is coarse: compare it only for equal levels.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from data_prep.base.errors import InputError
from stforecast.metrics.metric import IntervalMetric

if TYPE_CHECKING:
    from stforecast.intervals.bands import Bands


def covered(bands: Bands, y: np.ndarray, mask: np.ndarray, coverage: float) -> np.ndarray:
    """Count the targets within the interval, `(clients, horizon)` summed over windows.

    `y` and `mask` are as for `stforecast.metrics.point.evaluate`, in the unit of the bands.
    """
    lower, upper = bands.bounds[coverage]
    return _over_windows((lower <= y) & (y <= upper), mask)


def widths(bands: Bands, y: np.ndarray, mask: np.ndarray, coverage: float) -> np.ndarray:
    """Sum the widths of the interval where targets were observed; arguments as in `covered`."""
    lower, upper = bands.bounds[coverage]
    return _over_windows(upper - lower, mask)


def pinball(bands: Bands, y: np.ndarray, mask: np.ndarray, coverage: float) -> np.ndarray:
    """Sum the pinball losses, averaged over all levels; arguments as in `covered`."""
    losses = pinball_sums(bands, y, mask)
    return np.asarray(sum(losses.values())) / len(losses)


def crps(bands: Bands, y: np.ndarray, mask: np.ndarray, coverage: float) -> np.ndarray:
    """Sum twice the integral of pinball losses over all levels; arguments as in `covered`."""
    losses = pinball_sums(bands, y, mask)
    shares = _shares(np.array(list(losses)))
    return 2 * sum(w * loss for w, loss in zip(shares, losses.values(), strict=True))


def pinball_sums(bands: Bands, y: np.ndarray, mask: np.ndarray) -> dict[float, np.ndarray]:
    """Sum pinball losses over windows, `(clients, horizon)` by level in increasing order."""
    quantiles = {0.5: bands.centre}
    for coverage, (lower, upper) in bands.bounds.items():
        quantiles |= {(1 - coverage) / 2: lower, (1 + coverage) / 2: upper}
    found = {}
    for level in sorted(quantiles):
        error = np.subtract(y, quantiles[level], dtype=np.float64)
        found[level] = _over_windows(np.maximum(level * error, (level - 1) * error), mask)
    return found


def _over_windows(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, values, 0.0).sum(axis=1)


def _shares(levels: np.ndarray) -> np.ndarray:
    """Return the share of (0, 1) that is nearest to each level.

    >>> _shares(np.array([0.1, 0.5, 0.9])).round(2).tolist()
    [0.3, 0.4, 0.3]
    """
    between = (levels[1:] + levels[:-1]) / 2
    return np.diff(np.concatenate([[0.0], between, [1.0]]))


COVERAGE = IntervalMetric(
    "coverage",
    "share of targets within the interval of the widest pair of quantiles",
    covered,
    relative=True,
)
WIDTH = IntervalMetric(
    "width", "mean width of the interval of the widest pair of quantiles", widths
)
PINBALL = IntervalMetric(
    "pinball", "mean pinball loss over the levels of all bounds and the median", pinball
)
SCALED_PINBALL = IntervalMetric(
    "scaled_pinball",
    "pinball divided by the MAE of seasonal naive (a day) on the training part",
    pinball,
    scaled_by="mae",
    relative=True,
)
CRPS = IntervalMetric(
    "crps", "continuous ranked probability score, from the pinball losses of the same levels", crps
)


def parse_levels(text: str) -> tuple[float, ...]:
    """Read quantile levels from text.

    >>> parse_levels("0.05,0.5,0.95")
    (0.05, 0.5, 0.95)

    Raises:
        InputError: unless they increase, lie in (0, 1) and come in pairs around 0.5.
    """
    try:
        levels = tuple(float(level) for level in text.split(","))
    except ValueError as e:
        raise InputError(f"quantiles is {text!r}; give numbers like 0.05,0.5,0.95") from e
    increasing = all(low < high for low, high in pairwise((0.0, *levels, 1.0)))
    mirrored = [1 - level for level in reversed(levels)]
    if not increasing or not np.allclose(levels, mirrored) or len(levels) % 2 == 0:
        raise InputError(
            f"quantiles is {text!r}; give increasing levels between 0 and 1 in pairs around 0.5, "
            "like 0.05,0.5,0.95"
        )
    return levels


def pair_coverages(levels: tuple[float, ...]) -> dict[float, tuple[int, int]]:
    """Pair quantile levels that lie symmetrically around the median into intervals.

    The interval between the levels α / 2 and 1 - α / 2 has the nominal coverage 1 - α.

    >>> pair_coverages((0.05, 0.25, 0.5, 0.75, 0.95))
    {0.5: (1, 3), 0.9: (0, 4)}

    Args:
        levels: increasing levels, as returned by `parse_levels`.

    Returns:
        Positions of the lower and the upper level by coverage, narrow intervals first.
    """
    half = len(levels) // 2
    places = [(i, len(levels) - 1 - i) for i in reversed(range(half))]
    return {round(levels[high] - levels[low], 9): (low, high) for low, high in places}
