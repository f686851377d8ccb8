"""First target steps of the windows of each part, for each kind of split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from stforecast.data.clock import day_slots
from stforecast.data.durations import divides_a_day
from stforecast.data.window_spec import WindowSpec

FEDDA_TEST_DAYS = 7
FUELS_DAYS = Fraction(62)
FUELS_TRAIN_DAYS = 40
FUELS_VALIDATION_DAYS = 7


class Cut(NamedTuple):
    """First target steps of the windows of each part, and the steps to fit a scaler on."""

    train: range
    validation: range
    test: range
    fit: slice


def cut_spans(spans: Sequence[range], first: int, spec: WindowSpec) -> Cut:
    """Cut spans of steps; targets lie in their span, inputs may lie before it.

    Args:
        spans: steps of the training, validation and test part.
        first: first target step of training, from `first_training_start`.
        spec: the windows' shape.
    """
    train, validation, test = (range(s.start, s.stop + 1 - spec.horizon) for s in spans)
    fit = slice(spans[0].start, spans[0].stop)
    return Cut(range(first, train.stop), validation, test, fit)


def first_training_start(
    local_times: pd.DatetimeIndex, step: pd.Timedelta, spec: WindowSpec, begin: int = 0
) -> int:
    """Return the first target step of training: of slot 0, with enough history.

    It is local midnight if the period is a day. If the step does not divide a day, it is the first
    step with enough history. It may lie beyond the series.

    Args:
        local_times: `(steps,)` local time of each step.
        step: length of a step.
        spec: the windows' shape.
        begin: first step of the training part.
    """
    earliest = max(spec.max_lag, begin)
    if not divides_a_day(step):
        return earliest
    slots = day_slots(local_times, spec.period, step)
    zeros = np.flatnonzero(slots[earliest:] == 0)
    if len(zeros):
        return earliest + int(zeros[0])
    return earliest + int(-(slots[0] + earliest) % spec.period)


def fedda_spans(n_steps: int, per_day: int) -> list[range]:
    """Return the parts of FedDA's code: training up to the last seven days, no validation."""
    end = n_steps - FEDDA_TEST_DAYS * per_day
    return _spans(end, end, n_steps)


def fuels_spans(n_steps: int, per_day: int) -> list[range]:
    """Return the parts of FUELS: 40, 7 and 15 of 62 days, or these shares in whole days."""
    n_days = n_steps // per_day
    validation = max(1, round(n_days * FUELS_VALIDATION_DAYS / FUELS_DAYS))
    train = min(round(n_days * FUELS_TRAIN_DAYS / FUELS_DAYS), n_days - validation - 1)
    return _spans(train * per_day, (train + validation) * per_day, n_steps)


def day_spans(days: Sequence[Fraction], n_steps: int, per_day: int) -> list[range]:
    """Return parts of whole days; a last day that is cut short belongs to the test part."""
    train_end = int(days[0]) * per_day
    return _spans(train_end, train_end + int(days[1]) * per_day, n_steps)


def share_spans(shares: Sequence[Fraction], n_steps: int) -> list[range]:
    """Return parts of the given shares of the steps, rounded down except for the test part."""
    train_end = math.floor(shares[0] * n_steps)
    return _spans(train_end, train_end + math.floor(shares[1] * n_steps), n_steps)


def _spans(train_end: int, validation_end: int, n_steps: int) -> list[range]:
    return [range(*ends) for ends in pairwise((0, train_end, validation_end, n_steps))]


def cut_steps(shares: Sequence[Fraction], n_steps: int, spec: WindowSpec) -> Cut:
    """Cut windows that lie in one part with their inputs, as BasicTS does."""
    spans = share_spans(shares, n_steps)
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
