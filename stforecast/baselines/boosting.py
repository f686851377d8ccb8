"""Gradient boosting: scikit-learn's histogram trees on the windows of all cells together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from stforecast.baselines.pooled_trees import PooledTrees, threads_for
from stforecast.data.windows import Calendar
from stforecast.federated.options import CheckedOptions


@dataclass(frozen=True)
class BoostingConfig(CheckedOptions):
    """Options of `Boosting`, with scikit-learn's defaults.

    Attributes:
        max_iter: number of trees.
        learning_rate: shrinkage of each tree.
        max_leaf_nodes: leaves of a tree.
        random_state: seed of the tenth held out for early stopping, which scikit-learn uses on more
            than 10,000 records.
    """

    max_iter: PositiveInt = 100
    learning_rate: PositiveFloat = 0.1
    max_leaf_nodes: Annotated[int, Ge(2)] = 31
    random_state: NonNegativeInt = 0


class Boosting(PooledTrees):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees cannot be saved as plain arrays, so the state keeps the training windows, and loading fits
    the same trees again.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    learned = ("x", "y", "mask")
    Options = BoostingConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        return self._records(series, starts, calendar)

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        options = dataclasses.asdict(self.config)
        with threads_for(len(x)):
            self.models = [
                HistGradientBoostingRegressor(**options).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]
