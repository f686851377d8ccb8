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
    """Format a step ahead, in minutes or hours if the run gives the length of a step."""
    minutes = step * run.about.get("step_minutes", math.nan)
    if math.isnan(minutes):
        return f"step {step}"
    return f"{minutes:g} min" if minutes <= 60 or minutes % 60 else f"{minutes / 60:g} h"
