"""Backtest of a forecaster: its results on successive test spans, and what they show together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import counted
from stforecast.bench.statistics.bootstrap import skill
from stforecast.bench.statistics.estimate import ErrorSums, Estimate
from stforecast.bench.tables import for_terminal, plus_minus
from stforecast.comparison.errors import (
    SEASONAL,
    ModelErrors,
    hourly_errors,
    locations,
    model_errors,
    variables,
)
from stforecast.comparison.leaderboard import neighbours, resample
from stforecast.comparison.names import error_title
from stforecast.comparison.rows import join_errors

SUMMARISED = ("raw_mae", "mase")
"""Errors in the summary."""

SKILL = "skill"
"""Name of the skill of the MAE against seasonal naive in the summary."""


@dataclass(frozen=True, eq=False)
class FoldResult:
    """Results of a forecaster that was fitted on one fold.

    Attributes:
        metrics: result of `Forecaster.evaluate`.
        forecasts: result of `Forecaster.test_forecasts`.
        parts: result of `Forecaster.data_.parts`.
    """

    metrics: pd.DataFrame
    forecasts: xr.Dataset
    parts: Mapping[str, Mapping[str, str] | None]


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Results of a forecaster on the folds of a backtest; its text is a summary with intervals.

    Attributes:
        description: number of folds and lengths of their spans, such as "3 folds of 7 days".
        results: results on each fold, oldest first.
    """

    description: str
    results: Sequence[FoldResult]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Errors as `Forecaster.evaluate` returns them, with the column `fold` (1, 2, …)."""
        return self._stacked([result.metrics for result in self.results])

    @cached_property
    def hours(self) -> pd.DataFrame:
        """Test errors by hour of local time: `client`, `hour`, `metric`, `value` and `fold`."""
        return self._stacked([hourly_errors(result.forecasts) for result in self.results])

    @cached_property
    def folds(self) -> pd.DataFrame:
        """First and last target of each part in local time, a row for each fold.

        Columns are `training_first`, `training_last`, `validation_first` and so on; NaT where a
        fold has no validation part.
        """
        rows = [
            {
                f"{part}_{end}": (span or {}).get(end)
                for part, span in result.parts.items()
                for end in ("first", "last")
            }
            for result in self.results
        ]
        return pd.DataFrame(rows, self._numbers).apply(pd.to_datetime)

    @cached_property
    def forecasts(self) -> xr.Dataset:
        """Test forecasts of all folds along `time`, with the fold of each time as a coordinate.

        Variables are those of `Forecaster.test_forecasts` with a time: the scales of cells, such as
        `std`, differ between folds and are left out.
        """
        parts = [
            result.forecasts.drop_vars(
                [n for n, v in result.forecasts.items() if v.ndim < 3]
            ).assign_coords(fold=("time", np.full(result.forecasts.sizes["time"], number)))
            for number, result in zip(self._numbers, self.results, strict=True)
        ]
        return xr.concat(parts, "time")

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Errors pooled over all test days, and skill against seasonal naive, with intervals.

        `raw_mae` is the MAE in the data's units; `skill` is 1 minus the geometric mean over cells
        of its ratio to that of seasonal naive, unless that could not forecast. Intervals are those
        of benchmarks' tables, of 95 % (`stforecast.bench.statistics.bootstrap`).
        """
        first = self.results[0].forecasts
        groups = neighbours(locations(first))
        known = all(SEASONAL in variables(result.forecasts) for result in self.results)
        method = str(first.attrs["method"])
        models = {method: None, **({SEASONAL: SEASONAL} if known else {})}
        replicates = {
            metric: resample(
                {name: self._sums(metric, model) for name, model in models.items()}, metric, groups
            )
            for metric in SUMMARISED
        }
        found = {metric: resampled.error(method) for metric, resampled in replicates.items()}
        if known:
            found[SKILL] = skill([replicates[SUMMARISED[0]]], method, SEASONAL)
        return found

    def __repr__(self) -> str:
        first = self.results[0].forecasts
        title = (
            f"{first.attrs['method']}: {self.description}, "
            f"{counted(first.sizes['cell'], 'cell')}, "
            f"{counted(first.sizes['horizon'], 'step')} ahead"
        )
        return f"{title}\n\n{for_terminal([self._line(name) for name in self.estimates])}"

    def _line(self, name: str) -> dict[str, str]:
        """Return a row of the summary: the estimate, and the error on each fold."""
        estimate = self.estimates[name]
        if name == SKILL:
            title = f"skill in MAE against {SEASONAL}, %"
            return {"": title, "all days [95 %]": str(estimate.times(100))}
        units = str(self.results[0].forecasts["y"].attrs["units"])
        title = error_title(name, "data units" if units == "1" else units)
        folds = {
            f"fold {number}": plus_minus(float(e.finalise(e.total.sum(), e.weight.sum())), 0.0)
            for number, e in zip(self._numbers, self._errors(name, None), strict=True)
        }
        return {"": title, "all days [95 %]": str(estimate), **folds}

    @property
    def _numbers(self) -> pd.RangeIndex:
        return pd.RangeIndex(1, len(self.results) + 1, name="fold")

    def _stacked(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        numbered = zip(self._numbers, tables, strict=True)
        return pd.concat([t.assign(fold=number) for number, t in numbered], ignore_index=True)

    def _errors(self, metric: str, model: str | None) -> list[ModelErrors]:
        return [model_errors(result.forecasts, metric, model) for result in self.results]

    def _sums(self, metric: str, model: str | None) -> ErrorSums:
        total, weight = join_errors(self._errors(metric, model)).by_day()
        return ErrorSums(total[None], weight[None])
