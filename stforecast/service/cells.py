"""The state of each cell's counter: silent, zero, stuck, wild or drifted, and since when.

A counter that repeats a reading, or sends none, is broken once it has done so for hours, for half
as long again as ever before, and if its earlier readings at the same times of day make that
unlikely; zeros count where they are rare. It is wild if a quarter of a day's readings are as rare
as anomalies, while other cells are as expected, and no common factor explains them; with a factor
it has drifted, as one whose last days are distributed otherwise. Readings that the model does not
believe are wild whatever other cells do. What drifts is learnt; what is broken is not: it counts as
missing, wild readings for a week at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from data_prep.base.errors import counted, some
from stforecast.data.weekly_profile import fill_forward
from stforecast.service.expected import Expected, Values, paired

STATES = ("silent", "zero", "stuck", "wild", "drifted")
"""What a cell may be, the gravest first."""

LONGER = 1.5
"""How often as long as any earlier repetition of its kind one must be."""

UNLIKELY = 1e-6
"""Probability of a repetition as long, by how often readings were repeated at its times of day."""

AT_FIRST = 7
"""Days at the begin of a history whose repetitions are usual."""

OF_A_DAY = 0.25
"""Share of a day's readings that are rare in a wild cell, and most of other cells with them."""

FITS = 0.8
"""Share of rare readings that a common factor must explain."""

MOST_FACTOR = 10.0
"""Factor, or its reciprocal, beyond which a cell is wild, not drifted."""

WILD_DAYS = 7
"""Days after which wild readings are taken as they are."""


@dataclass(frozen=True, eq=False)
class CellStates:
    """What the readings of a history say of its cells.

    Attributes:
        state: `(cells,)` one of `STATES`, or empty.
        since: `(cells,)` step at which it began; -1 without a state.
        broken: `(steps, cells)` readings that count as missing, but for those that the model does
            not believe.
    """

    state: np.ndarray
    since: np.ndarray
    broken: np.ndarray


def find_states(
    readings: Values,
    expected: Expected,
    rarity: Values,
    day: int,
    hours: float,
    rare: float,
    unbelieved: Values | None = None,
) -> CellStates:
    """Judge the readings of a history.

    Args:
        readings: `(steps, cells)`, NaN where missing.
        expected: what was expected of the last steps, of all cells.
        rarity: how rare these are, `(last steps, cells)`; NaN where it does not count.
        day: steps of a day.
        hours: least length of a repetition, in hours; 0 for none.
        rare: an anomaly is one reading in so many.
        unbelieved: which readings the model does not believe; by default none.
    """
    n, n_cells = readings.shape
    state, since = np.full(n_cells, "", dtype="<U7"), np.full(n_cells, -1)
    broken = np.zeros((n, n_cells), dtype=bool)
    if unbelieved is None:
        unbelieved = np.zeros_like(broken)
    first, least = n - len(rarity), max(round(hours * day / 24), 2)
    searched = np.flatnonzero(_repeats(readings, least)).tolist() if hours else []
    spells = [
        *_wild(readings, expected, rarity, unbelieved, day, rare),
        *((cell, *spell) for cell in searched
          for spell in repetitions(readings[:, cell], least, day)),
    ]  # fmt: skip
    for cell, begin, end, kind in spells:
        if kind == "wild":
            until = min(end, begin + WILD_DAYS * day)
            broken[begin:until, cell] |= rarity[begin - first : until - first, cell] >= rare
        elif kind in ("zero", "stuck"):
            broken[begin:end, cell] = True
        if end == n:
            state[cell], since[cell] = kind, begin
    return CellStates(state, since, broken & ~unbelieved)


def _repeats(readings: Values, least: int) -> Values:
    """Return which cells repeat any reading, or lack readings, for so many steps."""
    filled = fill_forward(readings)
    same = (filled[1:] == filled[:-1]) | np.isnan(filled[1:])
    found: Values = (_over_a_day(same, least - 1) == least - 1).any(axis=0)
    return found


