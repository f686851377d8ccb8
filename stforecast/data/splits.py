"""Chronological splits into training, validation and test windows.

A split is given as text, in one of the forms of `SPLITS`. A window belongs to the part in which its
first target lies; all its targets lie there, and its inputs may lie in the parts before it, which
are past by then. So the test targets are the same whatever the lags of a method. Two published
splits differ: under `steps:` the inputs lie in the part, too, so each part begins later by the
largest lag; under `windows:` the windows are cut by count, so the last targets of training lie in
the validation part, those of validation in the test part, and the boundaries move with the lags.
"""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose
from stforecast.data.clock import day_slots
from stforecast.data.dates import DAY, PARTS, Span, divides_a_day, find_steps, parse_dates
from stforecast.data.window_spec import WindowSpec


class Cut(NamedTuple):
    """First target steps of the windows of each part, and the steps to fit a scaler on."""

    train: range
    validation: range
    test: range
    fit: slice


def training_start(
    local_times: pd.DatetimeIndex, step: pd.Timedelta, spec: WindowSpec
) -> Callable[[range], int]:
    """Return the first target step of training in a part: of slot 0, with enough history.

    It is local midnight if the period is a day. If no window follows it, or the step does not
    divide a day, it is the first step with enough history.
    """
    if not divides_a_day(step):
        return lambda part: max(spec.max_lag, part.start)
    slots = day_slots(local_times, spec.period, step)
    zeros = np.flatnonzero(slots == 0)

    def start_in(part: range) -> int:
        earliest = max(spec.max_lag, part.start)
        later = zeros[np.searchsorted(zeros, earliest) :]
        first = int(later[0] - earliest if len(later) else -(slots[0] + earliest) % spec.period)
        return earliest + (first if earliest + first + spec.horizon <= part.stop else 0)

    return start_in


def day_spans(rule: SplitRule, n_steps: int, per_day: int) -> list[range]:
    """Return parts of whole days; a last day that is cut short belongs to the test part."""
    if rule.kind == "fedda":  # up to the last seven days, as in FedDA's code
        end = n_steps - 7 * per_day
        return _three_spans(end, end, n_steps)
    if rule.kind == "fuels":  # 40, 7 and 15 of 62 days, or these shares in whole days
        n_days = n_steps // per_day
        validation = max(1, round(n_days * Fraction(7, 62)))
        train = min(round(n_days * Fraction(40, 62)), n_days - validation - 1)
    else:
        train, validation, _ = map(int, rule.parts)
    return _three_spans(train * per_day, (train + validation) * per_day, n_steps)


def _three_spans(train_end: int, validation_end: int, n_steps: int) -> list[range]:
    return [range(*ends) for ends in pairwise((0, train_end, validation_end, n_steps))]


def cut_steps(shares: Sequence[Fraction], n_steps: int, spec: WindowSpec) -> Cut:
    """Cut windows that lie in one part with their inputs, as BasicTS does.

    Validation and test are rounded down to steps, and training takes the rest.
    """
    validation_end = n_steps - math.floor(shares[2] * n_steps)
    train_end = validation_end - math.floor(shares[1] * n_steps)
    spans = _three_spans(train_end, validation_end, n_steps)
    train, validation, test = (
        range(span.start + spec.max_lag, span.stop + 1 - spec.horizon) for span in spans
    )
    return Cut(train, validation, test, slice(0, spans[0].stop))


def cut_windows(shares: Sequence[Fraction], n_steps: int, spec: WindowSpec) -> Cut:
    """Cut the windows by count, as DCRNN does."""
    first, stop = spec.max_lag, n_steps + 1 - spec.horizon
    n_windows = max(0, stop - first)
    test = stop - round(shares[2] * n_windows)
    train = first + round(shares[0] * n_windows) if shares[1] else test
    return Cut(range(first, train), range(train, test), range(test, stop), slice(0, train))


