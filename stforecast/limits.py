"""Lowest and highest possible values of a service."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stforecast.data.scaling import Scaler


class Limits(NamedTuple):
    """Lowest and highest possible value in the data's units; infinite for none."""

    lower: float = -np.inf
    upper: float = np.inf

    def scores(self, scaler: Scaler, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the z-scores of both, each `(cells, 1, 1)`.

        They equal the targets of these values in all their digits.
        """
        low, high = (
            scaler.transform(np.full((1, n_cells), limit)).astype(np.float32).T[..., None]
            for limit in self
        )
        return low, high
