"""Chronological splits into training, validation and test windows.

A split is given as text: one of `SPLITS`, or `days:`, `steps:` or `windows:` with other numbers.
All targets of a training or validation window lie in its own part. Its inputs may come from the
part before it, which is past by then, except under `steps:`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from stforecast.data.windows import WindowSpec, day_slots

SPLITS = {
    "fuels": "first 40/62 of the days train, next 7/62 validate, the rest test (FUELS)",
    "fedda": "last 7 days test, no validation, the rest train (FedDA code)",
    "days:20,5,5": "days of training, validation and test",
    "steps:0.7,0.1,0.2": "the series cut by steps, windows wholly inside their part (BasicTS)",
    "windows:0.7,0.1,0.2": "all windows in order, cut by count (DCRNN)",
}
"""Name or example of each split, and its description."""

DAY, HOUR = pd.Timedelta(days=1), pd.Timedelta(hours=1)
FEDDA_TEST_DAYS = 7
FUELS_DAYS = Fraction(62)
FUELS_TRAIN_DAYS = 40
FUELS_VALIDATION_DAYS = 7
MAX_STEPS = 2**31


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of first target steps, each array increasing.

    Attributes:
        train: `(windows,)` starts of the training windows.
        validation: `(windows,)` starts of the validation windows; may be empty.
        test: `(windows,)` starts of the test windows.
        fit_steps: number of leading steps to fit a scaler on.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    fit_steps: int


@dataclass(frozen=True)
class SplitRule:
    """A parsed split, before it is applied to a series.

    Attributes:
        text: the split as the user wrote it.
        kind: `"fuels"`, `"fedda"`, `"days"`, `"steps"` or `"windows"`.
        parts: training, validation and test: days, or shares of 1; empty for the named splits.
    """

    text: str
    kind: str
    parts: tuple[Fraction, ...] = ()

    @property
    def has_validation(self) -> bool:
        """True if the validation part must hold a window."""
        return self.kind == "fuels" or (len(self.parts) == 3 and self.parts[1] > 0)


class _Cut(NamedTuple):
    """First target steps of the three parts, and the number of steps to fit a scaler on."""

    train: range
    validation: range
    test: range
    fit_steps: int


def parse_split(text: str) -> SplitRule:
    """Read the text of a split.

    >>> parse_split("days:20,5,5").kind
    'days'

    Args:
        text: e.g. `"fuels"` or `"steps:0.7,0.1,0.2"`.

    Raises:
        InputError: listing the valid forms, or naming the invalid number.
    """
    kind, colon, numbers = text.strip().partition(":")
    if kind in ("fuels", "fedda") and not colon:
        return SplitRule(text, kind)
    if kind not in ("days", "steps", "windows"):
        raise choose("split", text, SPLITS)
    try:
        parts = tuple(Fraction(part.strip()) for part in numbers.split(","))
    except (ValueError, ZeroDivisionError) as e:
        raise InputError(f"split {text!r}: {numbers!r} is not a list of numbers") from e
    if problem := _problem(kind, parts):
        example = next(name for name in SPLITS if name.startswith(kind))
        raise InputError(f"split {text!r}: {problem}; write it like {example}")
    return SplitRule(text, kind, parts)


def _problem(kind: str, parts: tuple[Fraction, ...]) -> str | None:
    """Describe what is wrong with the numbers of a split; None if they are valid."""
    if len(parts) != 3:
        return f"found {len(parts)} numbers, expected training, validation and test"
    if min(parts) < 0 or parts[0] == 0 or parts[2] == 0:
        return "training and test must be above 0, validation may be 0"
    if kind == "days" and any(part.denominator != 1 for part in parts):
        return "days must be whole numbers"
    if kind != "days" and sum(parts) != 1:
        return f"the shares add up to {float(sum(parts)):g}, not to 1"
    return None


def make_split(
    text: str,
    n_steps: int,
    step: pd.Timedelta,
    spec: WindowSpec,
    local_times: pd.DatetimeIndex,
) -> Split:
    """Split the windows of a series in time.

    Under `fuels`, `fedda` and `days:` days are counted from the first step, an incomplete last day
    belongs to the test part, and training begins at the first step of slot 0 with enough history
    (local midnight if the period is a day), so row b of an ordered batch is slot b.

    Args:
        text: the split, see `SPLITS`.
        n_steps: length of the series.
        step: length of a step.
        spec: the windows' shape.
        local_times: `(n_steps,)` local time of each step.

    Returns:
        The split; windows slide by one step.

    Raises:
        InputError: if the text is not a split, a part would have no window, or a lag lies before
            the series in all training windows; it gives the available and the needed steps.
    """
    if len(local_times) != n_steps or n_steps == 0:
        raise InputError(f"split {text!r}: {len(local_times)} local times for {n_steps} steps")
    rule = parse_split(text)
    cut = _cutter(rule, step, spec, local_times)
    if empty := _empty_part(rule, cut(n_steps)):
        raise InputError(
            f"split {text!r}: with {n_steps} steps the {empty} part has no window (each needs "
            f"{spec.max_lag} steps of history and {spec.horizon} of target); "
            + _remedy(rule, cut, n_steps)
        )
    *parts, fit_steps = cut(n_steps)
    train, validation, test = (np.arange(part.start, part.stop) for part in parts)
    _check_lags(rule, spec, train[-1], step)
    return Split(train, validation, test, fit_steps)


def period_warning(step: pd.Timedelta, period: int) -> str | None:
    """Return a warning if the period is not a whole number of days, else None.

    >>> period_warning(pd.Timedelta("1h"), 24)
    >>> period_warning(pd.Timedelta("5min"), 24)
    'a period of 24 steps of 5 minutes is 2 hours, not whole days; a day is 288 steps'

    Args:
        step: length of a step.
        period: steps in a period.
    """
    length = period * step.as_unit("ns").value  # A Python integer, which cannot overflow.
    if length % DAY.as_unit("ns").value == 0:
        return None
    minutes, hours = step / pd.Timedelta(minutes=1), length / HOUR.as_unit("ns").value
    return (
        f"a period of {period} steps of {minutes:g} minutes is {hours:g} hours, not whole days; "
        f"a day is {DAY / step:g} steps"
    )


def _empty_part(rule: SplitRule, cut: _Cut) -> str | None:
    """Return the name of the first part that lacks a required window, if any."""
    if not cut.train:
        return "training"
    if rule.has_validation and not cut.validation:
        return "validation"
    return None if cut.test else "test"


def _check_lags(rule: SplitRule, spec: WindowSpec, last: int, step: pd.Timedelta) -> None:
    """Refuse lags that no training window, up to the one with start `last`, can read."""
    known = [str(lag) for lag in spec.further_lags if lag <= last]
    if (furthest := max(spec.further_lags, default=0)) > last:
        raise InputError(
            f"split {rule.text!r}: the last training window begins at step {last}: none can read "
            f"{furthest} steps ({furthest * step / DAY:.3g} days) back; give a longer series, or "
            f"only the lags that there are: --extra-lags {','.join(known) or repr('')}"
        )


def _remedy(rule: SplitRule, cut: Callable[[int], _Cut], n_steps: int) -> str:
    """Return advice: the length that gives every part a window, if a longer series helps."""
    needed = bisect_left(
        range(MAX_STEPS), True, lo=n_steps, key=lambda n: _empty_part(rule, cut(n)) is None
    )
    if needed == MAX_STEPS:
        return "give that part more of the series or use shorter windows"
    return f"at least {needed} steps are needed"


def _cutter(
    rule: SplitRule, step: pd.Timedelta, spec: WindowSpec, local_times: pd.DatetimeIndex
) -> Callable[[int], _Cut]:
    """Return the cut as a function of the number of steps."""
    if rule.kind == "steps":
        return lambda n: _cut_steps(rule, n, spec)
    if rule.kind == "windows":
        return lambda n: _cut_windows(rule, n, spec)
    if DAY % step != pd.Timedelta(0):
        raise InputError(
            f"split {rule.text!r}: a step of {step} does not divide a day; cut by steps: instead"
        )
    per_day = DAY // step
    n_steps = len(local_times)
    if rule.kind == "days" and sum(rule.parts) != n_steps // per_day:
        raise InputError(
            f"split {rule.text!r}: {sum(rule.parts)} days are {int(sum(rule.parts)) * per_day} "
            f"steps, the series has {n_steps}; give days that add up to {n_steps // per_day}, or "
            "another series"
        )
    first = _first_training_start(day_slots(local_times, spec.period, step), spec)
    return lambda n: _cut_days(rule, n, per_day, spec, first)


def _first_training_start(slots: np.ndarray, spec: WindowSpec) -> int:
    """Return the first step of slot 0 with enough history, extrapolated beyond the series."""
    zeros = np.flatnonzero(slots[spec.max_lag :] == 0)
    if len(zeros):
        return spec.max_lag + int(zeros[0])
    return spec.max_lag + int(-(slots[0] + spec.max_lag) % spec.period)


def _cut_days(rule: SplitRule, n_steps: int, per_day: int, spec: WindowSpec, first: int) -> _Cut:
    n_days = n_steps // per_day
    if rule.kind == "fedda":
        train_end = validation_end = n_steps - FEDDA_TEST_DAYS * per_day
    elif rule.kind == "fuels":
        validation = max(1, round(n_days * FUELS_VALIDATION_DAYS / FUELS_DAYS))
        train = min(round(n_days * FUELS_TRAIN_DAYS / FUELS_DAYS), n_days - validation - 1)
        train_end, validation_end = train * per_day, (train + validation) * per_day
    else:
        train_end = int(rule.parts[0]) * per_day
        validation_end = train_end + int(rule.parts[1]) * per_day
    beyond = 1 - spec.horizon
    return _Cut(
        range(first, train_end + beyond),
        range(train_end, validation_end + beyond),
        range(validation_end, n_steps + beyond),
        train_end,
    )


def _cut_steps(rule: SplitRule, n_steps: int, spec: WindowSpec) -> _Cut:
    train_end = math.floor(rule.parts[0] * n_steps)
    validation_end = train_end + math.floor(rule.parts[1] * n_steps)
    bounds = (0, train_end, validation_end, n_steps)
    train, validation, test = (
        range(low + spec.max_lag, high + 1 - spec.horizon) for low, high in pairwise(bounds)
    )
    return _Cut(train, validation, test, train_end)


def _cut_windows(rule: SplitRule, n_steps: int, spec: WindowSpec) -> _Cut:
    first, stop = spec.max_lag, n_steps + 1 - spec.horizon
    n_windows = max(0, stop - first)
    test = stop - round(rule.parts[2] * n_windows)
    train = first + round(rule.parts[0] * n_windows) if rule.has_validation else test
    return _Cut(range(first, train), range(train, test), range(test, stop), train)
