"""Coverage of intervals on the test part, by hour, by step ahead and by cell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xarray as xr

from data_prep.errors import InputError
from stforecast.comparison.errors import ModelErrors, local_times
from stforecast.comparison.folds import join_errors
from stforecast.metrics.metric import mean
from stforecast.results import ForecastRun


def coverages(forecasts: xr.Dataset) -> dict[float, ModelErrors]:
    """Return which targets lie inside the bounds, by nominal coverage from narrow to wide.

    Args:
        forecasts: contents of `forecasts.nc`.

    Returns:
        Shares of targets inside in place of errors; empty without bounds.
    """
    times, step = local_times(forecasts)
    y = forecasts["y"].to_numpy()
    seen = np.isfinite(y)
    found = {}
    for name, lower in forecasts.items():
        begin, bound, which = str(name).partition("lower")
        if begin or not bound:
            continue
        upper = forecasts[f"upper{which}"].to_numpy()
        inside = seen & (lower.to_numpy() <= y) & (y <= upper)
        nominal = float(lower.attrs.get("coverage", forecasts.attrs["coverage"]))
        found[nominal] = ModelErrors(inside.astype(float), seen.astype(float), times, step, mean)
    return dict(sorted(found.items()))


def joined_coverages(runs: Iterable[ForecastRun]) -> dict[float, ModelErrors]:
    """Return `coverages` on the test parts of all runs, seeds and folds alike.

    Raises:
        InputError: if a run has no intervals.
    """
    parts = []
    for run in runs:
        parts.append(coverages(run.forecasts()))
        if not parts[-1]:
            raise InputError(
                f"{run.folder}: a run without intervals; train it with --intervals normalised"
            )
    return {nominal: join_errors([part[nominal] for part in parts]) for nominal in parts[0]}
