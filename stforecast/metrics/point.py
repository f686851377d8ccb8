"""Metrics of point forecasts, summed over observed targets and divided once.

Targets where `mask` is False are left out; a NaN forecast of an observed target gives NaN.

Tables of errors, by client and steps ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from stforecast.intervals.bands import Bands
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.metric import Axis, Metric, Scale, Sums, mean, root_mean

ROWS = 100_000
"""Rows of a table of errors from which it is made in parts."""

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
    return np.sum(_error(y_hat, y, mask) ** 2, axis), np.sum(mask, axis)


def absolute_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of |y_hat - y| and the number of targets; arguments as `squared_errors`."""
    return np.sum(np.abs(_error(y_hat, y, mask)), axis), np.sum(mask, axis)


def relative_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of |y_hat - y| / |y| and the number of observed non-zero targets.

    Targets of 0 (`TINY` or less) are left out, as in DCRNN. Arguments as in `squared_errors`;
    meaningful only in units with a true zero, not on z-scores.
    """
    kept = np.asarray(mask, dtype=bool) & (np.abs(y) > TINY)
    error = _error(y_hat, y, kept) / np.where(kept, y, 1.0)
    return np.sum(np.abs(error), axis), np.sum(kept, axis)


def symmetric_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of 2 |y_hat - y| / (|y_hat| + |y|) and the number of observed targets.

    It is 0 where both are 0. Arguments as in `relative_errors`.
    """
    sizes = np.abs(np.asarray(y_hat, dtype=np.float64)) + np.abs(y)
    both_zero = sizes == 0
    error = 2 * np.abs(_error(y_hat, y, mask)) / np.where(both_zero | ~np.asarray(mask), 1.0, sizes)
    return np.sum(error, axis), np.sum(mask, axis)


def signed_errors(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None) -> Sums:
    """Return the sum of y_hat - y and the number of targets; arguments as `squared_errors`."""
    return np.sum(_error(y_hat, y, mask), axis), np.sum(mask, axis)


def absolute_errors_by_volume(
    y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis = None
) -> Sums:
    """Return the sum of |y_hat - y| and the sum of |y|; arguments as in `squared_errors`."""
    volume = np.where(mask, np.abs(np.asarray(y, dtype=np.float64)), 0.0)
    return np.sum(np.abs(_error(y_hat, y, mask)), axis), np.sum(volume, axis)


