"""Base class of gradient-boosted trees on the records of all cells together."""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.clock import Calendar
from stforecast.data.windows import training_targets

SMALL_JOB = 100_000
"""Number of records below which one thread is faster."""

MOST_TREES = 200
"""Largest number of trees to choose from."""

RATES, LEAVES = (0.1, 0.05), (15, 31)
"""Shrinkages and numbers of leaves to choose from."""

PROBED = 3
"""Number of target steps, spread evenly, whose validation errors choose the options."""


class PooledTrees(Baseline):
    """Trees on the windows of all cells together, one model for each target step.

    Attributes:
        trees: name and default of the option for the number of trees.
        leaves: name and default of the option for the number of leaves; that for the shrinkage is
            `learning_rate`.
    """

    pooled = True
    reads_target = True
    trees: ClassVar[tuple[str, int]]
    leaves: ClassVar[tuple[str, int]]
    models: Sequence[Any]

    def _shape(self, config: Any) -> dict[str, Any]:
        """Return shrinkage and sizes of the trees: the options, where not given their defaults."""
        defaults = {"learning_rate": 0.1, **dict([self.trees, self.leaves])}
        given = {name: getattr(config, name) for name in defaults}
        return {name: defaults[name] if v is None else v for name, v in given.items()}

    def _tuned(
        self, series: np.ndarray, starts: np.ndarray, validation: np.ndarray, calendar: Calendar
    ) -> Any:
        n_trees = getattr(self.config, self.trees[0])
        candidates = self._candidates(n_trees or MOST_TREES)
        if candidates == [self.config]:
            return self.config
        y, mask = map(flat, self._validation_targets(series, validation, calendar))
        new = {"x": self._inputs(series, validation, calendar), "y": y, "mask": mask}
        train = self._records(series, starts, calendar)
        with threads_for(len(train["x"])):
            curves = np.stack([self._curve(config, train, new) for config in candidates])
        if n_trees:
            curves[:, :-1] = np.inf
        best, last = np.unravel_index(curves.argmin(), curves.shape)
        return dataclasses.replace(candidates[best], **{self.trees[0]: int(last) + 1})

    def _candidates(self, n_trees: int) -> list[Any]:
        """Return the options with a number of trees and each choice of what else is not given."""
        choices = {"learning_rate": RATES, self.leaves[0]: LEAVES, self.trees[0]: (n_trees,)}
        free = {name: c for name, c in choices.items() if getattr(self.config, name) is None}
        return [
            dataclasses.replace(self.config, **dict(zip(free, values, strict=True)))
            for values in itertools.product(*free.values())
        ]

    def _curve(
        self, config: Any, train: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the squared error on new records after each tree, summed over target steps."""
        steps = np.flatnonzero(new["mask"].any(axis=0))
        curves = []
        for k in steps[np.unique(np.linspace(0, len(steps) - 1, PROBED).astype(int))]:
            seen, held_out = (part["mask"][:, k] for part in (train, new))
            x_y = train["x"][seen], train["y"][seen, k]
            errors = self._errors(config, *x_y, new["x"][held_out], new["y"][held_out, k])
            curves.append(held_out.sum() * errors)
        return np.sum(curves, axis=0)

    @abstractmethod
    def _errors(
        self, config: Any, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray
    ) -> np.ndarray:
        """Train on `x` and `y`; return the MSE on new records after each tree, `(trees,)`."""

    @abstractmethod
    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the inputs of all windows of all cells, `(cells * windows, inputs)`."""

    def _records(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        """Return inputs `x`, targets `y` and their `mask`, each `(cells * windows, …)`.

        Raises:
            InputError: if no target of a horizon step was observed.
        """
        y, mask = map(flat, training_targets(series, starts, self.spec, calendar))
        unseen = np.flatnonzero(~mask.any(axis=0))
        if len(unseen):
            raise InputError(
                f"{self.name}: no observed training target at horizon step {unseen[0] + 1}; give a "
                "longer training part"
            )
        return {"x": self._inputs(series, starts, calendar), "y": y, "mask": mask}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x = self._inputs(series, starts, calendar)
        with threads_for(len(x)):
            y_hat = np.stack([model.predict(x) for model in self.models], axis=-1)
        return y_hat.reshape(series.shape[1], len(starts), self.spec.horizon)


def threads_for(n_records: int) -> threadpool_limits:
    """Limit small jobs to one thread.

    On a busy machine the threads of a small job wait for each other far longer than they work:
    60 s instead of 0.2 s for 10,000 records. The trees do not depend on the number of threads.
    """
    return threadpool_limits(1 if n_records < SMALL_JOB else None, user_api="openmp")


def with_cells(x: np.ndarray) -> np.ndarray:
    """Append the cell's position to inputs `(cells, windows, n)`, as the last column."""
    cell = np.broadcast_to(np.arange(len(x))[:, None, None], (*x.shape[:2], 1))
    return np.concatenate([x, cell], axis=-1, dtype=np.float32)


def flat(windows: np.ndarray) -> np.ndarray:
    """Merge cells and windows into records."""
    return windows.reshape(-1, windows.shape[-1])
