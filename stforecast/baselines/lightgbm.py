"""LightGBM on rich lags, the usual strong choice for tables of many series.

Ke et al., "LightGBM: a highly efficient gradient boosting decision tree", NeurIPS 2017.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from pydantic import PositiveFloat, PositiveInt

from stforecast.baselines.peer import Peer, PeerOptions
from stforecast.baselines.pooled_trees import PooledTrees, flat, threads_for, with_cells
from stforecast.data.clock import Calendar
from stforecast.data.durations import DAY, WEEK
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

RECENT = 24
"""Number of newest steps among the inputs by default."""


@dataclass(frozen=True)
class LightGBMOptions(PeerOptions):
    """Options of `LightGBM`.

    Attributes:
        num_iterations: number of trees of each target step; by default 100, or what `tune` chooses.
        learning_rate: shrinkage of each tree; by default 0.1, or what `tune` chooses.
        num_leaves: leaves of a tree; by default 31, or what `tune` chooses.
        tune: choose these three settings, except those that are given, by the MSE on the validation
            part.
        lags: lags to read, written as extra_lags; empty takes the newest 24 steps and the values
            one day and one week before each target.
    """

    num_iterations: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    num_leaves: Annotated[int, Ge(2)] | None = None
    tune: bool = False
    lags: str = ""


class LightGBM(Peer, PooledTrees):
    """LightGBM's trees on lags, calendar and cell of all cells' windows, one model per target step.

    The cell's position is a categorical input. The settings of the windows add their imputation and
    holidays only. The state holds the library's text format. The time limit is checked after every
    tree while fitting; forecasts take little time.
    """

    name = "lightgbm"
    summary = "LightGBM on lags of a day and a week, calendar and cell, of all cells together"
    package = "lightgbm"
    learned = ("models", "n_cells")
    trees = ("num_iterations", 100)
    leaves = ("num_leaves", 31)
    Options = LightGBMOptions

    @property
    def knows_cells(self) -> bool:
        """Whether one model tells the cells apart; here always."""
        return True

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        records = self._records(series, starts, calendar)
        x, steps = records["x"], zip(records["y"].T, records["mask"].T, strict=True)
        with threads_for(len(x)):
            texts = [self._train(x[seen], y[seen], k) for k, (y, seen) in enumerate(steps)]
        return {
            "models": np.frombuffer(json.dumps(texts).encode(), np.uint8),
            "n_cells": np.array(series.shape[1]),
        }

    def _train(self, x: np.ndarray, y: np.ndarray, k: int) -> str:
        """Train the trees of one target step and return them as text."""
        done = (k, self.spec.horizon, "target steps")
        return str(self._boosted(self.config, x, y, done).model_to_string())

    def _errors(
        self, config: Any, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray
    ) -> np.ndarray:
        errors: dict[str, Any] = {}
        self._boosted(config, x, y, (0, 1, "searches for options"), (x_new, y_new), errors)
        return np.array(errors["new"]["l2"])

    def _boosted(
        self,
        config: Any,
        x: np.ndarray,
        y: np.ndarray,
        done: tuple[int, int, str],
        new: tuple[np.ndarray, np.ndarray] | None = None,
        errors: dict[str, Any] | None = None,
    ) -> Any:
        """Train trees; record their errors on new records in `errors` if there are any."""
        import lightgbm

        shape = self._shape(config)
        n_trees = shape.pop(self.trees[0])
        params = {**shape, "deterministic": True, "force_col_wise": True, "verbosity": -1}
        data = lightgbm.Dataset(x, y, categorical_feature=[x.shape[1] - 1], params=params)
        record = [] if errors is None else [lightgbm.record_evaluation(errors)]
        return lightgbm.train(
            params,
            data,
            num_boost_round=n_trees,
            valid_sets=[data.create_valid(*new)] if new else None,
            valid_names=["new"] if new else None,
            callbacks=[lambda _: self.limit.check(*done), *record],
        )

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        import lightgbm

        super()._restore(arrays)
        texts = json.loads(arrays["models"].tobytes())
        self.models = [lightgbm.Booster(model_str=text) for text in texts]

    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        return flat(with_cells(input_windows(series, starts, self._own_spec(calendar), calendar)))

    def _own_spec(self, calendar: Calendar) -> WindowSpec:
        """Return the shape of the windows that it reads."""
        return dataclasses.replace(
            self.spec,
            closeness=1,
            periods=0,
            newest_first=False,
            extra_lags=self.config.lags or rich_lags(self.spec.horizon, calendar),
            calendar="weekdays",
        ).at(calendar.step)

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        self._check_cells(series, int(self.arrays["n_cells"]))
        return super()._forecast(series, starts, calendar)


def rich_lags(horizon: int, calendar: Calendar) -> str:
    """Return the newest 24 lags but the first, and those one day and one week before each target.

    >>> import pandas as pd
    >>> rich_lags(3, Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h")))
    '2-24,166-168'
    >>> rich_lags(3, Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("10min")))
    '2-24,142-144,1006-1008'

    Args:
        horizon: number of target steps.
        calendar: the series' wall clock.
    """
    ranges = [range(2, RECENT + 1)]
    for span in (DAY, WEEK):
        season = calendar.steps_in(span)
        ranges.append(range(max(ranges[-1].stop, season - horizon + 1), season + 1))
    return ",".join(f"{lags.start}-{lags.stop - 1}" for lags in ranges if lags)
