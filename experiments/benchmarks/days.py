"""Measure forecasts around changes of the clock."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, counted
from experiments.benchmarks import frame
from experiments.benchmarks.cells import HOUR, test_error
from stforecast.forecasting.forecaster import Forecaster

CLOCK_METHODS = ("seasonal_day", "ridge", "fedlean")

BEFORE, AFTER, HORIZON = 77, 7, 24
"""Days before and after a change, and hours ahead."""

CLOCK_SPLIT = "time:0.84,0.08,0.08"
"""Parts of these days: the last begins some hours after the change."""

MISSING = 0.05
"""A counter with a larger missing share is left out."""


@frame.benchmark("daylight.csv")
def daylight(
    results: frame.Results, *data: Path, zone: str = "Pacific/Auckland", since: int = 2024
) -> str:
    """Measure errors in the week that begins with a change of the clock.

    Each method is fitted to the eleven weeks before, and forecasts a day of hours. It reads the
    times in their zone, and then the same instants in a zone whose clock is never changed.
    Counters with many gaps are left out. `python -m experiments.docs` makes the table of
    docs/data.md from docs/results/daylight.csv.

    Args:
        results: gets a row for each fit.
        *data: a wide table of hours on the wall clock. Of an hour that the clock shows twice, it
            has the first; those that the clock skips are left out.
        zone: its time zone.
        since: first year whose changes are measured.

    Raises:
        InputError: if the clock of the zone is not changed in the times of the table.
    """
    wall = frame.hourly_table(data[0]).loc[str(since) :]
    first_shown = np.ones(len(wall), dtype=bool)
    times = pd.DatetimeIndex(wall.index).tz_localize(zone, first_shown, "NaT")
    values = wall.set_axis(times)[times.notna()].asfreq("h")
    times = pd.DatetimeIndex(values.index)
    offset = pd.Series([time.utcoffset() for time in times], times)
    for day in times[offset.ne(offset.shift().bfill())].normalize():
        first, end = (day + pd.DateOffset(days=n) for n in (-BEFORE, AFTER))
        if first < times[0] or end > times[-1]:
            continue
        part = values.loc[first : end - HOUR]
        part = part.loc[:, part.isna().mean() < MISSING]
        fixed = f"Etc/GMT{-(offset[day - HOUR] // HOUR):+d}"
        for method in CLOCK_METHODS:
            for clock, name in {"wall": zone, "unchanged": fixed}.items():
                forecaster = Forecaster(method, horizon=HORIZON, split=CLOCK_SPLIT)
                fitted = forecaster.fit(part.tz_convert(name))
                about = {"change": f"{day:%Y-%m-%d}", "cells": part.shape[1], "method": method}
                results.add({**about, "clock": clock, "mae": test_error(fitted, "raw_mae")})
    if not results.rows:
        raise InputError(f"{data[0]}: no change of the clock of {zone} with 12 weeks around it")
    return daylight_table(pd.DataFrame(results.rows))


def daylight_table(rows: pd.DataFrame) -> str:
    """Tabulate by how many per cent the error is higher on a clock that is never changed."""
    found = []
    for method, own in rows.groupby("method", sort=False):
        errors = own.pivot(index="change", columns="clock", values="mae")
        logs = [math.log(ratio) for ratio in errors["unchanged"] / errors["wall"]]
        found.append({"method": method, "above": str(frame.per_cent_above(logs)), **errors.mean()})
    heads = {"method": ("method", ""), "wall": ("MAE, wall clock", ".1f")}
    heads |= {"unchanged": ("MAE, unchanged clock", ".1f"), "above": ("higher by, % [95 %]", "")}
    changes = counted(rows["change"].nunique(), "change")
    return f"{frame.table(found, heads)}\n\nMeans over {changes}."