def _error(y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the signed error in float64, 0 where masked out."""
    shapes = [np.shape(a) for a in (y_hat, y, mask)]
    if len(set(shapes)) > 1:
        raise InputError("forecasts {}, targets {} and mask {} must have one shape".format(*shapes))
    return np.where(mask, np.asarray(y_hat, dtype=np.float64) - y, 0.0)


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


def evaluate(
    y_hat: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray | None = None,
    metrics: Iterable[str] | None = None,
    scale: Scale | None = None,
) -> pd.DataFrame:
    """Evaluate forecasts for each client and horizon step and for all of them pooled.

    Args:
        y_hat: `(clients, windows, horizon)` forecasts.
        y: targets of the same shape and unit.
        mask: bool of the same shape, False where the target was not observed.
        clients: `(clients,)` ids; by default their positions. Rows of one id are pooled.
        metrics: names from `METRICS`; by default all.
        scale: divisor of scaled metrics; without it they are left out. A client whose scale is
            NaN has no such errors.

    Returns:
        One row for each `metric`, `client` (the id as text, or "all": pooled over the targets of
        all) and `horizon` ("1", "2", … or "all"); `value` is NaN where nothing was observed.

    Raises:
        InputError: if shapes differ or a metric is unknown.
    """
    ids = [str(c) for c in (range(len(y)) if clients is None else clients)]
    if np.ndim(y) != 3 or len(ids) != len(y):
        raise InputError(f"{len(ids)} clients and targets {np.shape(y)}: expected (clients, …, …)")
    return pd.concat(tabulated(error_sums(y_hat, y, mask, metrics, scale), ids), ignore_index=True)


def error_sums(
    y_hat: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    metrics: Iterable[str] | None = None,
    scale: Scale | None = None,
) -> dict[str, Sums]:
    """Return the sums of `evaluate` over windows by metric, `(clients, horizon)` each."""
    found = {}
    for name in METRICS if metrics is None else metrics:
        metric = METRICS.find(name)
        if metric.scaled_by and scale is None:
            continue
        by, known = _divisor(scale, metric.scaled_by)
        found[name] = metric.sums(y_hat / by, y / by, mask & known, 1)
    return found


def evaluate_intervals(
    bands: Bands,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray,
    coverage: float,
    scale: Scale | None = None,
) -> pd.DataFrame:
    """Evaluate intervals for each client and horizon step and for all of them pooled.

    `coverage` is the nominal one of the interval for the metrics `coverage` and `width`; other
    arguments, and the rows for each of `INTERVAL_METRICS`, are as for `evaluate`, in the unit of
    the bands.
    """
    sums = interval_sums(bands, y, mask, coverage, scale)
    return pd.concat(tabulated(sums, clients), ignore_index=True)


def interval_sums(
    bands: Bands, y: np.ndarray, mask: np.ndarray, coverage: float, scale: Scale | None = None
) -> dict[str, Sums]:
    """Return the sums of `evaluate_intervals` over windows, `(clients, horizon)` each."""
    found = {}
    for name, metric in INTERVAL_METRICS.items():
        if metric.scaled_by and scale is None:
            continue
        by, known = _divisor(scale, metric.scaled_by)
        seen = mask & known
        total = metric.update(bands.map(by.__rtruediv__), y / by, seen, coverage)
        if np.shape(total) != (shape := (len(y), np.shape(y)[-1])):
            raise InputError(
                f"metric {name}: for targets {np.shape(y)} its function returned shape "
                f"{np.shape(total)}, expected {shape}; sum over windows, axis 1"
            )
        found[name] = total, seen.sum(axis=1)
    return found


def _divisor(scale: Scale | None, which: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what to divide values of each client by, and whether it has such a scale.

    `(clients, 1, 1)` positive numbers and bool; 1.0 and True for metrics without a scale.
    """
    by = getattr(scale, which)[:, None, None] if which else np.ones((1, 1, 1))
    known = np.isfinite(by)
    return np.where(known, by, 1.0), known


def tabulated(
    sums: Mapping[str, Sums],
    clients: Sequence[object] | np.ndarray,
    names: Mapping[str, str] | None = None,
    most: int | None = None,
) -> Iterator[pd.DataFrame]:
    """Tabulate sums in the form returned by `evaluate`, as few metrics at a time as are large.

    Args:
        sums: `(total, weight)` of each metric, each `(clients, horizon)`.
        clients: `(clients,)` ids.
        names: name of each metric in the tables; by default its own.
        most: errors of each client at each step ahead are left out if they are more than this;
            the errors of each client and of each step are always given.
    """
    positions: dict[str, int] = {}
    rows = [positions.setdefault(str(client), len(positions)) for client in clients]
    horizon = len(next(iter(sums.values()))[0][0]) if sums and rows else 0
    kept = np.full(
        (len(positions) + 1, horizon + 1), most is None or len(positions) * horizon <= most
    )
    kept[-1] = kept[:, -1] = True
    by_client, by_step = np.nonzero(kept)
    ids = pd.Index([*positions, "all"])
    steps = pd.Index([*(str(k + 1) for k in range(horizon)), "all"])
    at_once = max(1, ROWS // len(by_client))
    for first in range(0, len(sums), at_once):
        values = dict[str, np.ndarray]()
        for name, parts in itertools.islice(sums.items(), first, first + at_once):
            finalise = METRICS[name].finalise if name in METRICS else mean
            margins = []
            for sums_of in parts:  # Rows of one client are pooled, then totals are appended.
                pooled = sums_of
                if len(positions) < len(rows):
                    pooled = np.zeros((len(positions), horizon), sums_of.dtype)
                    np.add.at(pooled, rows, sums_of)
                pooled = np.concatenate([pooled, pooled.sum(axis=0, keepdims=True)])
                margins.append(np.column_stack([pooled, pooled.sum(axis=1)]))
            values[(names or {}).get(name, name)] = finalise(*margins)[kept]
        table = {
            "client": ids.take(np.tile(by_client, len(values))),
            "horizon": steps.take(np.tile(by_step, len(values))),
            "metric": pd.Index([*values]).repeat(len(by_client)),
            "value": np.concatenate([*values.values()]),
        }
        yield pd.DataFrame(table)
