"""Methods whose forecasts are mixed with others, see `stforecast.forecasting.mixed_forecasts`."""

from __future__ import annotations

EXPERTS = "experts"
"""View of a method with two experts: the forecast of one, then that of the other."""


WEEK = "week"
"""Name of the clients' mean week in what the server sends: z-scores at each hour from Monday on,
`(168,)`, which new cells need."""

EXPECTED = "expected"
"""Name of what a new cell expects of these hours, in its memory."""


class MixesForecasts:
    """Mix-in of methods whose forecasts are mixed with others, for each cell by known errors."""

    @property
    def has_experts(self) -> bool:
        """Whether the view `EXPERTS` has two forecasts, which are mixed with each other."""
        return False

    @property
    def mixes_pretrained(self) -> bool:
        """Whether forecasts are mixed with those of the pretrained network."""
        return False
