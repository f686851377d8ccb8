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

    A cell's records belong as far apart as most of them are; if that does not fit all of them, as
    far as those of the table are.

    Args:
        cells: the records of each cell.
        times: `(rows,)` times of the table in ns.
        lengths: `(steps,)` length of each longer step in ns.

    Returns:
        The number of recorded times and the expected number, both `(steps, cells)`. 0 are expected
        if times are uneven, since it is unknown then.
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
    """Return the difference of most increasing times if the others are multiples of it.

    Times of single events may all be multiples of a second, but few are a second apart.
    """
    if len(times) < 2:
        return None
    gaps, counts = np.unique(np.diff(times), return_counts=True)
    usual = int(gaps[counts.argmax()])
    even = 2 * counts.max() >= len(times) - 1 and not (gaps % usual).any()
    return usual if even else None
