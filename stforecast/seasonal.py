"""Seasonal naive: the yardstick of skill and of scaled errors.

The season is a day; where a step does not divide a day, it is one step, so that the forecast is the
last value.
"""

from __future__ import annotations

import numpy as np

from stforecast.data.anchors import repeat_season
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, divides_a_day
from stforecast.data.prepared import PreparedSeries
from stforecast.metrics.metric import Scale


def season_of(calendar: Calendar) -> int:
    """Return the steps of a season.

    >>> import pandas as pd
    >>> start = pd.Timestamp("2013-11-01")
    >>> season_of(Calendar(start, pd.Timedelta("10min"))), season_of(Calendar(start, 7 * DAY))
    (144, 1)
    """
    return int(DAY // calendar.step) if divides_a_day(calendar.step) else 1


def seasonal_forecast(data: PreparedSeries) -> np.ndarray | None:
    """Forecast the test part by the latest value at the same time of day.

    Returns:
        `(cells, windows, horizon)` float32 z-scores; None if the first window has less than a
        season of history.
    """
    season, starts = season_of(data.calendar), data.split.test
    if starts.min() < season:
        return None
    return repeat_season(data.z, starts, data.window.horizon, season, data.calendar)


def seasonal_scale(data: PreparedSeries) -> Scale:
    """Return the errors of seasonal naive, one season ahead, on the steps to fit a scaler on.

    Hyndman and Koehler: Another Look at Measures of Forecast Accuracy, International Journal of
    Forecasting 22, 2006, equation in section 3 (MASE); Makridakis et al.: The M5 Accuracy
    Competition, International Journal of Forecasting 38, 2022, section 4.1 (RMSSE). Both papers
    divide by the errors one step ahead of the last value; here a season takes the place of a step.

    Returns:
        Errors in the data's units; NaN for a cell without two observed values a season apart, and
        where they are all equal.
    """
    values, fit, season = data.series.values, data.split.fit, season_of(data.calendar)
    steps = np.arange(fit.start + season, fit.stop)
    before = data.calendar.before(steps, season) if season > 1 else steps - season
    differences = values[steps] - values[np.maximum(before, fit.start)]
    seen = np.isfinite(differences)
    counts = np.maximum(seen.sum(axis=0), 1)
    squares, sizes = (np.where(seen, d, 0.0) for d in (differences**2, np.abs(differences)))
    mae, mse = sizes.sum(axis=0) / counts, squares.sum(axis=0) / counts
    return Scale(np.where(mae > 0, mae, np.nan), np.where(mse > 0, np.sqrt(mse), np.nan))
