"""Steps ahead in tables and figures."""

from __future__ import annotations

import math

from stforecast.results import ForecastRun


def shown_steps(horizon: int) -> list[int]:
    """Return the steps ahead in a table: 3, 6 and 12 of 12.

    >>> shown_steps(12), shown_steps(24), shown_steps(2)
    ([3, 6, 12], [6, 12, 24], [1, 2])
    """
    return sorted({math.ceil(horizon / 4), math.ceil(horizon / 2), horizon})


def time_ahead(step: int, run: ForecastRun) -> str:
    """Format a step ahead, in minutes or hours if the run gives the length of a step.

    An hour of shorter steps is "60 min", as in the tables of METR-LA.
    """
    length = run.about.get("step_minutes", math.nan)
    minutes = step * length
    if math.isnan(minutes):
        return f"step {step}"
    in_minutes = minutes % 60 or (minutes <= 60 and length < 60)
    return f"{minutes:g} min" if in_minutes else f"{minutes / 60:g} h"


def horizon_ahead(run: ForecastRun) -> str:
    """Format all steps of a run, such as "1 h ahead" or "up to 24 h ahead"; empty if unknown."""
    horizon = run.settings.get("horizon")
    if horizon is None:
        return ""
    return f"{'up to ' if int(horizon) > 1 else ''}{time_ahead(int(horizon), run)} ahead"
