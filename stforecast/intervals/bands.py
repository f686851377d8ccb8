"""Forecasts with nested intervals around them, and the settings of prediction intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from stforecast.data.clock import Calendar
from stforecast.federated.core.options import CheckedOptions
from stforecast.metrics.interval import pair_coverages

if TYPE_CHECKING:
    from stforecast.forecasting.fit import Predictor


@dataclass(frozen=True, eq=False)
class Bands:
    """A forecast and nested prediction intervals around it.

    Attributes:
        centre: `(cells, windows, horizon)` forecasts.
        bounds: lower and upper bounds of the same shape by coverage, from narrow to wide.
    """

    centre: np.ndarray
    bounds: dict[float, tuple[np.ndarray, np.ndarray]]

    def of_cells(self, some: slice) -> Bands:
        """Return the bands of some cells."""
        return self.map(lambda values: values[some])

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

    A forecaster without pairs of quantiles has bands of the `coverages`, of zero width. Series,
    starts and calendar are as for its `predict`.
    """
    quantiles = predictor.quantiles(series, starts, calendar)
    centre = quantiles[..., quantiles.shape[-1] // 2]
    bounds = {
        coverage: (quantiles[..., low], quantiles[..., high])
        for coverage, (low, high) in pair_coverages(predictor.levels).items()
    }
    return Bands(centre, bounds or dict.fromkeys(coverages, (centre, centre)))


def widened(bands: Bands, radii: Mapping[float, np.ndarray]) -> Bands:
    """Move bounds outwards by radii; a negative one moves its bound at most to the forecast.

    Args:
        bands: before calibration.
        radii: by coverage, `(cells, windows, horizon, 2)` or `(cells, 1, horizon, 2)`: of the lower
            and of the upper bound.
    """
    moved = {}
    for coverage, (lower, upper) in bands.bounds.items():
        down, up = np.moveaxis(radii[coverage], -1, 0)
        moved[coverage] = (
            np.minimum(lower - down, bands.centre),
            np.maximum(upper + up, bands.centre),
        )
    return Bands(bands.centre, moved)


def clip(bands: Bands, lowest: np.ndarray, highest: np.ndarray) -> None:
    """Move bounds outside the possible values to their ends, in place; forecasts stay as they are.

    Args:
        bands: forecasts and bounds.
        lowest: `(cells, 1, 1)` lowest possible values, -inf for none.
        highest: `(cells, 1, 1)` highest possible values, inf for none.
    """
    for bounds in bands.bounds.values():
        for bound in bounds:
            low, high = (limit.astype(bound.dtype) for limit in (lowest, highest))
            bound.clip(low, high, out=bound)


def include_constant(bands: Bands, past: np.ndarray) -> None:
    """Widen bounds, in place, to the value of a cell that has had only one, `past` (steps, cells).

    Errors of a shared model differ little from window to window there, so that bounds calibrated on
    them would leave the value out.
    """
    lowest, highest = np.fmin.reduce(past), np.fmax.reduce(past)
    for i in np.flatnonzero(lowest == highest):
        for lower, upper in bands.bounds.values():
            np.fmin(lower[i], lowest[i], out=lower[i])
            np.fmax(upper[i], lowest[i], out=upper[i])


def ranges_outside(lowest: np.ndarray, highest: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return how far bounds lie outside the observed values of their cell, in ranges of these.

    Args:
        lowest: `(cells,)` lowest bounds.
        highest: `(cells,)` highest bounds.
        values: `(steps, cells)` observed values, NaN where missing. A constant cell has the widest
            range of all cells.

    Returns:
        `(cells,)`; 0 for bounds inside, NaN where nothing was observed.

    >>> values = np.array([[0.0, 5.0], [10.0, 7.0]])
    >>> ranges_outside(np.array([-5.0, 5.5]), np.array([9.0, 6.0]), values).tolist()
    [0.5, 0.0]
    """
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    span = high - low
    span = np.where(span == 0, np.fmax.reduce(span), span)
    outside = np.maximum(np.maximum(low - lowest, highest - high), 0)
    return np.divide(outside, span, out=np.where(outside > 0, np.inf, outside), where=span > 0)


@dataclass(frozen=True)
class IntervalOptions(CheckedOptions):
    """Settings of prediction intervals.

    Attributes:
        intervals: bounds at --quantiles: `none` (a quantile loss has bounds of its own),
            `normalised` (recommended: calibrated on the validation errors of each client and step
            ahead, with widths that follow the hour, the level and recent changes, and widened or
            narrowed when too many or too few targets are missed, each side by its own; four weights
            are fitted to the errors of all clients together) or `conformal` (calibrated once, with
            one width of each client and step ahead; guaranteed for exchangeable errors). Bounds of
            data that were never below 0 in training are not below 0.
    """

    intervals: Literal["none", "normalised", "conformal"] = "none"
