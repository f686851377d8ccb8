"""Choice of lags and calendar inputs from the length of a step and of the training part."""

from __future__ import annotations

from typing import Literal

import pandas as pd

from stforecast.data.durations import DAY, WEEK

AUTO = "auto"
"""Value of `extra_lags` and `calendar` that chooses them from the data."""

AUTO_WEEKDAYS = "auto-weekdays"
"""Value of `calendar` that chooses an indicator of each weekday where training is long enough."""

HOUR = pd.Timedelta(hours=1)

RECENT_STEPS = 36
"""Newest lags of a series with steps below an hour: three hours of steps of five minutes."""

BESIDE = 2
"""Steps before and after the same time of another day that are lags, too."""

COARSE_STEPS = 28
"""Largest number of lags of a series with steps of six hours or longer: four weeks of days."""


def auto_lags(step: pd.Timedelta, horizon: int, n_training: int, closeness: int = 0) -> str:
    """Choose lags that a week's rhythm needs, and no more than the training part can teach.

    Series with steps of one to five hours read the whole last week, or two days if training is
    shorter than two weeks. Finer steps read the newest steps, and the steps around each target one
    day and one week before, as far as training is twice as long. Steps of six hours or longer read
    up to 28, a quarter of the training part.

    >>> auto_lags(pd.Timedelta("1h"), horizon=24, n_training=20 * 24)
    '1-168'
    >>> auto_lags(pd.Timedelta("5min"), horizon=12, n_training=4 * 288, closeness=1)
    '2-36,275-290'

    Args:
        step: length of a step.
        horizon: target steps of a window.
        n_training: steps from the begin of the series to the end of its training part.
        closeness: newest lags that the windows read already.

    Returns:
        Text for `WindowSpec.extra_lags`.
    """
    day, week = (max(1, span // step) for span in (DAY, WEEK))
    if week <= COARSE_STEPS:
        spans = [(1, min(COARSE_STEPS, n_training // 4))]
    elif step >= HOUR:
        spans = [(1, week if n_training >= 2 * week else min(2 * day, n_training // 2))]
    else:
        others = [lag for lag in (day, week) if n_training >= 2 * lag]
        spans = [(1, RECENT_STEPS), *((lag - horizon + 1 - BESIDE, lag + BESIDE) for lag in others)]
    ranges, end = [], closeness
    for first, last in spans:
        if last > end:
            ranges.append(f"{max(first, end + 1)}-{last}")
            end = last
    return ",".join(ranges)


def auto_calendar(
    step: pd.Timedelta, n_training: int, kind: str = AUTO
) -> Literal["day", "week", "weekdays"]:
    """Choose calendar inputs: `week`, or `day` if training is shorter than nine days.

    Under `auto-weekdays` they are `weekdays` if training has each weekday twice. Steps of a day or
    longer have no time of day; they read the weekday.

    >>> auto_calendar(pd.Timedelta("1h"), 20 * 24), auto_calendar(pd.Timedelta("5min"), 4 * 288)
    ('week', 'day')

    Args:
        step: length of a step.
        n_training: as for `auto_lags`.
        kind: `auto` or `auto-weekdays`.
    """
    length = n_training * step
    if step >= DAY or (kind == AUTO_WEEKDAYS and length >= 2 * WEEK):
        return "weekdays"
    return "week" if length >= pd.Timedelta(days=9) else "day"
