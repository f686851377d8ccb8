"""Folds of a backtest: successive test spans, each forecast by a model trained before it.

This is evaluation with a rolling origin (Tashman, "Out-of-sample tests of forecasting accuracy: an
analysis and review", International Journal of Forecasting 16, 2000). Each fold is a split by dates.
They are checked against the windows before anything is fitted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import PositiveInt

from data_prep.base.errors import InputError, counted
from stforecast.data import dates
from stforecast.data.clock import Calendar
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.options import CheckedOptions

TESTED_PERCENT = 30
"""Part of the time in the test spans, by default."""


class _Lengths(NamedTuple):
    """Lengths of the spans of a fold in steps; 0 steps of training mean that it grows."""

    test: int
    validation: int
    gap: int
    train: int


LENGTHS = _Lengths._fields


@dataclass(frozen=True)
class FoldOptions(CheckedOptions):
    """Folds of a backtest; each length is a time like 7d, 24h or 30min.

    Attributes:
        folds: number of test spans; they follow each other, and the last ends with the data.
        test: length of each test span; by default 30 % of the time divided by the folds, in whole
            days if it is at least a day.
        validation: length of the validation span of each fold; by default as long as a test span;
            0d means none.
        gap: time from the end of validation to the first test target; none by default.
        train: length of the training span, which then slides from fold to fold; by default the
            training span begins with the data and grows.

    Raises:
        InputError: naming the field that is no length of time.
    """

    folds: PositiveInt = 3
    test: str = ""
    validation: str = ""
    gap: str = ""
    train: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no length of time."""
        super().__post_init__()
        for name in LENGTHS:
            text = getattr(self, name)
            if text and not re.fullmatch(dates.DURATION, text):
                raise InputError(f"{name} is {text!r:.200}; give a time like 7d, 24h or 30min")
            if (
                name in ("test", "train")
                and text
                and not int(text.removesuffix(dates.unit_of_span(text)))
            ):
                raise InputError(f"{name} is {text!r}; it must be longer than 0")


def fold_splits(
    local_times: pd.DatetimeIndex, step: pd.Timedelta, horizon: int, options: FoldOptions
) -> list[str]:
    """Divide a series into the folds of a backtest; return the split of each, oldest first.

    A span that would begin at the second of two equal local times begins at the first, so it may
    differ from the length asked for by an hour, and gaps are at least as long as asked for.

    >>> days = pd.date_range("2013-11-01", periods=30, freq="1D")
    >>> fold_splits(days, pd.Timedelta("1D"), 1, FoldOptions(folds=1, test="7d", validation="0d"))
    ['dates:2013-11-01/2013-11-24,2013-11-24/2013-12-01']
    """
    n_steps = len(local_times)
    lengths = _lengths(options, n_steps, step)
    _check_fit(options, lengths, n_steps, step, horizon)
    ends = [n_steps - lengths.test * after for after in range(options.folds, -1, -1)]
    splits = []
    for begin, end in pairwise(_entered(n, local_times) for n in ends):
        known = _entered(begin - lengths.gap, local_times)
        validation = _entered(known - lengths.validation, local_times)
        train = _entered(validation - lengths.train, local_times) if lengths.train else 0
        spans = [range(train, validation), range(validation, known), range(begin, end)]
        if not lengths.validation:
            del spans[1]
        splits.append(_text(spans, local_times, step, horizon))
    return splits


def describe_folds(n_steps: int, step: pd.Timedelta, options: FoldOptions) -> str:
    """Describe the folds of a series: equal descriptions have equal spans.

    >>> describe_folds(62, pd.Timedelta("1D"), FoldOptions(test="7d", gap="1d"))
    '3 folds of 7 days (gap 1 day)'
    """
    lengths = _lengths(options, n_steps, step)
    usual = lengths._replace(validation=lengths.test, gap=0, train=0)
    spans = zip(LENGTHS, lengths, usual, strict=True)
    further = [f"{name} {dates.in_words(n, step)}" for name, n, default in spans if n != default]
    more = f" ({', '.join(further)})" if further else ""
    return f"{counted(options.folds, 'fold')} of {dates.in_words(lengths.test, step)}{more}"


def _lengths(options: FoldOptions, n_steps: int, step: pd.Timedelta) -> _Lengths:
    """Return the lengths of the spans in steps."""
    found = []
    for name in LENGTHS:
        text = getattr(options, name)
        length = dates.in_steps(text, step) if text else 0
        if length is None:
            raise InputError(
                f"{name} is {text}, not a whole number of steps of {dates.in_words(1, step)}"
            )
        found.append(length)
    test, validation, gap, train = found
    if not options.test:
        share = n_steps * TESTED_PERCENT // 100 // options.folds
        if share == 0:
            raise InputError(
                f"{TESTED_PERCENT} % of {counted(n_steps, 'step')} cannot be divided into "
                f"{options.folds} test spans; give fewer folds or a longer series"
            )
        test = _whole_days(share, step)
    return _Lengths(test, validation if options.validation else test, gap, train)


