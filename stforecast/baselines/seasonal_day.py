"""Seasonal naive with a season of a day."""

from __future__ import annotations

from stforecast.baselines.seasonal import SeasonalNaive
from stforecast.data.clock import Calendar
from stforecast.data.durations import DAY


class SeasonalDay(SeasonalNaive):
    """The value at the same time of the latest observed day as the forecast."""

    name = "seasonal_day"
    summary = "the value one day before"

    def _season(self, calendar: Calendar) -> int:
        return calendar.steps_in(DAY)
