"""How good intervals are: coverage, width, pinball loss and CRPS, summed and divided once.

A nested set of intervals gives quantiles: the bounds of the one of coverage c are those of levels
(1 - c) / 2 and (1 + c) / 2, and the forecast itself is the median. The CRPS of a distribution is
twice the integral of its pinball losses over all levels; here each level known stands for those
nearer to it than to another, so with three levels it is coarse: compare it where levels are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.intervals import Bands
from stforecast.metrics.point import mean, tabulate

INTERVAL_METRICS = {
    "coverage": "share of targets within the interval of the widest pair of --quantiles",
    "width": "mean width of that interval",
    "pinball": "mean pinball loss over the levels of all bounds and the median",
    "crps": "continuous ranked probability score, from the pinball losses of those levels",
}
"""Every metric of intervals, and what it is."""


def evaluate_intervals(
    bands: Bands,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray,
    coverage: float,
) -> pd.DataFrame:
    """Judge intervals for each client and horizon step and for all of them pooled.

    Args:
        bands: forecasts and their intervals.
        y: `(clients, windows, horizon)` targets in the bands' unit.
        mask: bool of the same shape, False where the target was not observed.
        clients: `(clients,)` ids.
        coverage: of the interval that `coverage` and `width` are of.

    Returns:
        Rows like those of `stforecast.metrics.point.evaluate`, one for each of `INTERVAL_METRICS`.
    """
    lower, upper = bands.bounds[coverage]
    losses = pinball_sums(bands, y, mask)
    levels = np.array(list(losses))
    sums = {
        "coverage": _over_windows((lower <= y) & (y <= upper), mask),
        "width": _over_windows(upper - lower, mask),
        "pinball": sum(losses.values()) / len(levels),
        "crps": 2 * sum(w * loss for w, loss in zip(_shares(levels), losses.values(), strict=True)),
    }
    seen = np.asarray(mask).sum(axis=1)
    return pd.concat(
        [tabulate(name, (total, seen), mean, clients) for name, total in sums.items()],
        ignore_index=True,
    )


def pinball_sums(bands: Bands, y: np.ndarray, mask: np.ndarray) -> dict[float, np.ndarray]:
    """Pinball losses `(clients, horizon)` summed over windows, by level in increasing order."""
    quantiles = {0.5: bands.centre}
    for coverage, (lower, upper) in bands.bounds.items():
        quantiles |= {(1 - coverage) / 2: lower, (1 + coverage) / 2: upper}
    return {level: _pinball(quantiles[level], y, mask, level) for level in sorted(quantiles)}


def _pinball(q: np.ndarray, y: np.ndarray, mask: np.ndarray, level: float) -> np.ndarray:
    error = np.subtract(y, q, dtype=np.float64)
    return _over_windows(np.maximum(level * error, (level - 1) * error), mask)


def _over_windows(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, values, 0.0).sum(axis=1)


def _shares(levels: np.ndarray) -> np.ndarray:
    """Share of (0, 1) that lies nearest to each level.

    >>> _shares(np.array([0.1, 0.5, 0.9])).round(2).tolist()
    [0.3, 0.4, 0.3]
    """
    between = (levels[1:] + levels[:-1]) / 2
    return np.diff(np.concatenate([[0.0], between, [1.0]]))
