"""Last value: what was observed last goes on."""

from __future__ import annotations

from stforecast.baselines.seasonal import SeasonalNaive
from stforecast.data.windows import Calendar


class LastValue(SeasonalNaive):
    """Every target gets the last observed value."""

    name = "last_value"
    summary = "the last observed value"

    def _season(self, calendar: Calendar) -> int:
        return 1