def repetitions(values: Values, least: int, day: int) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and kind of each spell in which a cell's counter is broken.

    Args:
        values: `(steps,)` readings.
        least: least length in steps; shorter gaps do not end a repetition.
        day: steps of a day.

    >>> usual = np.tile([5.0, 7.0, 5.0, 9.0], 30)
    >>> list(repetitions(np.concatenate([usual, np.full(20, 6.0)]), 12, 4))
    [(120, 140, 'stuck')]
    """
    filled = pd.Series(values).ffill().to_numpy(copy=True)
    for _, begin, end in spells_of(np.isnan(values)[:, None]):
        if end - begin >= least:
            filled[begin:end] = np.nan
    begins, ends = _runs(np.where(np.isnan(filled), np.inf, filled))
    first, lengths = filled[begins], ends - begins
    kinds = np.where(np.isnan(first), "silent", np.where(first == 0, "zero", "stuck"))
    same = np.concatenate([[False], (filled[1:] == filled[:-1]) & (filled[1:] != 0)])
    marks = {"silent": np.isnan(filled), "zero": filled == 0, "stuck": same}
    usual, judged = np.ones(len(begins), dtype=bool), np.ones(len(filled), dtype=bool)
    for i in np.flatnonzero((lengths >= least) & (begins >= AT_FIRST * day)):
        begin, end, kind = int(begins[i]), int(ends[i]), str(kinds[i])
        longest = lengths[:i][usual[:i] & (kinds[:i] == kind)].max(initial=0)
        before = judged[:begin]
        if lengths[i] > LONGER * longest and _unlikely(marks[kind][:begin], before, end, day):
            usual[i], judged[begin:end] = False, False
            yield begin, end, kind


def _unlikely(marks: Values, usual: Values, end: int, day: int) -> bool:
    """Return whether a repetition until a step is unlikely by the earlier marks `(steps,)`.

    Those at the same time of day say how likely each of its steps is.
    """
    begin = len(marks)
    time = np.arange(end) % day
    n, known = (np.bincount(time[:begin], of, day) for of in (marks & usual, usual))
    chances = (n + 0.1) / (known + 1)
    return bool(np.log(chances[time[begin + 1 :]]).sum() < math.log(UNLIKELY))


def _runs(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end of each run of equal values; there is at least one value."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([[0], changes]), np.concatenate([changes, [len(values)]])


def spells_of(marks: Values) -> Iterator[tuple[int, int, int]]:
    """Yield cell, begin and end of each run of marks `(steps, cells)`."""
    for cell in np.flatnonzero(marks.any(axis=0)):
        for begin, end in zip(*_runs(marks[:, cell]), strict=True):
            if marks[begin, cell]:
                yield int(cell), int(begin), int(end)


def _wild(
    readings: Values, expected: Expected, rarity: Values, unbelieved: Values, day: int, rare: float
) -> Iterator[tuple[int, int, int, str]]:
    """Yield cell, begin, end and kind of each spell of rare readings of a cell by itself.

    Readings that the model does not believe are so whatever other cells do.
    """
    first = len(readings) - len(rarity)
    readings, unbelieved = readings[first:], unbelieved[first:]
    with np.errstate(invalid="ignore"):
        odd = rarity >= rare
    known = np.isfinite(rarity)
    others = odd.sum(axis=1, keepdims=True) - odd
    n_others = np.fmax(known.sum(axis=1, keepdims=True) - known, 1)
    own = odd & (others < OF_A_DAY * n_others) | unbelieved & known
    counts = [_over_a_day(of, day) for of in (own, known)]
    many = (counts[0] >= OF_A_DAY * counts[1]) & (counts[1] >= OF_A_DAY * day)
    for cell, begin, end in spells_of(many):
        earliest = max(begin - day + 1, 0)
        begin = earliest + int(np.argmax(own[earliest:, cell]))
        some, kind = (slice(begin, end), slice(cell, cell + 1)), "wild"
        if not unbelieved[some].any():
            kind = _kind(readings[some], expected.of(*some), odd[some])
        yield cell, first + begin, first + end, kind


def _over_a_day(marks: Values, day: int) -> Values:
    """Return the number of marks in the day that ends with each step."""
    total = np.cumsum(marks, axis=0)
    found = total.copy()
    found[day:] -= total[:-day]
    return found


def _kind(readings: Values, expected: Expected, odd: Values) -> str:
    """Return `drifted` if a common factor brings rare readings within their bounds, else `wild`."""
    seen, due = (float(of.sum()) for of in paired(readings, expected.values))
    if seen <= 0 or due <= 0:
        return "wild"
    factor = seen / due
    with np.errstate(invalid="ignore"):
        fits = np.abs(expected.distances(readings / factor)) < 2
    fitting = (fits & odd).sum() >= FITS * odd.sum()
    return "drifted" if fitting and 1 / MOST_FACTOR <= factor <= MOST_FACTOR else "wild"


def sentences(cells: Sequence[object], states: Sequence[str], since: Sequence[str]) -> list[str]:
    """Return a sentence for each state, the gravest first, with its cells and since when.

    >>> sentences([*"abc"], ["stuck", "", "stuck"], ["2024-02-11 00:00:00", "", "2024-02-12"])
    ['2 cells stuck: a since 2024-02-11 00:00, c since 2024-02-12']
    """
    found = []
    for state in STATES:
        who = [
            f"{c} since {t[:16]}"
            for c, s, t in zip(cells, states, since, strict=True)
            if s == state
        ]
        if who:
            found.append(f"{counted(len(who), 'cell')} {state}: {some(who)}")
    return found


def changed_at(values: Values, day: int) -> int:
    """Return the step at which the level of a cell's readings `(steps,)` changed most, by days."""
    whole = values[len(values) % day :].reshape(-1, day)
    known = np.isfinite(whole).sum(axis=1)
    total = np.where(np.isfinite(whole), whole, 0.0).sum(axis=1)
    n, sums = np.cumsum(known)[:-1], np.cumsum(total)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        left, right = sums / n, (total.sum() - sums) / (known.sum() - n)
        between = n * (known.sum() - n) * (left - right) ** 2
    best = int(np.nanargmax(np.append(between, 0.0)))
    return len(values) % day + day * (best + 1) if len(between) else 0
