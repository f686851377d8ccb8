"""Error measures that mean one thing: summed over observed targets and divided once.

An update is a pure function that returns `(total, weight)`; totals and weights of batches add up,
and only the last division turns them into a value, so no mean of batch means can arise. Targets
where `mask` is False are left out; a NaN forecast of an observed target gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose

Axis = int | tuple[int, ...] | None
Sums = tuple[np.ndarray, np.ndarray]

TINY = 1.17e-6
"""Targets this close to 0 are left out of MAPE: the bound at which torchmetrics clamps them."""


def squared_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Sum of (y_hat - y)² and number of observed targets.

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
    """Sum of |y_hat - y| and number of observed targets; arguments as in `squared_errors`."""
    return _summed(np.abs(_error(y_hat, y, mask)), axis), _summed(mask, axis)


def relative_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Sum of |y_hat - y| / |y| and number of observed targets that are not 0.

    Targets of 0 (`TINY` or less) are left out, as DCRNN leaves them out. Arguments as in
    `squared_errors`; of use only in units with a true zero, not on z-scores.
    """
    kept = np.asarray(mask, dtype=bool) & (np.abs(y) > TINY)
    error = _error(y_hat, y, kept) / np.where(kept, y, 1.0)
    return _summed(np.abs(error), axis), _summed(kept, axis)


def absolute_errors_by_volume(
    y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None
) -> Sums:
    """Sum of |y_hat - y| and sum of |y|; arguments as in `squared_errors`."""
    volume = np.where(mask, np.abs(np.asarray(y, dtype=np.float64)), 0.0)
    return _summed(np.abs(_error(y_hat, y, mask)), axis), _summed(volume, axis)


def _error(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Signed error in float64, 0 where masked out."""
    shapes = [np.shape(a) for a in (y_hat, y, mask)]
    if len(set(shapes)) > 1:
        raise InputError("forecasts {}, targets {} and mask {} must have one shape".format(*shapes))
    return np.where(mask, np.asarray(y_hat, dtype=np.float64) - y, 0.0)


def _summed(values: np.ndarray, axis: Axis) -> np.ndarray:
    return np.asarray(values).sum(axis=axis)


def mean(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """`total / weight`, NaN where the weight is 0.

    >>> mean(np.array([6.0, 0.0]), np.array([3, 0])).tolist()
    [2.0, nan]
    """
    total, weight = np.asarray(total, dtype=np.float64), np.asarray(weight)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)


def root_mean(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Square root of `mean`."""
    return np.sqrt(mean(total, weight))


@dataclass(frozen=True)
class Metric:
    """An error measure.

    Attributes:
        description: one line for people.
        update: `(y_hat, y, mask, axis) -> (total, weight)`, both to be added up.
        finalise: `(total, weight) -> value`, NaN where the weight is 0.
        lower_is_better: which of two values wins.
    """

    description: str
    update: Callable[[np.ndarray, np.ndarray, np.ndarray, Axis], Sums]
    finalise: Callable[[np.ndarray, np.ndarray], np.ndarray] = mean
    lower_is_better: bool = True

    def __call__(self, y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
        """Value over all observed targets; arguments as in `squared_errors`."""
        return float(self.finalise(*self.update(y_hat, y, mask, None)))


METRICS = {
    "mse": Metric("mean squared error", squared_errors),
    "mae": Metric("mean absolute error", absolute_errors),
    "rmse": Metric("root mean squared error", squared_errors, root_mean),
    "mape": Metric("mean absolute error as a share of the target, zeros left out", relative_errors),
    "wape": Metric("sum of absolute errors over sum of targets", absolute_errors_by_volume),
}
"""Every metric by name."""


def evaluate(
    y_hat: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray | None = None,
    metrics: Iterable[str] = tuple(METRICS),
) -> pd.DataFrame:
    """Judge forecasts for each client and horizon step and for all of them pooled.

    Args:
        y_hat: `(clients, windows, horizon)` forecasts.
        y: targets of the same shape and unit.
        mask: bool of the same shape, False where the target was not observed.
        clients: `(clients,)` ids; by default their positions.
        metrics: names out of `METRICS`.

    Returns:
        One row for each `metric`, `client` (the id as text, or "all": pooled over the targets of
        all) and `horizon` ("1", "2", … or "all"); `value` is NaN where nothing was observed.

    Raises:
        InputError: if shapes differ or a metric is unknown.
    """
    ids = [str(c) for c in (range(len(y)) if clients is None else clients)]
    if np.ndim(y) != 3 or len(ids) != len(y):
        raise InputError(f"{len(ids)} clients and targets {np.shape(y)}: expected (clients, …, …)")
    tables = []
    for name in metrics:
        if name not in METRICS:
            raise choose("metric", name, METRICS)
        metric = METRICS[name]
        sums = metric.update(y_hat, y, mask, 1)
        tables.append(tabulate(name, sums, metric.finalise, ids))
    return pd.concat(tables, ignore_index=True)


def tabulate(
    name: str,
    sums: Sums,
    finalise: Callable[[np.ndarray, np.ndarray], np.ndarray],
    clients: Sequence[object] | np.ndarray,
) -> pd.DataFrame:
    """One metric's rows, as `evaluate` returns them.

    Args:
        name: of the metric.
        sums: `(total, weight)`, each `(clients, horizon)`.
        finalise: turns them into values.
        clients: `(clients,)` ids.
    """
    total, weight = (_with_margins(part) for part in sums)
    ids, steps = map(str, clients), (str(k + 1) for k in range(total.shape[1] - 1))
    index = pd.MultiIndex.from_product(
        [[*ids, "all"], [*steps, "all"]], names=["client", "horizon"]
    )
    values = finalise(total, weight).ravel()
    return pd.DataFrame({"metric": name, "value": values}, index=index).reset_index()


def _with_margins(sums: np.ndarray) -> np.ndarray:
    """`(clients, horizon)` with a last row and a last column that add up the others."""
    rows = np.concatenate([sums, sums.sum(axis=0, keepdims=True)])
    return np.concatenate([rows, rows.sum(axis=1, keepdims=True)], axis=1)
