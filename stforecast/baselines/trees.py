"""Gradient-boosted trees on the records of all cells together: scikit-learn's and LightGBM's.

Ke et al., "LightGBM: a highly efficient gradient boosting decision tree", NeurIPS 2017.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Arrays, Baseline, Peer, PeerOptions
from stforecast.baselines.tree_inputs import inputs_of_steps
from stforecast.data.clock import Calendar
from stforecast.data.covariates import neighbour_inputs, strongest_neighbours
from stforecast.data.windows import input_windows, training_targets
from stforecast.federated.core.options import CheckedOptions, Grid


class PooledTrees(Baseline):
    """Trees on the windows of all cells together.

    Attributes:
        usual: defaults of the library's options for shrinkage and sizes of the trees.
    """

    pooled = True
    reads_target = True
    usual: ClassVar[Mapping[str, float]]

    def _shape(self) -> dict[str, Any]:
        """Return shrinkage and sizes of the trees: the options, where not given their defaults."""
        given = {name: getattr(self.config, name) for name in self.usual}
        return {name: self.usual[name] if v is None else v for name, v in given.items()}


def threads_for(n_records: int) -> threadpool_limits:
    """Limit jobs of fewer than 100,000 records to one thread.

    On a busy machine the threads of a small job wait for each other far longer than they work:
    60 s instead of 0.2 s for 10,000 records. The trees do not depend on the number of threads.
    """
    return threadpool_limits(1 if n_records < 100_000 else None, user_api="openmp")


def with_cells(x: np.ndarray) -> np.ndarray:
    """Append the cell's position to inputs `(cells, windows, n)`, as the last column."""
    cell = np.broadcast_to(np.arange(len(x))[:, None, None], (*x.shape[:2], 1))
    return np.concatenate([x, cell], axis=-1, dtype=np.float32)


def flat(windows: np.ndarray) -> np.ndarray:
    """Merge cells and windows into records."""
    return windows.reshape(-1, windows.shape[-1])


@dataclass(frozen=True)
class BoostingConfig(CheckedOptions):
    """Options of `Boosting`.

    Attributes:
        max_iter: number of trees; by default 100.
        learning_rate: shrinkage of each tree; by default 0.1, or the choice of `tune`.
        max_leaf_nodes: leaves of a tree; by default 31, or the choice of `tune`.
        cell_id: whether the cell is an input, as one of at most 255 categories.
        neighbours: number of cells with the strongest roads to or from a cell whose last two
            readings are inputs; needs data with an adjacency.
    """

    max_iter: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    max_leaf_nodes: Annotated[int, Ge(2)] | None = None
    cell_id: bool = False
    neighbours: Annotated[NonNegativeInt, Le(64)] = 0


