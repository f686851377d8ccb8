"""LightGBM on rich lags, the usual strong choice for tables of many series.

Ke et al., "LightGBM: a highly efficient gradient boosting decision tree", NeurIPS 2017.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from pydantic import PositiveFloat, PositiveInt

from stforecast.baselines.peer import Peer, PeerOptions
from stforecast.baselines.pooled_trees import PooledTrees, threads_for
from stforecast.data.durations import DAY, WEEK
from stforecast.data.windows import Calendar, WindowSpec, input_windows

RECENT = 24
"""Number of newest steps among the inputs by default."""


@dataclass(frozen=True)
class LightGBMOptions(PeerOptions):
    """Options of `LightGBM`, with the library's defaults.

    Attributes:
        num_iterations: number of trees of each target step.
        learning_rate: shrinkage of each tree.
        num_leaves: leaves of a tree.
        lags: lags to read, written as extra_lags; empty takes the newest 24 steps and the values
            one day and one week before each target.
    """

    num_iterations: PositiveInt = 100
    learning_rate: PositiveFloat = 0.1
    num_leaves: Annotated[int, Ge(2)] = 31
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
    Options = LightGBMOptions

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
        import lightgbm

        params = {
            "num_leaves": self.config.num_leaves,
            "learning_rate": self.config.learning_rate,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        }
        model = lightgbm.train(
            params,
            lightgbm.Dataset(x, y, categorical_feature=[x.shape[1] - 1], params=params),
            num_boost_round=self.config.num_iterations,
            callbacks=[lambda _: self.limit.check(k, self.spec.horizon, "target steps")],
        )
        return model.model_to_string()

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        import lightgbm

        super()._restore(arrays)
        texts = json.loads(arrays["models"].tobytes())
        self.models = [lightgbm.Booster(model_str=text) for text in texts]

    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x = input_windows(series, starts, self._own_spec(calendar), calendar)
        cell = np.broadcast_to(np.arange(len(x))[:, None, None], (*x.shape[:2], 1))
        return np.concatenate([x, cell], axis=-1, dtype=np.float32).reshape(-1, x.shape[-1] + 1)

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
