"""Base class of gradient-boosted trees on the records of all cells together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it ships no types

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.windows import Calendar, input_windows, training_targets

SMALL_JOB = 100_000
"""Number of records below which one thread is faster."""


class PooledTrees(Baseline):
    """Trees on the windows of all cells together, one model for each target step."""

    pooled = True
    reads_target = True
    models: Sequence[Any]

    def _inputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the inputs of all windows of all cells, `(cells * windows, inputs)`."""
        return _flat(input_windows(series, starts, self.spec, calendar))

    def _records(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        """Return inputs `x`, targets `y` and their `mask`, each `(cells * windows, …)`.

        Raises:
            InputError: if no target of a horizon step was observed.
        """
        y, mask = map(_flat, training_targets(series, starts, self.spec, calendar))
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


def _flat(windows: np.ndarray) -> np.ndarray:
    """Merge cells and windows into records."""
    return windows.reshape(-1, windows.shape[-1])