class Boosting(PooledTrees):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees cannot be saved as plain arrays, so the state keeps the training windows, and loading fits
    the same trees again.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    learned = ("x", "y", "mask")
    reads_covariates = True
    models: Sequence[Any]
    usual: ClassVar[Mapping[str, float]] = {
        "max_iter": 100, "learning_rate": 0.1, "max_leaf_nodes": 31
    }  # fmt: skip
    grid: ClassVar[Grid] = {"learning_rate": [0.05, 0.1, 0.2], "max_leaf_nodes": [15, 31]}
    Options = BoostingConfig

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        if self.config.cell_id and series.shape[1] > 255:
            raise InputError(
                f"{self.name}: cell_id takes up to 255 cells, the data have {series.shape[1]}; "
                "leave it out"
            )
        records = self._records(series, starts, calendar)
        own = {"n_cells": np.array(series.shape[1])} if self.knows_cells else {}
        roads = {"neighbours": self._neighbours()} if self.config.neighbours else {}
        return {**records, **own, **roads}

    def _records(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        """Return inputs `x`, targets `y` and their `mask`, each `(cells * windows, …)`."""
        y, mask = map(flat, training_targets(series, starts, self.spec, calendar))
        unseen = np.flatnonzero(~mask.any(axis=0))
        if len(unseen):
            raise InputError(
                f"{self.name}: no observed training target at horizon step {unseen[0] + 1}; give a "
                "longer training part"
            )
        return {"x": self._inputs(series, starts, calendar), "y": y, "mask": mask}

    @property
    def knows_cells(self) -> bool:
        """Whether inputs tell the cells apart, so that it cannot forecast others."""
        return bool(self.config.cell_id or self.config.neighbours)

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        if self.knows_cells:
            self._check_cells(series, int(self.arrays["n_cells"]))
        x = self._inputs(series, starts, calendar)
        with threads_for(len(x)):
            y_hat = np.stack([model.predict(x) for model in self.models], axis=-1)
        return y_hat.reshape(series.shape[1], len(starts), self.spec.horizon)

    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x = input_windows(series, starts, self.spec, calendar)
        if self.config.neighbours:
            near = neighbour_inputs(series, starts, self.spec, calendar, self._neighbours())
            x = np.concatenate([x, near], axis=-1)
        return flat(with_cells(x) if self.config.cell_id else x)

    def _neighbours(self) -> np.ndarray:
        """Return each cell's neighbours, `(cells, neighbours)`, -1 where there are fewer."""
        if self.adjacency is not None:
            return strongest_neighbours(self.adjacency, self.config.neighbours)
        if "neighbours" in getattr(self, "arrays", {}):
            return self.arrays["neighbours"]
        raise InputError(
            f"{self.name}: neighbours is {self.config.neighbours}, but the data have no "
            "adjacency; ",
            Words("prepare them with their roads, or leave out {neighbours}"),
        )

    def _restore(self, arrays: Arrays) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        options = {
            **self._shape(),
            "categorical_features": [x.shape[1] - 1] if self.config.cell_id else None,
            "random_state": 0,  # Of the tenth held out for early stopping.
        }
        with threads_for(len(x)):
            self.models = [
                HistGradientBoostingRegressor(**options).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]


@dataclass(frozen=True)
class LightGBMOptions(PeerOptions):
    """Options of `LightGBM`.

    Attributes:
        num_iterations: number of trees; by default as many as have the lowest error on the
            validation part, or 200 without one.
        learning_rate: shrinkage of each tree; by default 0.1, or the choice of `tune`.
        num_leaves: leaves of a tree; by default 15, or the choice of `tune`.
    """

    num_iterations: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    num_leaves: Annotated[int, Ge(2)] | None = None


class LightGBM(Peer, PooledTrees):
    """LightGBM's trees on the windows of all cells together, one model for all target steps.

    It reads what `stforecast.baselines.tree_inputs` says, which the settings of the windows do not
    change; the cell's position is a categorical input. Trees are added until 50 more have not
    lowered the error on the validation part, at most 1,000; a refit has as many. The state holds
    the library's text format. The time limit is checked after every tree; forecasts take little
    time.
    """

    name = "lightgbm"
    summary = "LightGBM on lags, means, weekly profile, calendar and cell, of all cells together"
    package = "lightgbm"
    learned = ("model", "n_cells")
    usual: ClassVar[Mapping[str, float]] = {
        "num_iterations": 200, "learning_rate": 0.1, "num_leaves": 15
    }  # fmt: skip
    defaults: ClassVar[Mapping[str, Any]] = {"refit": "once"}
    grid: ClassVar[Grid] = {"learning_rate": [0.03, 0.06, 0.1], "num_leaves": [7, 15, 31]}
    Options = LightGBMOptions

    @property
    def knows_cells(self) -> bool:
        """Whether one model tells the cells apart; here always."""
        return True

    @property
    def options_of_refit(self) -> LightGBMOptions:
        """The options with the number of trees that was found."""
        return dataclasses.replace(self.config, num_iterations=max(1, self.model.num_trees()))

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        import lightgbm

        x, y = self._records(series, starts, calendar)
        if not len(y):
            raise InputError(
                f"{self.name}: no observed training target; give a longer training part"
            )
        shape = self._shape()
        n_trees = shape.pop("num_iterations")
        params = {**shape, "deterministic": True, "force_col_wise": True, "verbosity": -1}
        data = lightgbm.Dataset(x, y, categorical_feature=[x.shape[1] - 1], params=params)
        calls = [lambda now: self.limit.check(now.iteration, now.end_iteration, "trees")]
        held = []
        later = self._records(series, self.validation, calendar)
        if self.config.num_iterations is None and len(later[1]):
            held, n_trees = [data.create_valid(*later)], 1000
            calls.append(lightgbm.early_stopping(50, verbose=False))
        with threads_for(len(x)):
            model = lightgbm.train(params, data, n_trees, valid_sets=held, callbacks=calls)
        text = model.model_to_string()
        return {
            "model": np.frombuffer(text.encode(), np.uint8),
            "n_cells": np.array(series.shape[1]),
        }

    def _records(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of all cells, where observed, of eight windows a horizon.

        Windows of each step would add little.
        """
        starts = starts[:: max(1, self.spec.horizon // 8)]
        y, mask = training_targets(series, starts, self.spec, calendar)
        steps = inputs_of_steps(series, starts, self.spec.horizon, calendar)
        x = [of[seen] for of, seen in zip(steps, np.moveaxis(mask, 2, 0), strict=True)]
        return np.concatenate(x), np.moveaxis(y, 2, 0)[np.moveaxis(mask, 2, 0)]

    def _restore(self, arrays: Arrays) -> None:
        import lightgbm

        super()._restore(arrays)
        self.model = lightgbm.Booster(model_str=arrays["model"].tobytes().decode())

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        self._check_cells(series, int(self.arrays["n_cells"]))
        steps = inputs_of_steps(series, starts, self.spec.horizon, calendar)
        with threads_for(len(starts) * series.shape[1]):
            y_hat = [np.reshape(self.model.predict(flat(x)), x.shape[:2]) for x in steps]
        return np.stack(y_hat, axis=-1)
