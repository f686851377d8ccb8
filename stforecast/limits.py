"""Lowest and highest possible values of a service."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from data_prep.base.errors import InputError
from stforecast.data.scaling import Scaler


class _Pair(NamedTuple):
    lower: float
    upper: float


class Limits(_Pair):
    """Lowest and highest possible value in the data's units; infinite for none."""

    def __new__(cls, lower: float = -np.inf, upper: float = np.inf) -> Self:
        """Refuse limits between which nothing lies, and NaN.

        Raises:
            InputError: naming both.
        """
        if not lower < upper:
            raise InputError(
                f"lower_limit is {lower:g} and upper_limit is {upper:g}; the first must be lower"
            )
        return super().__new__(cls, lower, upper)

    def scores(self, scaler: Scaler, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the z-scores of both, each `(cells, 1, 1)`.

        They equal the targets of these values in all their digits.
        """
        low, high = (
            scaler.transform(np.full((1, n_cells), limit)).astype(np.float32).T[..., None]
            for limit in self
        )
        return low, high
