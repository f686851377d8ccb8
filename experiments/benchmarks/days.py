"""Measure forecasts around changes of the clock, and on public holidays."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Container
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import tabulate
from dateutil.easter import easter

from data_prep.base.errors import InputError, counted
from experiments.benchmarks import frame
from experiments.benchmarks.cells import HOUR, test_error
from stforecast.bench.statistics.estimate import Estimate, with_ends
from stforecast.comparison.leaderboard import resample
from stforecast.data.clock import public_holidays
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


@frame.benchmark("holidays.csv", goes_on=True)
def holidays(
    results: frame.Results,
    *data: Path,
    region: str = "IT-MI",
    span: str = ":",
    split: str = "dates:2013-12-11,2013-12-18",
    methods: str = "ridge,fedlean",
) -> str:
    """Compare forecasts of an hour and a day with and without public holidays, by kind of day.

    Args:
        results: gets a row for each table, method, horizon and kind of day.
        data: wide tables of hours, of one region.
        region: region of the holidays.
        span: first and last day of the tables, such as 2023-01-01:2025-12-31.
        split: training, validation and test parts.
        methods: methods of the forecasts.
    """
    kind_of = partial(day_kind, known=public_holidays(region))
    for path, method, horizon in itertools.product(data, methods.split(","), (1, 24)):
        wide, found = frame.hourly_table(path, span), {}
        for way, read in (("without", ""), ("with", region)):
            forecaster = Forecaster(method, split=split, horizon=horizon, holidays=read)
            found[way] = frame.squares_by_day(forecaster.fit(wide).test_forecasts(), kind_of)
        for kind, of_days in found["with"].items():
            errors = resample({way: of[kind] for way, of in found.items()}, "mse", None)
            row = {"region": region, "method": method, "horizon": horizon, "kind": kind}
            row |= {"days": of_days.total.shape[2], "mse": errors.error("without").value}
            above = errors.relative_difference("with", "without")
            results.add(row | with_ends({"above": above}))
    return holidays_table(pd.DataFrame(results.rows))


def holidays_table(rows: pd.DataFrame) -> str:
    """Tabulate by how many per cent errors are higher with holidays, by region and kind of day."""
    ends = rows[["above", "above_low", "above_high"]].to_numpy()
    rows = rows.assign(
        above=[str(Estimate(*values)) for values in ends],
        way=rows["method"] + ", " + rows["horizon"].map(lambda n: counted(n, "step")),
    )
    table = rows.pivot(index=["region", "kind", "days"], columns="way", values="above")
    return tabulate.tabulate(table.fillna("").reset_index().to_dict("list"), "keys", "github")


def day_kind(day: pd.Timestamp, known: Container[datetime.date]) -> str:
    """Return the kind of a day by the public holidays.

    >>> days = public_holidays("NZ-AUK")
    >>> [day_kind(pd.Timestamp(2025, 4, day), days) for day in (17, 18, 20, 22, 23)]
    ['before or after', 'Easter', 'long weekend, bridge', 'before or after', 'other']
    >>> [day_kind(pd.Timestamp(2024, *day), days) for day in ((12, 25), (12, 27), (2, 6))]
    ['Christmas, New Year', 'between these', 'other holiday']
    """
    near = [day + pd.Timedelta(days=n) for n in (-1, 0, 1)]
    free = [one in known or one.weekday() > 4 for one in near]
    if (day.month, day.day) >= (12, 24) or (day.month, day.day) <= (1, 2):
        return "Christmas, New Year" if day in known else "between these"
    if day in known:
        return (
            "Easter" if -2 <= (day - pd.Timestamp(easter(day.year))).days <= 1 else "other holiday"
        )
    if not (near[0] in known or near[2] in known):
        return "other"
    return "long weekend, bridge" if free[1] or (free[0] and free[2]) else "before or after"
