"""What a new cell's readings would have been in the week before its first one.

Windows of a cell that has just gone on air would read little. So each is forecast twice, once with
the week before the first reading filled, and the forecasts are averaged. The fill is the mean week
of all cells, which clients sent with their other sums, on the line through the cell's own readings,
and their mean distance to that line at each hour of the day: a day of readings tells most of the
cell's own day, others tell how weekends differ. Only windows read it; it is never a target.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, WEEK

SLOPE_PRIOR = 0.5
"""Days of readings that a slope of 1 counts as."""

HOUR_PRIOR = 1.0
"""Days without a distance to the line that the distance at an hour is drawn to."""


def filled_weight(horizon: int, step: pd.Timedelta) -> float:
    """Return the weight of the forecast from filled windows: it grows from a third up to a day.

    >>> [round(filled_weight(horizon, pd.Timedelta("1h")), 2) for horizon in (1, 12, 24, 48)]
    [0.35, 0.5, 0.67, 0.67]
    """
    return (1 + min(1.0, horizon * step / DAY)) / 3


def expected_week(z: np.ndarray, calendar: Calendar, week: np.ndarray) -> np.ndarray:
    """Return what is expected of cells at each hour of a week, from Monday midnight on.

    Args:
        z: `(steps, cells)` all readings so far, z-scored, NaN where missing.
        calendar: their calendar.
        week: `(168,)` mean week of other cells, z-scored.

    Returns:
        `(cells, 168)`; 0.0 where a cell has no reading.
    """
    seen, hours, day = ~np.isnan(z), _hours(calendar, len(z)), calendar.steps_in(DAY)
    readings, others = np.where(seen, z, 0.0), seen * week[hours, None]
    n = seen.sum(axis=0).clip(1)
    level, usual = readings.sum(axis=0) / n, others.sum(axis=0) / n
    change, own = seen * (others - usual), seen * (readings - level)
    prior = SLOPE_PRIOR * day * week.var() + 1e-9
    slope = ((change * own).sum(axis=0) + prior).clip(0.0) / ((change**2).sum(axis=0) + prior)
    parts = (pd.DataFrame(part).groupby(hours % 24).sum() for part in (own - slope * change, seen))
    rest, count = (part.reindex(range(24), fill_value=0).to_numpy() for part in parts)
    of_day = (rest / (count + HOUR_PRIOR * max(day / 24, 1))).T
    expected = level[:, None] + slope[:, None] * (week - usual[:, None]) + np.tile(of_day, 7)
    return np.where(seen.any(axis=0)[:, None], expected, 0.0)


def fill_before(z: np.ndarray, calendar: Calendar, expected: np.ndarray) -> tuple[np.ndarray, ...]:
    """Fill the week before the first reading of cells of which anything is expected.

    Args:
        z: `(steps, cells)`, z-scored, NaN where missing.
        calendar: its calendar.
        expected: `(cells, 168)` what `expected_week` returned; 0.0 for other cells.

    Returns:
        `(steps, cells)`, and `(cells,)` the steps from which windows read no fill; 0 without any.
    """
    seen, week, steps = ~np.isnan(z), calendar.steps_in(WEEK), np.arange(len(z))
    first = np.where(seen.any(axis=0), seen.argmax(axis=0), len(z))
    gap = (steps[:, None] < first) & (steps[:, None] >= first - week) & expected.any(axis=1)
    filled = np.where(gap, expected.T[_hours(calendar, len(z))], z)
    return filled.astype(z.dtype), np.where(gap.any(axis=0), first + week, 0)


def _hours(calendar: Calendar, n_steps: int) -> np.ndarray:
    """Return the hour of the week of each step."""
    times = calendar.local_times(np.arange(n_steps))
    return np.asarray(24 * times.day_of_week + times.hour)
