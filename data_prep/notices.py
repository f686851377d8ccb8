"""Notices of values that are valid and yet likely wrong: negative ones, zeros, gaps, early ends."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from data_prep.base.errors import Words, counted, some
from data_prep.readers.columns import frequency
from data_prep.readers.units import is_speed

RARE_SHARE = 0.01
"""Share of values up to which negative values, or zeros outside of long spans, are odd."""

CODES = tuple(10.0**n - 1 for n in range(2, 8)) + tuple(2.0**n - 1 for n in (8, 15, 16, 31, 32))
"""Numbers that often mean a missing value, such as 999 and 255."""

FEWEST_MARKS = 3
"""Times that such a number occurs at least."""

MOST_MARKS = 0.5
"""Largest share of a cell's values that such numbers are."""

FEWEST_REPEATS = 5
"""Times that the highest value of a cell occurs at least, for each time that another does."""

FEWEST_OTHERS = 20
"""Different values that a cell has without them at least."""

OTHER_UNIT = 30.0
"""Times that three days are all higher, or all lower, than the three before, if units differ."""

MOST_RESETS = 0.02
"""Resets of a counter for each of its rises; one may always be."""

log = logging.getLogger(__name__)


def warn_of_oddities(
    values: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray, name: str, units: str = "1"
) -> None:
    """Log what is odd about a service in a line for each kind, with a few places and their number.

    Args:
        values: `(steps, cells)`, NaN where missing.
        times: `(steps,)` local time.
        cells: `(cells,)` ids.
        name: names of its data and of the service, separated by a colon.
        units: unit of the service.
    """
    if len(times) < 2:
        return
    # Steps of a span of zeros or of an early end: a day, or four if a day has fewer.
    day = max(4, round(pd.Timedelta(days=1) / abs(times[1] - times[0])))
    known = np.isfinite(values)
    if (rising := counters_among(values, cells)).size:
        step = frequency(times[1] - times[0])
        log.warning(
            "%s: looks like a counter that runs on: it hardly ever falls in %s, such as cell %s; "
            "%s",
            *(name, counted(rising.size, "cell"), rising[0]),
            Words("prepare its increments with {resample} {agg:increase}", resample=step),
        )
    negative = np.argwhere(values < 0)
    if few := len(negative) <= RARE_SHARE * known.sum():
        _say(name, "negative values", "all others are 0 or more; correct or empty them", [
            f"{values[step, cell]:.6g} of cell {cells[cell]} at {times[step]}"
            for step, cell in negative
        ])  # fmt: skip
    marks = _marks(values)
    _say(name, "likely marks of missing values", "empty them if they are", [
        f"{mark:.6g}, {(values == mark).sum()} times, all others are {low:.6g} to {high:.6g}"
        for mark, low, high in marks
        if mark > 0 or not few
    ] + [
        f"{mark:.6g}, {n} times, all others of cell {cells[cell]} are {low:.6g} to {high:.6g}"
        for mark, (n, cell, low, high) in {**_repeated(values), **_marks_of_cells(values)}.items()
        if mark not in [code for code, *_ in marks]
    ])  # fmt: skip
    _say(name, "times of day without any value", "forecasts of them have no basis",
         _unrecorded(known.any(axis=1), times))  # fmt: skip
    _say(name, "long spans of zeros", "other zeros are rare there; empty them if unrecorded", [
        f"{counted(last - first + 1, 'step')} of cell {cells[cell]} from {times[first]} to "
        f"{times[last]}"
        for cell in np.flatnonzero((values == 0).sum(axis=0) >= day)
        for first, last in _zero_spans(values[:, cell], day)
    ])  # fmt: skip
    warn_of_speeds_of_0(values, name, units)
    _say(name, "likely changes of unit", "correct them if it changed", _unit_changes(values, times))
    last = len(times) - 1 - known[::-1].argmax(axis=0)
    early = last.max(where=known.any(axis=0), initial=0) - last
    _say(name, "early ends", "other cells have values after it", [
        f"cell {cells[cell]} at {times[last[cell]]}, {counted(early[cell], 'step')} before others"
        for cell in np.flatnonzero((early >= day) & known.any(axis=0))
    ])  # fmt: skip


