"""Readings that are too large to be believed, such as spikes and counters that were reset.

They count as missing: no window reads them, no method learns them and no error is computed of them.
A cell's reading is believed up to a limit, the larger of ten and the squared ratio of their 90 % to
their 50 % quantile, times the 90 % quantile, of the sizes of its training readings other than 0.
The ratio raises the limit where large readings are usual, as in counts with bursts. From the third
one in a row, readings above the limit are believed, so that a new level is followed. The rule looks
back only: a forecast does not depend on later readings.
"""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from data_prep.base.errors import Words, counted, some

FACTOR = 10.0
"""Least limit, in 90 % quantiles of the sizes of a cell's readings."""

IN_A_ROW = 3
"""Readings above the limit, one after the other, of which the last is believed."""

FEWEST = 20
"""Training readings other than 0 below which a cell has no limit."""

NO_LIMIT = float(np.finfo(np.float64).max)
"""Limit of a cell that has none; saved arrays are finite."""

log = logging.getLogger(__name__)


def largest_believed(seen: np.ndarray) -> np.ndarray:
    """Return the limit of each cell `(cells,)`, `NO_LIMIT` if few training readings are not 0.

    Args:
        seen: `(steps, cells)` of the training part, NaN where missing.

    >>> largest_believed(np.arange(1.0, 101.0)[:, None])
    array([900.])
    """
    sizes = np.abs(seen)
    sizes[sizes == 0] = np.nan
    n = np.isfinite(sizes).sum(axis=0)
    sizes.sort(axis=0)
    middle, high = (
        np.take_along_axis(sizes, (share * (n - 1).clip(0)).astype(int)[None], axis=0)[0]
        for share in (0.5, 0.9)
    )
    return np.where(n < FEWEST, NO_LIMIT, high * np.fmax(FACTOR, (high / middle) ** 2))


def believed(values: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Return readings `(steps, cells)` with NaN for those above the limits `(cells,)`.

    >>> believed(np.array([[1.0], [50.0], [1.0], [50.0], [50.0], [50.0]]), np.array([10.0]))[:, 0]
    array([ 1., nan,  1., nan, nan, 50.])
    """
    above = np.abs(values) > largest
    if not above.any():
        return values
    lasting = above.copy()
    for back in range(1, IN_A_ROW):
        lasting[back:] &= above[:-back]
        lasting[:back] = False
    return np.where(above & ~lasting, np.nan, values)


def warn_of_unbelieved(
    values: np.ndarray, kept: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray, name: str
) -> None:
    """Log how many readings `(steps, cells)` are not among the kept ones, by cell.

    `times` are `(steps,)` local ones.
    """
    if kept is values:
        return
    places = np.argwhere(np.isnan(kept) & ~np.isnan(values))
    (step, cell), (which, n) = places[0], np.unique(places[:, 1], return_counts=True)
    log.warning(
        "%s: %s of more than %g times what is usual in their cell: %s, such as %.6g of cell %s at "
        "%s; they count as missing, %s",
        name,
        counted(len(places), "reading"),
        FACTOR,
        some([f"{k} of cell {cells[i]}" for i, k in zip(which, n, strict=True)]),
        values[step, cell],
        cells[cell],
        times[step],
        Words("{outliers:keep} reads them"),
    )
