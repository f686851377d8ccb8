"""Gradient boosting: scikit-learn's histogram trees on the windows of all cells together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from stforecast.baselines.pooled_trees import PooledTrees, threads_for
from stforecast.data.windows import Calendar
from stforecast.federated.options import CheckedOptions


@dataclass(frozen=True)
class BoostingConfig(CheckedOptions):
    """Options of `Boosting`.

    Attributes:
        max_iter: number of trees; by default 100, or what `tune` chooses.
        learning_rate: shrinkage of each tree; by default 0.1, or what `tune` chooses.
        max_leaf_nodes: leaves of a tree; by default 31, or what `tune` chooses.
        tune: choose what is not given of these three by the MSE on the validation part.
        random_state: seed of the tenth held out for early stopping, which scikit-learn uses on more
            than 10,000 records unless the trees are tuned.
    """

    max_iter: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    max_leaf_nodes: Annotated[int, Ge(2)] | None = None
    tune: bool = False
    random_state: NonNegativeInt = 0


class Boosting(PooledTrees):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees cannot be saved as plain arrays, so the state keeps the training windows, and loading fits
    the same trees again.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    learned = ("x", "y", "mask")
    trees = ("max_iter", 100)
    leaves = ("max_leaf_nodes", 31)
    Options = BoostingConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        return self._records(series, starts, calendar)

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        with threads_for(len(x)):
            self.models = [
                self._model(self.config).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]

    def _errors(
        self, config: Any, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray
    ) -> np.ndarray:
        stages = self._model(config).fit(x, y).staged_predict(x_new)
        return np.array([np.square(y_hat - y_new).mean() for y_hat in stages])

    def _model(self, config: Any) -> Any:
        """Return a new regressor of the library."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(
            **self._shape(config),
            early_stopping=False if config.tune else "auto",
            random_state=config.random_state,
        )
