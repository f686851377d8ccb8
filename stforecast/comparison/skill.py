"""Errors of methods by cell and step ahead, and their skill against seasonal naive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pandas as pd

from data_prep.errors import InputError
from stforecast.bench.run_groups import ALL, RunGroup
from stforecast.bench.statistics.scores import log_ratio
from stforecast.comparison.errors import SEASONAL, variables
from stforecast.comparison.folds import by_seed, joined_errors
from stforecast.results import ForecastRun


def errors_by_cell(
    group: RunGroup[ForecastRun], metric: str, *, naive: bool = False
) -> pd.DataFrame:
    """Return test errors by cell and step ahead, mean over the seeds of a group.

    Args:
        group: runs that differ only in the seed or fold.
        metric: name of the error as in `metrics.csv`.
        naive: whether to return the errors of seasonal naive on the same targets instead.

    Returns:
        A row for each cell; a column for each step ahead, and `ALL` for the whole horizon. NaN
        where nothing was observed, infinite where a forecast is not finite.

    Raises:
        InputError: if the metric is unknown, or seasonal naive could not forecast.
    """
    tables = [_of_seed(runs, metric, naive) for runs in by_seed(group.runs)]
    return reduce(pd.DataFrame.add, tables) / len(tables)


def skill(errors: pd.DataFrame, naive: pd.DataFrame) -> pd.Series:
    """Return the skill of each column: 1 minus the geometric mean over cells of ratios of errors.

    As `stforecast.bench.statistics.scores.skill`.

    Args:
        errors: errors of a method, see `errors_by_cell`.
        naive: those of seasonal naive.
    """
    logs = log_ratio(errors.to_numpy(), naive.to_numpy())
    return 1 - np.exp(pd.DataFrame(logs, errors.index, errors.columns).mean())


def _of_seed(runs: Sequence[ForecastRun], metric: str, naive: bool) -> pd.DataFrame:
    """Return the errors of a seed, pooled over the folds of a backtest."""
    with runs[0].open_forecasts() as forecasts:
        if naive and SEASONAL not in variables(forecasts):
            raise InputError(
                f"{runs[0].folder}: no forecasts of {SEASONAL}, which needs a day of data before "
                "the test part; compare with a label or draw errors instead"
            )
        cells, steps = forecasts.indexes["cell"], forecasts.indexes["horizon"]
    found = joined_errors(runs, metric, SEASONAL if naive else None)
    table = pd.DataFrame(found.by_cell_and_step(), cells, steps)
    table = table.rename(columns=str).assign(**{ALL: found.by_cell()})
    counts = found.weight.sum(axis=1)
    seen = np.column_stack([counts, counts.sum(axis=1)]) > 0
    return table.mask(table.isna() & seen, np.inf)
