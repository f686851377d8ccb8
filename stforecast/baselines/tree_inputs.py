"""Inputs of trees for one target step: recent readings, means, earlier days and weeks.

They are what a practitioner gives a tree, which cannot add or subtract its inputs: sums and
differences are inputs themselves. Missing readings stay NaN, which LightGBM sends to the better
side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from stforecast.data.clock import Calendar, calendar_inputs
from stforecast.data.dates import DAY, WEEK
from stforecast.data.weekly_profile import at_targets, profile_by_step


def inputs_of_steps(
    series: np.ndarray, starts: np.ndarray, horizon: int, calendar: Calendar
) -> Iterator[np.ndarray]:
    """Yield the inputs for each target step of windows, which read before their start only.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` first target steps.
        horizon: number of target steps.
        calendar: the series' wall clock, which all times of days before follow.

    Yields:
        `(cells, windows, inputs)` float32, NaN where missing; the last inputs are the target step
        and the cell's position.
    """
    day, week = calendar.steps_in(DAY), calendar.steps_in(WEEK)
    starts, shape = np.asarray(starts), (series.shape[1], len(starts))
    profile = profile_by_step(series, horizon, calendar).T
    profile = np.where(profile == 0.0, np.nan, profile)  # 0.0 is without an earlier week.
    newest = starts - 1
    usual = profile[:, newest, None]
    recent = _readings(series, newest[:, None] - np.arange(24))
    seasons = np.stack([calendar.before(newest, season) for season in (day, week)], axis=1)
    change = recent[..., :1] - _readings(series, seasons)
    common = [recent, change, recent[..., :1] - usual, _means(series, newest, day, week)]
    of_targets = at_targets(profile, starts, horizon, calendar)[..., None]
    cell = np.broadcast_to(np.arange(series.shape[1])[:, None, None], (*shape, 1))
    for ahead in range(horizon):
        target = calendar.before(starts, -ahead)
        last = day * (ahead // day + 1), week * (ahead // week + 1)
        steps = [calendar.before(target, of)[:, None] + np.arange(-1, 2) for of in last]
        steps += [calendar.before(target, 2 * of)[:, None] for of in last]
        readings = _readings(series, np.minimum(np.concatenate(steps, axis=1), newest[:, None]))
        expected = of_targets[:, :, ahead]
        known = calendar_inputs(calendar.local_times(target), "weekdays")
        known = np.concatenate([known, np.full((len(starts), 1), ahead)], axis=1)
        same = readings[..., [1, 4]] - recent[..., :1]
        own = [readings, same, expected, expected - usual, np.broadcast_to(known, (*shape, 12))]
        yield np.concatenate([*common, *own, cell], axis=-1, dtype=np.float32)


def _means(series: np.ndarray, newest: np.ndarray, day: int, week: int) -> np.ndarray:
    """Return means of the readings up to each step, and the deviation within a day.

    The means are of 3, 6 and 12 steps, half a day, one and two days, and a week.
    """
    table = pd.DataFrame(series)
    widths = sorted({3, 6, 12, max(1, day // 2), day, 2 * day, week})
    found = [table.rolling(width, min_periods=1).mean() for width in widths]
    found.append(table.rolling(max(2, day), min_periods=2).std())
    return np.stack([of.to_numpy()[newest] for of in found], axis=-1).swapaxes(0, 1)


def _readings(series: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the readings at steps `(windows, n)`, `(cells, windows, n)`; NaN before the series."""
    readings = series[steps.clip(0)]
    readings[steps < 0] = np.nan
    return np.moveaxis(readings, -1, 0)
