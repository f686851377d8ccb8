"""Seasonal naive with a season of a week."""

from __future__ import annotations

from stforecast.baselines.seasonal import SeasonalNaive
from stforecast.data.clock import Calendar
from stforecast.data.durations import WEEK


class SeasonalWeek(SeasonalNaive):
    """The value at the same weekday and time of the latest observed week as the forecast."""

    name = "seasonal_week"
    summary = "the value one week before"

    def _season(self, calendar: Calendar) -> int:
        return calendar.steps_in(WEEK)
