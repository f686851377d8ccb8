"""Calendar inputs of a window: time of day, weekday and holiday of its first target."""

from __future__ import annotations

import datetime
from collections.abc import Container

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError

CALENDAR_INPUTS = {"none": 0, "day": 4, "week": 6, "weekdays": 11}
"""Number of inputs of each kind of calendar."""


def calendar_inputs(local_times: pd.DatetimeIndex, kind: str) -> np.ndarray:
    """Encode time of day and weekday of each first target, `(windows, inputs)` float32.

    The kind `day` is sine and cosine of one and two cycles a day; `week` adds indicators of weekend
    and Sunday; `weekdays` adds an indicator of each weekday instead.
    """
    if kind == "none":
        return np.empty((len(local_times), 0), dtype=np.float32)
    angle = 2 * np.pi * ((local_times - local_times.normalize()) / pd.Timedelta(days=1)).to_numpy()
    columns = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    weekday = local_times.day_of_week
    if kind == "week":
        columns += [weekday >= 5, weekday == 6]
    elif kind == "weekdays":
        columns += [weekday == day for day in range(7)]
    return np.stack(columns, axis=-1).astype(np.float32)


def holiday_inputs(local_times: pd.DatetimeIndex, region: str) -> np.ndarray:
    """Return 1.0 for local times on a public holiday, else 0.0, `(windows, 1)` float32.

    >>> holiday_inputs(pd.DatetimeIndex(["2013-12-07", "2013-12-09"]), "IT-MI").ravel().tolist()
    [1.0, 0.0]
    """
    days = public_holidays(region)
    return np.array([[day in days] for day in local_times.date], dtype=np.float32).reshape(-1, 1)


def public_holidays(region: str) -> Container[datetime.date]:
    """Return the public holidays of a country or a part of it, from the library `holidays`.

    The region is the ISO 3166 code of the country, and of its part after a hyphen: IT, IT-MI
    (Milan), US-CA (California).
    """
    try:
        import holidays
    except ImportError as e:
        raise InputError(
            f"holidays is {region!r}, which needs a library; pip install 'stforecast[holidays]'"
        ) from e
    country, _, part = region.partition("-")
    try:
        return holidays.country_holidays(country, subdiv=part or None)
    except NotImplementedError as e:
        raise InputError(
            f"holidays is {region!r}: {e}; give an ISO 3166 code such as IT, IT-MI or US-CA"
        ) from e