SPLITS = {
    "fuels": "40/62 of the days train, the next 7/62 validate, the rest test (FUELS)",
    "fedda": "last 7 days test, no validation, the rest train (FedDA code)",
    "days:20,5,5": "days of training, validation and test",
    "time:0.6,0.15,0.25": "shares of the time, rounded down to steps",
    "dates:2013-11-21,2013-11-26": (
        "first local times of validation and test; or three intervals of local time, "
        "FROM/TO,FROM/TO,FROM/TO, that exclude their ends; or two, without validation"
    ),
    "steps:0.7,0.1,0.2": (
        "shares of the time; inputs lie in the part, too, so targets begin later by the "
        "largest lag (BasicTS)"
    ),
    "windows:0.7,0.1,0.2": (
        "shares of the windows; targets may reach into the next part, and the parts move "
        "with the lags (DCRNN)"
    ),
}
"""Name or example of each split, and its description."""


@dataclass(frozen=True, eq=False)
class Split:
    """First target steps of the windows of each part, increasing, and the steps to fit a scaler on.

    Only validation may be empty.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    fit: slice


@dataclass(frozen=True)
class SplitRule:
    """A parsed split, before it is applied to a series.

    Attributes:
        text: the split as the user wrote it.
        kind: what stands before the colon, or the whole name.
        parts: training, validation and test: days, or shares of 1; empty for other splits.
        spans: local time of each part under `dates:`; empty for other splits.
    """

    text: str
    kind: str
    parts: tuple[Fraction, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=dict)

    @property
    def has_validation(self) -> bool:
        """True if the validation part must hold a window."""
        if self.parts:
            return self.parts[1] > 0
        return self.kind == "fuels" or "validation" in self.spans

    @property
    def by_clock(self) -> bool:
        """True if parts are spans of time, and training begins at slot 0 of the period."""
        return self.kind not in ("steps", "windows")


def parse_split(text: str) -> SplitRule:
    """Read the text of a split.

    >>> parse_split("days:20,5,5").kind
    'days'
    """
    kind, colon, numbers = text.strip().partition(":")
    if kind in ("fuels", "fedda") and not colon:
        return SplitRule(text, kind)
    if kind == "dates":
        return SplitRule(text, kind, spans=parse_dates(text.strip()))
    if kind not in ("days", "time", "steps", "windows"):
        raise choose("split", text, SPLITS)
    texts = [part.strip() for part in numbers.split(",")]
    try:  # A number with an exponent could be too large to compute.
        if not all(re.fullmatch(r"-?[0-9./]{1,20}", part) for part in texts):
            raise ValueError(numbers)
        parts = tuple(map(Fraction, texts))
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
        return f"the shares add up to {float(sum(parts))!r}, not to 1"
    return None


EXAMPLE = parse_split("time:0.6,0.15,0.25")
"""Split that suits most series, for advice."""


def make_split(
    text: str, n_steps: int, step: pd.Timedelta, spec: WindowSpec, local_times: pd.DatetimeIndex
) -> Split:
    """Split the windows of a series in time.

    Under `fuels`, `fedda` and `days:` days are counted from the first step, and an incomplete last
    day belongs to the test part. Under these, `time:` and `dates:` training begins at the first
    step of slot 0 with enough history (local midnight if the period is a day), so row b of an
    ordered batch is slot b; if the step does not divide a day, at the first step with enough
    history. So it does where no window of the training part follows slot 0. As training comes
    first, the other parts then have enough history from their begin.
    """
    if len(local_times) != n_steps or n_steps == 0:
        raise InputError(f"split {text!r}: {len(local_times)} local times for {n_steps} steps")
    rule = parse_split(text)
    cut_at = _cutter(rule, step, spec, local_times)
    cut = cut_at(n_steps)
    if empty := _empty_part(rule, cut):
        raise InputError(
            f"split {text!r}: with {n_steps} steps the {empty} part has no window (each needs "
            f"{spec.max_lag} steps of history and {spec.horizon} of target); ",
            _remedy(rule, cut_at, _cutter(EXAMPLE, step, spec, local_times), n_steps),
            Words(", or fewer {periods}") if spec.max_lag > spec.closeness else "",
            _shorter(rule, step, spec, local_times),
        )
    train, validation, test = (np.arange(part.start, part.stop) for part in cut[:3])
    last = train[-1]  # No later training window could read a lag, either.
    known = [str(lag) for lag in spec.further_lags if lag <= last]
    if (furthest := max(spec.further_lags, default=0)) > last:
        raise InputError(
            f"split {rule.text!r}: the last training window begins at step {last}, so none can "
            f"read {furthest} steps ({furthest * step / DAY:.3g} days) back; ",
            Words(
                "give a longer series, or only lags within it: {extra_lags}",
                extra_lags=",".join(known),
            ),
        )
    return Split(train, validation, test, cut.fit)


def _empty_part(rule: SplitRule, cut: Cut) -> str | None:
    """Return the name of the first part that lacks a required window, if any."""
    if not cut.train:
        return "training"
    if rule.has_validation and not cut.validation:
        return "validation"
    return None if cut.test else "test"


def _remedy(
    rule: SplitRule, cut: Callable[[int], Cut], example: Callable[[int], Cut], n_steps: int
) -> str | Words:
    """Return advice: the length that gives every part a window, if a longer series helps."""
    lengths = range(2**31)
    needed = bisect_left(lengths, True, lo=n_steps, key=lambda n: _empty_part(rule, cut(n)) is None)
    if needed == len(lengths):
        return "give that part more of the series or use shorter windows"
    such = "" if _empty_part(EXAMPLE, example(n_steps)) else f" such as {EXAMPLE.text}"
    return Words("give at least {} steps or another {split}{}", needed, such)


def _shorter(
    rule: SplitRule, step: pd.Timedelta, spec: WindowSpec, local_times: pd.DatetimeIndex
) -> str | Words:
    """Return advice: the largest horizon with which every part has a window, if one is shorter."""

    def is_too_long(horizon: int) -> bool:
        cut_at = _cutter(rule, step, dataclasses.replace(spec, horizon=horizon), local_times)
        return _empty_part(rule, cut_at(len(local_times))) is not None

    largest = bisect_left(range(1, spec.horizon), True, key=is_too_long)
    return Words(", or a {horizon} of at most {}", largest) if largest else ""


def _cutter(
    rule: SplitRule, step: pd.Timedelta, spec: WindowSpec, local_times: pd.DatetimeIndex
) -> Callable[[int], Cut]:
    """Return the cut as a function of the number of steps."""
    if rule.kind == "steps":
        return lambda n: cut_steps(rule.parts, n, spec)
    if rule.kind == "windows":
        return lambda n: cut_windows(rule.parts, n, spec)
    spans_of, start_in = _spans(rule, step, local_times), training_start(local_times, step, spec)

    def cut(n: int) -> Cut:
        spans = spans_of(n)  # Targets lie in their span, inputs may lie before it.
        train, validation, test = (range(s.start, s.stop + 1 - spec.horizon) for s in spans)
        fit = slice(spans[0].start, spans[0].stop)
        return Cut(range(start_in(spans[0]), train.stop), validation, test, fit)

    return cut


def _spans(
    rule: SplitRule, step: pd.Timedelta, local_times: pd.DatetimeIndex
) -> Callable[[int], list[range]]:
    """Return the steps of each part as a function of the number of steps."""
    if rule.kind == "time":

        def by_share(n: int) -> list[range]:
            train, validation = (math.floor(share * n) for share in rule.parts[:2])
            return _three_spans(train, train + validation, n)

        return by_share
    if rule.kind == "dates":
        found = find_steps(rule.spans, local_times, step, rule.text)
        train, validation, test = (found.get(name, range(0)) for name in PARTS)
        if rule.spans["test"][1] is None:  # It takes the rest.
            return lambda n: [train, validation, range(test.start, n)]
        return lambda n: [train, validation, test]
    if not divides_a_day(step):
        raise InputError(
            f"split {rule.text!r}: a step of {step} does not divide a day; cut by time: instead"
        )
    per_day, n_steps = DAY // step, len(local_times)
    # Days of which one is an hour short, as daylight saving time began, are whole days, too.
    n_days = max(n_steps // per_day, (local_times[-1] - local_times[0] + step) // DAY)
    if rule.parts and sum(rule.parts) not in (n_steps // per_day, n_days):
        _, *others = map(int, rule.parts)
        advice: str | Words = f"give days that add up to {n_days}, or a longer series"
        if (days := n_days - sum(others)) > 0:
            split = f"days:{days},{others[0]},{others[1]}"
            advice = Words("give {split}, whose days add up to {}", n_days, split=split)
        raise InputError(
            f"split {rule.text!r}: {sum(rule.parts)} days are {int(sum(rule.parts)) * per_day} "
            f"steps, the series has {n_steps}; ",
            advice,
        )
    return lambda n: day_spans(rule, n, per_day)