def warn_of_speeds_of_0(values: np.ndarray, name: str, units: str) -> None:
    """Log how many speeds are 0; arguments as `warn_of_oddities`, values of any shape."""
    zeros = int((values == 0).sum())
    if zeros >= FEWEST_MARKS and is_speed(name.rpartition(": ")[2], units):
        log.warning(
            "%s: speeds of 0, %d times; if no vehicle was measured then, prepare this service "
            "apart, with %s",
            *(name, zeros, Words("{zero_is_missing}", zero_is_missing=True)),
        )


def counters_among(values: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return the cells whose values, `(steps, cells)`, rise like a counter's, if most do.

    It rises in most steps, 24 at least.
    """
    running = np.zeros(len(cells), dtype=bool)
    for cell, series in enumerate(values.T):
        changes = np.diff(series[np.isfinite(series)])
        rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
        few = falls <= max(1, MOST_RESETS * rises)
        running[cell] = rises >= 24 and 2 * rises > len(changes) and few
    most = 2 * running.sum() > np.isfinite(values).any(axis=0).sum()
    return cells[running] if most else cells[:0]


def _marks(values: np.ndarray) -> list[tuple[float, float, float]]:
    """Return numbers that likely mean a missing value, with the least and the largest other one.

    One is the only number below 0; another is the largest and one of `CODES`, and more than twice
    as large as the next. No array of `values`, which may be many, is copied.

    >>> _marks(np.array([7.0, 9.0, -1.0, np.nan, -1.0, 255.0, 255.0, 255.0]))
    [(-1.0, 7.0, 255.0), (255.0, -1.0, 9.0)]
    """
    low, high = (float(end.reduce(values, axis=None)) for end in (np.fmin, np.fmax))
    found = []
    if low < 0:
        least = float(values.min(where=values > low, initial=np.inf))
        if 0 <= least < np.inf:
            found.append((low, least, high))
    if high in CODES and (values == high).sum() >= FEWEST_MARKS:
        most = float(values.max(where=values < high, initial=-np.inf))
        if -np.inf < most < high / 2:
            found.append((high, low, most))
    return found


def _marks_of_cells(values: np.ndarray) -> dict[float, tuple[int, int, float, float]]:
    """Return whole numbers that are repeated in a cell, and far from all its other values.

    The distance exceeds the span of the others, which are many different ones. With each number are
    how often it occurs, a cell, and the least and the largest of this cell's others.

    >>> _marks_of_cells(np.array([[*range(30), 2046, 2046, 2046, 2047, 2047, 2047]]).T * 1.0)
    {2046.0: (3, 0, 0.0, 29.0), 2047.0: (3, 0, 0.0, 29.0)}
    """
    found: dict[float, tuple[int, int, float, float]] = {}
    low, high = (end.reduce(values, axis=0) for end in (np.fmin, np.fmax))
    n_known = np.isfinite(values).sum(axis=0)
    n_far = (values > (low + high) / 2).sum(axis=0)
    for cell in np.flatnonzero((n_far >= FEWEST_MARKS) & (n_far <= MOST_MARKS * n_known)):
        own = values[np.isfinite(values[:, cell]), cell]
        near = own <= (low[cell] + high[cell]) / 2
        marks, counts = np.unique(own[~near], return_counts=True)
        least, most = float(low[cell]), float(own[near].max())
        if (
            counts.min() >= FEWEST_MARKS
            and (marks % 1 == 0).all()
            and marks[0] - most > most - least
            and len(np.unique(own[near])) >= FEWEST_OTHERS
        ):
            for mark, n in zip(marks.tolist(), counts.tolist(), strict=True):
                of_all, *first = found.get(mark, (0, int(cell), least, most))
                found[mark] = (of_all + n, *first)
    return found


def _repeated(values: np.ndarray) -> dict[float, tuple[int, int, float, float]]:
    """Return highest values of cells that are repeated where hardly another is; see above.

    A cell that is stuck repeats one value at a stretch, and one that is full comes near to it.

    >>> values = np.linspace(5, 60, 45)[:, None]
    >>> values[::9] = 99.99
    >>> _repeated(values)
    {99.99: (5, 0, 6.25, 60.0)}
    >>> _repeated(np.sort(values, axis=0))
    {}
    """
    found: dict[float, tuple[int, int, float, float]] = {}
    highest = np.fmax.reduce(values, axis=0)
    n_known, at = np.isfinite(values).sum(axis=0), values == highest
    n_times = at.sum(axis=0)
    for cell in np.flatnonzero((n_times >= FEWEST_REPEATS) & (n_times <= MOST_MARKS * n_known)):
        others, counts = np.unique(
            values[values[:, cell] < highest[cell], cell], return_counts=True
        )
        spells = int((np.diff(at[:, cell].astype(np.int8), prepend=0) == 1).sum())
        least, most = float(others[0]), float(others[-1])
        if (
            FEWEST_REPEATS * counts.max() <= n_times[cell]
            and spells >= FEWEST_MARKS
            and len(others) >= FEWEST_OTHERS
            # A mark that is repeated so often need not be far away.
            and highest[cell] - most > 0.1 * (most - least)
        ):
            mark = float(highest[cell])
            of_all, first, low, high = found.get(mark, (0, int(cell), least, most))
            found[mark] = of_all + int(n_times[cell]), first, low, high
    return found


def _unrecorded(known: np.ndarray, times: pd.DatetimeIndex) -> list[str]:
    """Return the spans of times of day at which no step is known, if any is at others.

    Whether steps are `known`, and their local times, are `(steps,)`.

    >>> times = pd.date_range("2024-01-01", periods=24 * 9, freq="h")
    >>> _unrecorded((times.hour > 5) & (times.hour < 23), times)
    ['23:00 to 05:00']
    """
    minutes = np.asarray(60 * times.hour + times.minute)
    slots = np.unique(minutes)
    recorded = np.isin(slots, minutes[known])
    # Whether none is expected at a time of day shows after a week.
    if recorded.all() or not recorded.any() or len(times) < 7 * len(slots):
        return []
    slots = np.roll(slots, -int(recorded.argmax()))  # A span may hold midnight.
    absent = ~np.roll(recorded, -int(recorded.argmax()))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], absent, [0]]))).reshape(-1, 2)
    ends = [(slots[first], slots[end - 1]) for first, end in edges]
    return [f"{a // 60:02}:{a % 60:02} to {b // 60:02}:{b % 60:02}" for a, b in ends]


def _unit_changes(values: np.ndarray, times: pd.DatetimeIndex) -> list[str]:
    """Return the days from which on most of 100 cells are higher or lower by `OTHER_UNIT`."""
    values = values[:, :: max(1, values.shape[1] // 100)]
    daily = pd.DataFrame(np.abs(values)).groupby(times.normalize()).mean().median(axis=1)
    daily, found = daily[daily > 0], list[str]()
    for at, day in enumerate(daily.index[1:], start=1):
        before, after = daily.iloc[max(0, at - 3) : at], daily.iloc[at : at + 3]
        higher, lower = after.min() / before.max(), before.min() / after.max()
        if max(higher, lower) >= OTHER_UNIT:
            factor = f"{higher:.3g} times" if higher > lower else f"1/{lower:.3g}"
            found.append(f"{factor} as high from {day:%Y-%m-%d} on")
    return found


def _zero_spans(values: np.ndarray, day: int) -> list[tuple[int, int]]:
    """Return the first and last steps of long spans of zeros if other zeros are rare."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], values == 0, [0]])))
    spans = edges.reshape(-1, 2)
    lengths = spans[:, 1] - spans[:, 0]
    is_long = lengths >= day
    others = np.isfinite(values).sum() - lengths[is_long].sum()
    if lengths[~is_long].sum() > RARE_SHARE * others or others <= lengths[is_long].sum():
        return []
    return [(int(first), int(end) - 1) for first, end in spans[is_long]]


def _say(name: str, what: str, advice: str, places: list[str]) -> None:
    if places:
        log.warning("%s: %s: %s; %s", name, what, some(places, 3), advice)
