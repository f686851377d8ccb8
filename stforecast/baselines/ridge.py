"""Ridge regression of each cell on its own windows, solved in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import NonNegativeFloat

from stforecast.baselines.base import Baseline
from stforecast.data.windows import Calendar, input_windows, training_targets
from stforecast.federated.options import CheckedOptions


@dataclass(frozen=True)
class RidgeConfig(CheckedOptions):
    """Options of `Ridge`.

    Attributes:
        alpha: weight of the squared coefficients; 1.0 is scikit-learn's default.
    """

    alpha: NonNegativeFloat = 1.0


class Ridge(Baseline):
    """Ridge regression of each cell on its own windows, one for each target step."""

    name = "ridge"
    summary = "a ridge regression of each cell on the inputs of its windows"
    learned = ("weights",)
    reads_target = True
    Options = RidgeConfig

    def _learn(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar
    ) -> dict[str, np.ndarray]:
        x = input_windows(series, starts, self.spec, calendar)
        y, mask = training_targets(series, starts, self.spec, calendar)
        cells = zip(x, y, mask, strict=True)
        return {"weights": np.stack([_ridge(*cell, self.config.alpha) for cell in cells])}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        weights = self.arrays["weights"]
        self._check_cells(series, len(weights))
        x = input_windows(series, starts, self.spec, calendar)
        return x @ weights[:, :, 1:].swapaxes(1, 2) + weights[:, None, :, 0]


def _ridge(x: np.ndarray, y: np.ndarray, mask: np.ndarray, alpha: float) -> np.ndarray:
    """Solve for the ridge weights of one cell; the intercept comes first and is not penalised.

    Args:
        x: `(windows, n_inputs)` inputs.
        y: `(windows, horizon)` targets, 0.0 where missing.
        mask: `(windows, horizon)` bool, True where the target was observed.
        alpha: weight of the penalty.

    Returns:
        `(horizon, 1 + n_inputs)`; zeros, the training mean, for a target never observed.
    """
    n = 1 + x.shape[1]
    z = np.column_stack([np.ones(len(x)), x])
    products = (z[:, :, None] * z[:, None, :]).reshape(len(z), n * n)
    gram = (mask.T.astype(np.float64) @ products).reshape(-1, n, n)
    penalty = alpha * np.eye(n)
    penalty[0, 0] = 0.0
    moments = y.T.astype(np.float64) @ z
    weights = np.zeros((y.shape[1], n))
    seen = mask.any(axis=0)
    weights[seen] = np.linalg.solve(gram[seen] + penalty, moments[seen, :, None])[..., 0]
    return weights
