"""Last value: the last observation, repeated."""

from __future__ import annotations

from stforecast.baselines.seasonal import SeasonalNaive
from stforecast.data.clock import Calendar


class LastValue(SeasonalNaive):
    """The last observed value as the forecast of every target."""

    name = "last_value"
    summary = "the last observed value"

    def _season(self, calendar: Calendar) -> int:
        return 1
