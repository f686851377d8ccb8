"""Metrics of point forecasts, summed over observed targets and divided once.

Targets where `mask` is False are left out; a NaN forecast of an observed target gives NaN.
"""

from __future__ import annotations

import numpy as np

from data_prep.errors import InputError
from stforecast.metrics.metric import Axis, Metric, Sums, root_mean

TINY = 1.17e-6
"""Bound below which targets are left out of MAPE; torchmetrics clamps them there."""


def squared_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of (y_hat - y)² and the number of observed targets.

    >>> squared_errors(np.array([[3.0, 9.0]]), np.ones((1, 2)), np.array([[True, False]]), axis=1)
    (array([4.]), array([1]))

    Args:
        y_hat: forecasts, any shape.
        y: targets of the same shape and unit.
        mask: bool of the same shape, False where the target was not observed.
        axis: axes to sum over; all by default.
    """
    return _summed(_error(y_hat, y, mask) ** 2, axis), _summed(mask, axis)


def absolute_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of |y_hat - y| and the number of targets; arguments as `squared_errors`."""
    return _summed(np.abs(_error(y_hat, y, mask)), axis), _summed(mask, axis)


def relative_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of |y_hat - y| / |y| and the number of observed non-zero targets.

    Targets of 0 (`TINY` or less) are left out, as in DCRNN. Arguments as in `squared_errors`;
    meaningful only in units with a true zero, not on z-scores.
    """
    kept = np.asarray(mask, dtype=bool) & (np.abs(y) > TINY)
    error = _error(y_hat, y, kept) / np.where(kept, y, 1.0)
    return _summed(np.abs(error), axis), _summed(kept, axis)


def symmetric_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of 2 |y_hat - y| / (|y_hat| + |y|) and the number of observed targets.

    It is 0 where both are 0. Arguments as in `relative_errors`.
    """
    sizes = np.abs(np.asarray(y_hat, dtype=np.float64)) + np.abs(y)
    both_zero = sizes == 0
    error = 2 * np.abs(_error(y_hat, y, mask)) / np.where(both_zero | ~np.asarray(mask), 1.0, sizes)
    return _summed(error, axis), _summed(mask, axis)


def signed_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of y_hat - y and the number of targets; arguments as `squared_errors`."""
    return _summed(_error(y_hat, y, mask), axis), _summed(mask, axis)


def absolute_errors_by_volume(
    y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None
) -> Sums:
    """Return the sum of |y_hat - y| and the sum of |y|; arguments as in `squared_errors`."""
    volume = np.where(mask, np.abs(np.asarray(y, dtype=np.float64)), 0.0)
    return _summed(np.abs(_error(y_hat, y, mask)), axis), _summed(volume, axis)


def _error(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the signed error in float64, 0 where masked out."""
    shapes = [np.shape(a) for a in (y_hat, y, mask)]
    if len(set(shapes)) > 1:
        raise InputError("forecasts {}, targets {} and mask {} must have one shape".format(*shapes))
    return np.where(mask, np.asarray(y_hat, dtype=np.float64) - y, 0.0)


def _summed(values: np.ndarray, axis: Axis) -> np.ndarray:
    return np.asarray(values).sum(axis=axis)


MSE = Metric("mse", "mean squared error", squared_errors, squared=True)
MAE = Metric("mae", "mean absolute error", absolute_errors)
RMSE = Metric("rmse", "root mean squared error", squared_errors, root_mean)
MAPE = Metric(
    "mape",
    "mean absolute error as a share of the target; zero targets are left out",
    relative_errors,
    relative=True,
)
WAPE = Metric(
    "wape",
    "sum of absolute errors divided by the sum of targets",
    absolute_errors_by_volume,
    relative=True,
)
SMAPE = Metric(
    "smape",
    "mean of the absolute error divided by the mean size of forecast and target (M4), 0 to 2",
    symmetric_errors,
    relative=True,
)
BIAS = Metric("bias", "mean of forecast minus target; 0 is best", signed_errors, signed=True)
MASE = Metric(
    "mase",
    "MAE divided by that of seasonal naive (a day) on the training part",
    absolute_errors,
    scaled_by="mae",
    relative=True,
)
RMSSE = Metric(
    "rmsse",
    "RMSE divided by that of seasonal naive (a day) on the training part",
    squared_errors,
    root_mean,
    scaled_by="rmse",
    relative=True,
)