def _whole_days(n_steps: int, step: pd.Timedelta) -> int:
    """Round a number of steps down to whole days, if it is at least a day."""
    per_day = dates.DAY // step if dates.divides_a_day(step) else 1
    return n_steps - n_steps % per_day if n_steps >= per_day else n_steps


def _check_fit(
    options: FoldOptions, lengths: _Lengths, n_steps: int, step: pd.Timedelta, horizon: int
) -> None:
    """Refuse folds that do not fit in the series, and a horizon that does not fit in a span."""
    for name, length in zip(LENGTHS, lengths, strict=True):
        if name != "gap" and 0 < length < horizon:
            raise InputError(
                f"the horizon of {dates.in_words(horizon, step)} is longer than the {name} span of "
                f"{dates.in_words(length, step)}; give longer spans, fewer folds or a shorter "
                "horizon"
            )
    train = lengths.train or horizon
    needed = options.folds * lengths.test + lengths.validation + lengths.gap + train
    if needed > n_steps:
        parts = zip(LENGTHS, (*lengths[:3], train), strict=True)
        words = ", ".join(f"{name} {dates.in_words(n, step)}" for name, n in parts)
        free = n_steps - lengths.gap - train
        # Rounded apart, as the two may differ by less than a tenth of a day.
        missing, there = (
            math.ceil(10 * needed * (step / dates.DAY)),
            int(10 * n_steps * (step / dates.DAY)),
        )
        fits = []  # Folds or test spans that fit in the steps free for test and validation.
        if options.test and (most := (free - lengths.validation) // lengths.test) > 0:
            fits.append(f"at most {counted(most, 'fold')}")
        validation, spans = (lengths.validation, 0) if options.validation else (0, 1)
        longest = _whole_days((free - validation) // (options.folds + spans), step)
        if longest >= horizon:
            fits.append(f"test spans of at most {dates.in_words(longest, step)}")
        raise InputError(
            f"{counted(options.folds, 'fold')} ({words}) need {missing / 10:g} days, "
            f"the data have {there / 10:g}; ",
            f"{' or '.join(fits)} would fit" if fits else "give shorter spans or fewer folds",
        )


def _entered(n: int, local_times: pd.DatetimeIndex) -> int:
    """Return the first step with the local time of step `n`, which the clock may show twice."""
    return n if n == len(local_times) else dates.step_at(local_times[n], local_times)


def _text(
    spans: Sequence[range], local_times: pd.DatetimeIndex, step: pd.Timedelta, horizon: int
) -> str:
    """Write spans of steps as a split by dates."""
    times = local_times.append(pd.DatetimeIndex([dates.end_of(local_times, step)]))
    intervals = []
    for span in spans:
        first, end = (
            f"{time:%Y-%m-%d}" if time == time.normalize() else time.isoformat()
            for time in (times[span.start], times[span.stop])
        )
        if len(span) < horizon:
            raise InputError(
                f"the clock is set back at {first}, which leaves {counted(len(span), 'step')} of "
                "the span that begins there; give longer spans"
            )
        intervals.append(f"{first}/{end}")
    return f"dates:{','.join(intervals)}"


@dataclass(frozen=True)
class FoldPlan:
    """Folds of a backtest.

    Attributes:
        splits: split of each fold, oldest first; see `stforecast.data.dates`.
        description: number of folds and lengths of their spans, such as "3 folds of 7 days".
    """

    splits: tuple[str, ...]
    description: str


def plan_folds(
    n_steps: int, calendar: Calendar, windows: Mapping[str, WindowSpec], options: FoldOptions
) -> FoldPlan:
    """Divide a series into folds in which the windows of all methods fit."""
    local_times = calendar.local_times(np.arange(n_steps))
    specs = {name: window.at(calendar.step) for name, window in windows.items()}
    longest = max(window.horizon for window in specs.values())
    splits = fold_splits(local_times, calendar.step, longest, options)
    for number, split in enumerate(splits, start=1):
        for name, window in specs.items():
            try:
                make_split(split, n_steps, calendar.step, window, local_times)
            except InputError as e:
                raise InputError(f"fold {number} of {len(splits)}, {name}: ", e) from e
    return FoldPlan(tuple(splits), describe_folds(n_steps, calendar.step, options))
