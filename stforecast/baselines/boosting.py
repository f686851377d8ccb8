"""Gradient boosting: scikit-learn's histogram trees on the windows of all cells together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from data_prep.errors import InputError
from stforecast.baselines.pooled_trees import PooledTrees, flat, threads_for, with_cells
from stforecast.data.clock import Calendar
from stforecast.data.roads import neighbour_inputs, strongest_neighbours
from stforecast.data.windows import input_windows
from stforecast.federated.options import CheckedOptions

MOST_CELLS = 255
"""Largest number of categories of an input that scikit-learn takes."""


@dataclass(frozen=True)
class BoostingConfig(CheckedOptions):
    """Options of `Boosting`.

    Attributes:
        max_iter: number of trees; by default 100, or what `tune` chooses.
        learning_rate: shrinkage of each tree; by default 0.1, or what `tune` chooses.
        max_leaf_nodes: leaves of a tree; by default 31, or what `tune` chooses.
        tune: choose these three settings, except those that are given, by the MSE on the validation
            part.
        cell_id: whether the cell is an input, as one of at most 255 categories.
        neighbours: number of cells with the strongest roads to or from a cell whose last two
            readings are inputs; needs data with an adjacency.
        random_state: seed of the tenth held out for early stopping, which scikit-learn uses on more
            than 10,000 records unless the trees are tuned.
    """

    max_iter: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    max_leaf_nodes: Annotated[int, Ge(2)] | None = None
    tune: bool = False
    cell_id: bool = False
    neighbours: Annotated[NonNegativeInt, Le(64)] = 0
    random_state: NonNegativeInt = 0


class Boosting(PooledTrees):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees cannot be saved as plain arrays, so the state keeps the training windows, and loading fits
    the same trees again.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    learned = ("x", "y", "mask")
    reads_covariates = True
    trees = ("max_iter", 100)
    leaves = ("max_leaf_nodes", 31)
    Options = BoostingConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        if self.config.cell_id and series.shape[1] > MOST_CELLS:
            raise InputError(
                f"{self.name}: cell_id takes up to {MOST_CELLS} cells, the data have "
                f"{series.shape[1]}; leave it out"
            )
        records = self._records(series, starts, calendar)
        own = {"n_cells": np.array(series.shape[1])} if self.knows_cells else {}
        roads = {"neighbours": self._neighbours()} if self.config.neighbours else {}
        return {**records, **own, **roads}

    @property
    def knows_cells(self) -> bool:
        """Whether inputs tell the cells apart, so that it cannot forecast others."""
        return bool(self.config.cell_id or self.config.neighbours)

    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x = input_windows(series, starts, self.spec, calendar)
        if self.config.neighbours:
            near = neighbour_inputs(series, starts, self.spec, calendar, self._neighbours())
            x = np.concatenate([x, near], axis=-1)
        return flat(with_cells(x) if self.config.cell_id else x)

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        if self.knows_cells:
            self._check_cells(series, int(self.arrays["n_cells"]))
        return super()._forecast(series, starts, calendar)

    def _neighbours(self) -> np.ndarray:
        """Return each cell's neighbours, `(cells, neighbours)`, -1 where there are fewer.

        Raises:
            InputError: if neither the data nor the saved state knows them.
        """
        if self.adjacency is not None:
            return strongest_neighbours(self.adjacency, self.config.neighbours)
        if "neighbours" in getattr(self, "arrays", {}):
            return self.arrays["neighbours"]
        raise InputError(
            f"{self.name}: neighbours is {self.config.neighbours}, but the data have no adjacency; "
            "prepare them with their roads, or leave out --neighbours"
        )

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        with threads_for(len(x)):
            self.models = [
                self._model(self.config, x.shape[1]).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]

    def _errors(
        self, config: Any, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray
    ) -> np.ndarray:
        stages = self._model(config, x.shape[1]).fit(x, y).staged_predict(x_new)
        return np.array([np.square(y_hat - y_new).mean() for y_hat in stages])

    def _model(self, config: Any, n_inputs: int) -> Any:
        """Return a new regressor of the library."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        return HistGradientBoostingRegressor(
            **self._shape(config),
            early_stopping=False if config.tune else "auto",
            categorical_features=[n_inputs - 1] if config.cell_id else None,
            random_state=config.random_state,
        )
