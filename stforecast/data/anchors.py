"""Anchors of targets: known values from which a model learns the difference.

A model may learn a target itself (`level`), or its difference from the last value before the window
(`change`), or from the value of the same time one day or one week before (`day`, `week`). Anchors
read the past only. A missing one is replaced by the latest observed value of its kind, and without
any by 0.0, the training mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from stforecast.data.dates import DAY, WEEK, steps_in

if TYPE_CHECKING:
    from stforecast.data.clock import Calendar
    from stforecast.data.window_spec import WindowSpec

Target = Literal["level", "change", "day", "week", "validation"]
"""What a model learns."""

LEVEL: Target = "level"
"""Target without an anchor."""

CHOSEN: Target = "validation"
"""Target that is chosen on the validation part."""

SPANS: dict[Target, pd.Timedelta] = {"day": DAY, "week": WEEK}
"""Seasons of anchors by the name of the target."""


def targets(step: pd.Timedelta) -> list[Target]:
    """Return the targets to choose from; those with an anchor of a day or week only if it is whole.

    >>> targets(pd.Timedelta("1h")), targets(pd.Timedelta("5D"))
    (['level', 'change', 'day', 'week'], ['level', 'change'])
    """
    whole = [name for name, span in SPANS.items() if span % step == pd.Timedelta(0)]
    return [LEVEL, "change", *whole]


def season_of_anchors(target: Target, step: pd.Timedelta) -> int:
    """Return the steps of a target's season, which an anchor repeats; 0 for `level`.

    >>> [season_of_anchors(t, pd.Timedelta("1h")) for t in ("level", "change", "day", "week")]
    [0, 1, 24, 168]
    """
    return steps_in(SPANS[target], step) if target in SPANS else {LEVEL: 0, "change": 1}[target]


def reach_of(window: WindowSpec, step: pd.Timedelta) -> int:
    """Return the steps that a history needs: up to the furthest input and the anchors."""
    return max(window.reach, season_of_anchors(window.target, step))


def anchors(
    series: np.ndarray, starts: np.ndarray, horizon: int, target: Target, calendar: Calendar
) -> np.ndarray:
    """Return the anchor of each target, known at the window's start.

    Arguments and result are the same as for `repeat_season`.
    """
    season = season_of_anchors(target, calendar.step)
    return repeat_season(series, starts, horizon, season, calendar)


def without_anchors(
    y: np.ndarray, series: np.ndarray, starts: np.ndarray, target: Target, calendar: Calendar
) -> np.ndarray:
    """Subtract the anchors from targets `(cells, windows, horizon)`, as a model learns them.

    The target level changes nothing; other arguments are as for `anchors`. The inverse of
    `with_anchors`.
    """
    if target == LEVEL:
        return y
    return y - anchors(series, starts, y.shape[2], target, calendar)


def with_anchors(
    y_hat: np.ndarray, series: np.ndarray, starts: np.ndarray, target: Target, calendar: Calendar
) -> np.ndarray:
    """Add the anchors to forecasts `(cells, windows, horizon)`, or quantiles with a last axis."""
    if target == LEVEL:
        return y_hat
    added = anchors(series, starts, y_hat.shape[2], target, calendar)
    return y_hat + (added if y_hat.ndim == 3 else added[..., None])


def repeat_season(
    series: np.ndarray,
    starts: np.ndarray,
    horizon: int,
    season: int,
    calendar: Calendar,
) -> np.ndarray:
    """Repeat the latest observed value a whole number of seasons before each target.

    >>> from stforecast.data.clock import Calendar
    >>> hours = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
    >>> day = np.array([[1.0], [2.0], [np.nan], [4.0]])
    >>> repeat_season(day, np.array([4]), horizon=3, season=2, calendar=hours).ravel().tolist()
    [1.0, 4.0, 1.0]

    Args:
        series: `(steps, cells)`, NaN where missing; read before each start only.
        starts: `(windows,)` first target steps; may be the step just after the series.
        horizon: number of target steps.
        season: steps of a season.
        calendar: wall clock on which seasons of several steps, such as days, are counted. Where
            the clock changes, the latest season whose value is known at the window's start may be
            another one than by steps.

    Returns:
        `(cells, windows, horizon)` float32, 0.0 where nothing was observed before.
    """
    own = np.arange(len(series))
    ahead, first = np.arange(horizon), np.asarray(starts)[:, None]
    seasons = ahead // season + 1
    steps = first + ahead - season * seasons
    if season > 1:
        own = own + calendar.shifts(own)
        steps = calendar.before(first + ahead, season * (seasons + 1))
        for fewer in (seasons, seasons - 1):
            later = calendar.before(first + ahead, season * fewer)
            steps = np.where(later < first, later, steps)
    latest = pd.DataFrame(series).groupby(own % season).ffill().fillna(0.0).to_numpy(np.float32)
    values = np.take(np.ascontiguousarray(latest.T), steps.clip(0), axis=1)
    values[:, steps < 0] = 0.0
    return values
