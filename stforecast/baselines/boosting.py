"""Gradient boosting: scikit-learn's histogram trees on the windows of all cells together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.windows import Calendar, input_windows, target_windows
from stforecast.federated.options import CheckedOptions

SMALL_JOB = 100_000
"""Number of records below which one thread is faster."""


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


class Boosting(Baseline):
    """Gradient-boosted trees on the windows of all cells together, one model for each target step.

    Trees cannot be saved as plain arrays, so the state keeps the training windows, and loading fits
    the same trees again.
    """

    name = "boosting"
    summary = "gradient-boosted trees on the windows of all cells together (not federated)"
    pooled = True
    learned = ("x", "y", "mask")
    Options = BoostingConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        x = input_windows(series, starts, self.spec, calendar)
        y, mask = target_windows(series, starts, self.spec)
        unseen = np.flatnonzero(~mask.any(axis=(0, 1)))
        if len(unseen):
            raise InputError(
                f"{self.name}: no observed training target at horizon step {unseen[0] + 1}; give a "
                "longer training part"
            )
        return {
            name: values.reshape(-1, values.shape[-1])
            for name, values in (("x", x), ("y", y), ("mask", mask))
        }

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        super()._restore(arrays)
        x, y, mask = (arrays[key] for key in ("x", "y", "mask"))
        options = dataclasses.asdict(self.config)
        with _threads_for(len(x)):
            self._models = [
                HistGradientBoostingRegressor(**options).fit(x[seen], target[seen])
                for target, seen in zip(y.T, mask.T, strict=True)
            ]

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        x = input_windows(series, starts, self.spec, calendar)
        flat = x.reshape(-1, self.spec.n_inputs)
        with _threads_for(len(flat)):
            y_hat = np.stack([model.predict(flat) for model in self._models], axis=-1)
        return y_hat.reshape(len(x), len(starts), self.spec.horizon)


def _threads_for(n_records: int) -> threadpool_limits:
    """Limit small jobs to one thread.

    On a busy machine the threads of a small job wait for each other far longer than they work:
    60 s instead of 0.2 s for 10,000 records. The trees do not depend on the number of threads.
    """
    return threadpool_limits(1 if n_records < SMALL_JOB else None, user_api="openmp")
