"""Increments of counters that run on, such as an interface's octets or the total of a meter.

A counter is taken to rise evenly between two readings, so a step's increment is the difference of
its value at the step's end and begin. A fall is a reset, after which it starts anew from 0, or the
overflow of 32 or 64 bits, if its rise would then be a usual one.

Source: `increase` of Prometheus (https://prometheus.io/docs/prometheus/latest/querying/functions),
which extrapolates to a window's ends as well; here a step that lacks readings there is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.notices import MOST_RESETS
from data_prep.readers.columns import numbers
from data_prep.readers.origin import Origin, StepLog

if TYPE_CHECKING:
    from data_prep.readers.time_axis import TimeAxis

OVERFLOW = 2.0**32
"""Values of a counter of 32 bits; those of 64 bits overflow in NumPy's own arithmetic."""

log = StepLog("steps")


@dataclass(frozen=True)
class Increments:
    """What counters rise by.

    Attributes:
        values: `(steps, cells)` increments, NaN where readings are missing.
        rises: number of rises of all cells.
        resets: number of resets of each cell, `(cells,)`.
        overflows: number of overflows of each cell, `(cells,)`.
    """

    values: np.ndarray
    rises: int
    resets: np.ndarray
    overflows: np.ndarray

    def say(self, cells: np.ndarray, name: str) -> None:
        """Log how many resets and overflows there are, and in which cells."""
        kinds = (
            (self.resets, "reset", "counted from 0"),
            (self.overflows, "overflow", "of 32 or 64 bits"),
        )
        for numbers_of, what, how in kinds:
            if numbers_of.any():
                of = some(cells[numbers_of > 0], 3)
                n = counted(int(numbers_of.sum()), what)
                log.warning(name, f"{n}, {how}, in cells {of}")


def readings(column: pd.Series, origin: Origin) -> np.ndarray:
    """Return the readings of a counter `(rows,)`: whole numbers as they are, also of 64 bits."""
    if types.is_integer_dtype(column):
        return column.to_numpy()
    if column.dtype == object and all(isinstance(v, int) and 0 <= v < 2**64 for v in column):
        return column.to_numpy(dtype=np.uint64)  # beyond int64
    return numbers(column, origin)


def increments(counters: Iterable[tuple[np.ndarray, np.ndarray]], axis: TimeAxis) -> Increments:
    """Return the increments of counters, given the readings and times `(rows,)` of each cell."""
    found = [_increments(values, times, axis) for values, times in counters]
    columns, rises, resets, overflows = zip(*found, strict=True)
    return Increments(np.stack(columns, axis=1), sum(rises), np.array(resets), np.array(overflows))


def _increments(
    values: np.ndarray, times: np.ndarray, axis: TimeAxis
) -> tuple[np.ndarray, int, int, int]:
    """Return one counter's increments `(steps,)` and its rises, resets and overflows."""
    none = np.full(len(axis.begins), np.nan)
    known = np.isfinite(values)
    order = np.flatnonzero(known)[np.argsort(times[known], kind="stable")]
    values, times = values[order], times[order]
    if len(values) < 2:
        return none, 0, 0, 0
    rises, resets, overflows = _rises(values)
    total = np.concatenate([[0.0], np.cumsum(rises)])
    begins, ends = axis.begins, axis.begins + axis.lengths
    gaps = np.diff(times)
    # Between two readings that are further apart, some are missing.
    late = gaps > np.maximum(1.5 * np.median(gaps), int(axis.lengths.min()))
    n_late = np.concatenate([[0], np.cumsum(late)])
    first = np.clip(np.searchsorted(times, begins, "right") - 1, 0, len(late))
    end = np.clip(np.searchsorted(times, ends, "left"), 0, len(late))
    whole = (begins >= times[0]) & (ends <= times[-1]) & (n_late[end] == n_late[first])
    origin = times[0]  # Numbers of ns since 1970 are too large for float64.
    at_begin, at_end = (
        np.interp((edge - origin).astype(float), (times - origin).astype(float), total)
        for edge in (begins, ends)
    )
    return np.where(whole, at_end - at_begin, none), int((rises > 0).sum()), resets, overflows


def _rises(values: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return what a counter rises by from reading to reading, and its resets and overflows.

    >>> _rises(np.array([7, 9, 4, 5]))
    (array([2., 4., 1.]), 1, 0)
    >>> _rises(np.array([2**32 - 20, 2**32 - 10, 5, 15]))
    (array([10., 15., 10.]), 0, 1)
    >>> _rises(np.array([2**64 - 20, 2**64 - 10, 5, 12], dtype=np.uint64))
    (array([10., 15.,  7.]), 0, 1)
    >>> _rises(np.array([2**63, 2**63 + 10, 7], dtype=np.uint64))
    (array([10.,  7.]), 1, 0)
    """
    before, after = values[:-1].astype(float), values[1:].astype(float)
    falls = values[1:] < values[:-1]
    of_64 = values.dtype == np.uint64
    changes = np.diff(values).astype(float)
    usual = 2 * changes.max(where=~falls, initial=0.0)  # Largest rise over an overflow.
    over = np.where(before < OVERFLOW, after - before + OVERFLOW, changes if of_64 else np.inf)
    overflow = falls & (over <= usual)
    rises = np.where(overflow, over, np.where(falls, after, changes))
    return rises, int((falls & ~overflow).sum()), int(overflow.sum())


def refuse_levels(found: dict[str, Increments], origin: Origin) -> None:
    """Refuse columns that fall too often to be counters; each of these may be reset once."""
    most = {name: max(len(own.resets), MOST_RESETS * own.rises) for name, own in found.items()}
    levels = [name for name, own in found.items() if own.resets.sum() > most[name]]
    if not levels:
        return
    counters = ",".join(name for name in found if name not in levels)
    advice = Words("give {agg:mean} or {agg:sum}")
    if counters:
        advice = Words("choose the counters with {values}", values=counters)
    raise InputError(
        f"{origin.name}: {some(map(repr, levels), 4)} falls too often for a counter that runs on; ",
        advice,
    )
