"""Tables of errors, by client and steps ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from stforecast.intervals import Bands
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.metric import Sums, mean


def evaluate(
    y_hat: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray | None = None,
    metrics: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Evaluate forecasts for each client and horizon step and for all of them pooled.

    Args:
        y_hat: `(clients, windows, horizon)` forecasts.
        y: targets of the same shape and unit.
        mask: bool of the same shape, False where the target was not observed.
        clients: `(clients,)` ids; by default their positions.
        metrics: names from `METRICS`; by default all.

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
    for name in METRICS if metrics is None else metrics:
        metric = METRICS.find(name)
        tables.append(_tabulated(name, metric.update(y_hat, y, mask, 1), metric.finalise, ids))
    return pd.concat(tables, ignore_index=True)


def evaluate_intervals(
    bands: Bands,
    y: np.ndarray,
    mask: np.ndarray,
    clients: Sequence[object] | np.ndarray,
    coverage: float,
) -> pd.DataFrame:
    """Evaluate intervals for each client and horizon step and for all of them pooled.

    Args:
        bands: forecasts and their intervals.
        y: `(clients, windows, horizon)` targets in the bands' unit.
        mask: bool of the same shape, False where the target was not observed.
        clients: `(clients,)` ids.
        coverage: nominal coverage of the interval for the metrics `coverage` and `width`.

    Returns:
        Rows like those of `evaluate`, for each of `INTERVAL_METRICS`.
    """
    seen = np.asarray(mask).sum(axis=1)
    tables = [
        _tabulated(name, (metric.update(bands, y, mask, coverage), seen), mean, clients)
        for name, metric in INTERVAL_METRICS.items()
    ]
    return pd.concat(tables, ignore_index=True)


def _tabulated(
    name: str,
    sums: Sums,
    finalise: Callable[[np.ndarray, np.ndarray], np.ndarray],
    clients: Sequence[object] | np.ndarray,
) -> pd.DataFrame:
    """Tabulate one metric in the form returned by `evaluate`.

    Args:
        name: name of the metric.
        sums: `(total, weight)`, each `(clients, horizon)`.
        finalise: function that turns the sums into values.
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
    """Append a row and a column of totals to `(clients, horizon)`."""
    rows = np.concatenate([sums, sums.sum(axis=0, keepdims=True)])
    return np.concatenate([rows, rows.sum(axis=1, keepdims=True)], axis=1)
