"""Ridge regression of each cell on its own windows, solved in closed form."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeFloat

from stforecast.baselines.base import Arrays, Baseline
from stforecast.data.clock import Calendar
from stforecast.data.windows import input_windows, training_targets
from stforecast.federated.core.options import CheckedOptions, Grid


@dataclass(frozen=True)
class RidgeConfig(CheckedOptions):
    """Options of `Ridge`.

    Attributes:
        alpha: weight of the squared coefficients; by default 1.0, as in scikit-learn, or the choice
            of `tune`.
    """

    alpha: NonNegativeFloat | None = None


class Ridge(Baseline):
    """Ridge regression of each cell on its own windows, one for each target step."""

    name = "ridge"
    summary = "a ridge regression of each cell on the inputs of its windows"
    learned = ("weights",)
    of_cells: ClassVar[Mapping[str, int]] = {"weights": 0}
    grid: ClassVar[Grid] = {"alpha": [10.0 ** (power / 2) for power in range(-4, 9)]}
    reads_target = True
    reads_covariates = True
    Options = RidgeConfig

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        alpha = 1.0 if self.config.alpha is None else self.config.alpha
        x = input_windows(series, starts, self.spec, calendar)
        y, mask = training_targets(series, starts, self.spec, calendar)
        cells = itertools.starmap(_normal_equations, zip(x, y, mask, strict=True))
        return {"weights": np.stack([_solve(*equations, alpha) for equations in cells])}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        weights = self.arrays["weights"]
        self._check_cells(series, len(weights))
        x = input_windows(series, starts, self.spec, calendar)
        return x @ weights[..., 1:].swapaxes(-2, -1) + weights[..., None, :, 0]


def _normal_equations(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the products of one cell's inputs with each other and with its targets.

    Each of the `(horizon, 1 + n_inputs, 1 + n_inputs)` and `(horizon, 1 + n_inputs)` sums is over
    the observed targets of a step, a constant input first.
    """
    z = np.column_stack([np.ones(len(x)), x])
    masks, step = np.unique(mask, axis=1, return_inverse=True)  # Most often all are the same.
    gram = np.stack([z[seen].T @ z[seen] for seen in masks.T])
    return gram[step], y.T.astype(np.float64) @ z


def _solve(gram: np.ndarray, moments: np.ndarray, alpha: float) -> np.ndarray:
    """Solve the `_normal_equations` of one cell for its weights, `(horizon, 1 + n_inputs)`.

    The intercept comes first and is not penalised. A target that was never observed has zeros,
    which forecast the training mean.
    """
    penalty = alpha * np.eye(gram.shape[-1])
    penalty[0, 0] = 0.0
    weights = np.zeros(moments.shape)
    seen = gram[:, 0, 0] > 0
    weights[seen] = np.linalg.solve(gram[seen] + penalty, moments[seen, :, None])[..., 0]
    return weights
