"""How a method forecasts two small invented series, to see whether a change of code changed it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from stforecast.forecasting import DEFAULT_METHOD

SHORT, LONG = 6, 42
"""Days of the invented series."""

TOLERANCE = 2e-4
"""Relative change of a probe that processors do not explain."""


def days_like(train: Mapping[str, str] | None) -> int:
    """Return the days of the series that is like a training part: long from two weeks on.

    >>> days_like({"first": "2013-11-01 00:00:00", "last": "2013-11-20 23:00:00"})
    42
    """
    if not train:
        return SHORT
    span = pd.Timestamp(train["last"]) - pd.Timestamp(train["first"])
    return LONG if span >= pd.Timedelta("13D") else SHORT


@cache
def probe(method: str, days: int) -> float:
    """Return the RMSE of a method with default settings on an invented series of so many days.

    Other methods than the default have three rounds, which show a change as well as many. The
    default has no dropout, whose masks the compiled kernels draw in their own way.
    """
    from stforecast.forecasting.config import SETTINGS  # imports torch
    from stforecast.forecasting.forecaster import Forecaster

    few = {"dropout": 0.0} if method == DEFAULT_METHOD else {"rounds": 3}
    asked = {"horizon": 24 if days == LONG else 1, "workers": 1, **few}
    logging.disable()
    try:
        forecaster = Forecaster(method, **SETTINGS.read_by(method, asked)).fit(_series(days))
    finally:
        logging.disable(logging.NOTSET)
    found = forecaster.test_forecasts()
    return float(np.sqrt(np.square(found["y_hat"] - found["y"]).mean()))


def _series(days: int) -> pd.DataFrame:
    """Return three cells with a daily and a weekly rhythm, and noise."""
    hours = np.arange(24 * days)[:, None]
    daily = np.sin(2 * np.pi * hours / 24) * np.array([3.0, 4.5, 6.0])
    noise = np.random.default_rng(0).normal(0, 0.5, (len(hours), 3))
    values = 10 + daily + np.sin(2 * np.pi * hours / 168) + noise
    times = pd.date_range("2024-01-01", periods=len(hours), freq="h")
    return pd.DataFrame(values, times, ["a", "b", "c"])
