"""Notices of values that are valid and yet likely wrong: negative ones, zeros, early ends."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from data_prep.base.errors import Words, counted, some
from data_prep.readers.columns import frequency

SHOWN = 3
"""Number of places to name in a notice."""

RARE = 0.01
"""Share of values up to which negative values, or zeros outside of long spans, are odd."""

FEWEST = 4
"""Steps of a span of zeros, or of an early end, if a day has fewer."""

LEAST_RISES = 24
MOST_RESETS = 0.02
"""Rises of a counter that runs on, and resets for each; one may always be."""

log = logging.getLogger(__name__)


def warn_of_oddities(
    values: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray, name: str
) -> None:
    """Log what is odd about a service in a line for each kind, with a few places and their number.

    Args:
        values: `(steps, cells)`, NaN where missing.
        times: `(steps,)` local time.
        cells: `(cells,)` ids.
        name: name of the service and its data.
    """
    if len(times) < 2:
        return
    day = max(FEWEST, round(pd.Timedelta(days=1) / abs(times[1] - times[0])))
    known = np.isfinite(values)
    if (rising := counters_among(values, cells)).size:
        log.warning(
            "%s: looks like a counter that runs on: it hardly ever falls in %s, such as cell %s; "
            "%s",
            name,
            counted(rising.size, "cell"),
            rising[0],
            Words(
                "prepare its increments with {resample} {agg:increase}",
                resample=frequency(times[1] - times[0]),
            ),
        )
    negative = np.argwhere(values < 0)
    if len(negative) <= RARE * known.sum():
        _say(name, "negative values", "all others are 0 or more; correct or empty them", [
            f"{values[step, cell]:.6g} of cell {cells[cell]} at {times[step]}"
            for step, cell in negative
        ])  # fmt: skip
    _say(name, "long spans of zeros", "other zeros are rare there; empty them if unrecorded", [
        f"{counted(last - first + 1, 'step')} of cell {cells[cell]} from {times[first]} to "
        f"{times[last]}"
        for cell in np.flatnonzero((values == 0).sum(axis=0) >= day)
        for first, last in _zero_spans(values[:, cell], day)
    ])  # fmt: skip
    last = len(times) - 1 - known[::-1].argmax(axis=0)
    early = last.max(where=known.any(axis=0), initial=0) - last
    _say(name, "early ends", "other cells have values after it", [
        f"cell {cells[cell]} at {times[last[cell]]}, {counted(early[cell], 'step')} before others"
        for cell in np.flatnonzero((early >= day) & known.any(axis=0))
    ])  # fmt: skip


def counters_among(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return the cells whose values, `(steps, cells)`, run on like a counter's, if most do."""
    running = np.array([_is_running(series) for series in values.T], dtype=bool)
    most = 2 * running.sum() > np.isfinite(values).any(axis=0).sum()
    return cells[running] if most else cells[:0]


def _is_running(values: np.ndarray) -> bool:
    """Return whether values, `(steps,)`, rise all the time but for a few resets, as a counter's."""
    changes = np.diff(values[np.isfinite(values)])
    rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
    return (
        rises >= LEAST_RISES and 2 * rises > len(changes) and falls <= max(1, MOST_RESETS * rises)
    )


def _zero_spans(values: np.ndarray, day: int) -> list[tuple[int, int]]:
    """Return the first and last steps of long spans of zeros if other zeros are rare."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], values == 0, [0]])))
    spans = edges.reshape(-1, 2)
    lengths = spans[:, 1] - spans[:, 0]
    is_long = lengths >= day
    others = np.isfinite(values).sum() - lengths[is_long].sum()
    if lengths[~is_long].sum() > RARE * others or others <= lengths[is_long].sum():
        return []
    return [(int(first), int(end) - 1) for first, end in spans[is_long]]


def _say(name: str, what: str, advice: str, places: list[str]) -> None:
    if places:
        log.warning("%s: %s: %s; %s", name, what, some(places, SHOWN), advice)
