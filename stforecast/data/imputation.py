"""Imputation of missing inputs of windows; targets are never imputed.

Every rule reads the past only. An input that is missing still becomes 0.0, the training mean.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from data_prep.errors import choose

IMPUTE = {
    "none": "nothing: it becomes 0.0, the training mean of a z-score",
    "ffill": "the cell's last reading before it",
    "newest": "the cell's last reading before it; where there is none, the window's newest input",
    "last-week": "the cell's last reading of the same weekday and time",
}
"""Every rule and its replacement of a missing input."""


def impute(
    series: np.ndarray, how: str, steps_per_week: int = 0, shifts: np.ndarray | int = 0
) -> np.ndarray:
    """Fill the gaps of a series with earlier values.

    >>> impute(np.array([[1.0], [np.nan], [3.0]]), "ffill").ravel().tolist()
    [1.0, 1.0, 3.0]

    Args:
        series: `(steps, cells)`, NaN where missing.
        how: one of `IMPUTE`.
        steps_per_week: steps per week, for `last-week` only.
        shifts: `(steps,)` of the wall clock, from `Calendar.shifts`, for `last-week` only.

    Returns:
        The same shape; NaN where there is no earlier value.

    Raises:
        InputError: if the rule is unknown, listing the known ones.
    """
    if how not in IMPUTE:
        raise choose("impute", how, IMPUTE)
    if how == "none":
        return series
    table = pd.DataFrame(series)
    if how in ("ffill", "newest"):  # Only a window knows its newest input.
        return table.ffill().to_numpy()
    return table.groupby((np.arange(len(series)) + shifts) % steps_per_week).ffill().to_numpy()
