"""Forecasters without models: whole seasons ago, the last value, and the historical average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from stforecast.baselines.base import Arrays, Baseline
from stforecast.data.anchors import repeat_season
from stforecast.data.clock import Calendar, day_slots
from stforecast.data.dates import DAY, WEEK


class SeasonalNaive(Baseline):
    """The latest observed value a whole number of seasons before the target."""

    reads_windows = False
    season: ClassVar[pd.Timedelta | None] = None
    """Length of a season; None for a step."""

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        season = 1 if self.season is None else calendar.steps_in(self.season)
        if starts.min() < season:
            raise InputError(
                f"{self.name}: needs {season} steps of history, step {starts.min()} has fewer; "
                "forecast later steps or choose another baseline"
            )
        return repeat_season(series, starts, self.spec.horizon, season, calendar)


class LastValue(SeasonalNaive):
    """The last observed value as the forecast of every target."""

    name = "last_value"
    summary = "the last observed value"


class SeasonalDay(SeasonalNaive):
    """The value at the same time of the latest observed day as the forecast."""

    name = "seasonal_day"
    summary = "the value one day before"
    season = DAY


class SeasonalWeek(SeasonalNaive):
    """The value at the same weekday and time of the latest observed week as the forecast."""

    name = "seasonal_week"
    summary = "the value one week before"
    season = WEEK


class HistoricalAverage(Baseline):
    """Mean of the training part at the same weekday and time of day.

    For a weekday without observations, the mean at that time of day over all days.
    """

    name = "historical_average"
    summary = "the training mean of the weekday and time of day"
    learned = ("mean",)
    of_cells: ClassVar[Mapping[str, int]] = {"mean": 1}
    reads_windows = False

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        past = pd.DataFrame(series[: starts.max() + self.spec.horizon])
        slots = self._week_slots(np.arange(len(past)), calendar)
        per_day = calendar.steps_in(DAY)
        by_week = past.groupby(slots).mean().reindex(range(7 * per_day)).to_numpy()
        by_day = past.groupby(slots % per_day).mean().reindex(range(per_day)).to_numpy()
        mean = np.where(np.isnan(by_week), np.tile(by_day, (7, 1)), by_week)
        return {"mean": np.nan_to_num(mean, nan=0.0)}

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        mean = self.arrays["mean"]
        self._check_cells(series, mean.shape[1])
        targets = starts[:, None] + np.arange(self.spec.horizon)
        slots = self._week_slots(targets.ravel(), calendar).reshape(targets.shape)
        return np.moveaxis(mean[slots], -1, 0)

    def _week_slots(self, steps: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the steps since Monday's midnight, `(n,)`."""
        return day_slots(calendar.local_times(steps), calendar.steps_in(WEEK), calendar.step)
