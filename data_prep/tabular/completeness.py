"""Records that longer steps lack: a sum over some of the records only would be too low."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Records = tuple[np.ndarray, np.ndarray]
"""Times in ns and positions of the longer steps of one cell's records, each `(records,)`."""


def count_records(
    cells: Iterable[Records], times: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the records in each longer step of each cell, and those that belong there.

    The expected distance of a cell's records is that of most of them. If it does not fit all of
    them, it is that of most records of the table.

    Args:
        cells: the records of each cell.
        times: `(rows,)` times of the table in ns.
        lengths: `(steps,)` length of each longer step in ns.

    Returns:
        The number of recorded times and the expected number, both `(steps, cells)`. The latter is 0
        if times are uneven, since it is then unknown.
    """
    usual = even_step(np.unique(times))
    found, expected = [], []
    for cell_times, at in cells:
        unique, first = np.unique(cell_times, return_index=True)
        found.append(np.bincount(at[first], minlength=len(lengths)))
        step = even_step(unique) or usual
        expected.append(lengths // step if step else np.zeros_like(lengths))
    return np.stack(found, axis=1), np.stack(expected, axis=1)


def even_step(times: np.ndarray) -> int | None:
    """Return the difference of most neighbouring times if all others are its multiples.

    Times of single events may all be multiples of a second, but few are a second apart.
    """
    if len(times) < 2:
        return None
    gaps, counts = np.unique(np.diff(times), return_counts=True)
    usual = int(gaps[counts.argmax()])
    even = 2 * counts.max() >= len(times) - 1 and not (gaps % usual).any()
    return usual if even else None
