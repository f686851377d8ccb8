"""Runs of a backtest: the folds of a seed stand for one test part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.comparison.errors import ModelErrors, model_errors
from stforecast.results import ForecastRun


def folds_of(runs: Iterable[ForecastRun]) -> dict[int, ForecastRun]:
    """Return the first run of each fold by its number; of plain runs, the first has number 0."""
    found: dict[int, ForecastRun] = {}
    for run in runs:
        found.setdefault(run.fold, run)
    return dict(sorted(found.items()))


def by_seed(runs: Iterable[ForecastRun]) -> list[list[ForecastRun]]:
    """Return the runs of each seed: one run, or one of each fold."""
    found: dict[int, list[ForecastRun]] = {}
    for run in runs:
        found.setdefault(run.seed, []).append(run)
    return list(found.values())


def joined_targets(runs: Iterable[ForecastRun]) -> xr.Dataset:
    """Return the observed targets `y` of all folds, one after the other."""
    return xr.concat([run.forecasts()[["y"]] for run in folds_of(runs).values()], "time")


def joined_errors(
    runs: Iterable[ForecastRun], metric: str, selection: str | None = None
) -> ModelErrors:
    """Compute the errors on the test parts of all folds.

    Args:
        runs: runs of one seed.
        metric: name of the error, as for `model_errors`.
        selection: model, as for `model_errors`.

    Raises:
        InputError: as `model_errors`.
    """
    return join_errors(
        [model_errors(run.forecasts(), metric, selection) for run in folds_of(runs).values()]
    )


def join_errors(parts: Sequence[ModelErrors]) -> ModelErrors:
    """Return the errors on several test parts of the same cells as those on one."""
    return dataclasses.replace(
        parts[0],
        total=np.concatenate([part.total for part in parts], axis=1),
        weight=np.concatenate([part.weight for part in parts], axis=1),
        times=pd.DatetimeIndex(parts[0].times.append([part.times for part in parts[1:]])),
    )
