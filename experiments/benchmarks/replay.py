"""Replay days of records through `stforecast update`, without a person."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from data_prep.base.errors import InputError
from data_prep.sets.table import prepare
from experiments.benchmarks.frame import (
    Results,
    benchmark,
    hourly_table,
    per_cent_above,
    table,
    timed,
)
from stforecast.bench.curves import HUES
from stforecast.data.cubes import open_cube as open_data
from stforecast.forecasting import runs
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.quick import make_plan
from stforecast.forecasting.tables import Interval
from stforecast.service.folder import last_state, read_state
from stforecast.service.settings import FILE
from stforecast.service.update import ANEW, CALIBRATED, FURTHER, KEPT, WENT_ON, update

HORIZON = 24

RULE, DAILY = "update", "retrained every day"

RULES = {
    RULE: "",
    "bounds alone": "further_days = 0\nanew_days = 0\nerror_tolerance = 1e9\n",
    "never": "further_days = 0\nanew_days = 0\nerror_tolerance = 1e9\ncoverage_tolerance = 1\n",
}
"""Settings under `[update]` of each way to replay the commands."""

TRAINED = {DAILY: 1, "retrained every 7 days": 7}
"""Days after which each further way trains from the beginning."""

MISSING = 0.05
"""A column with a larger missing share is left out."""


@benchmark("replay.csv", goes_on=True)
def replay(
    results: Results,
    *data: Path,
    since: str = "",
    train_days: int = 35,
    days: int = 60,
    cells: int = 0,
    zone: str = "Europe/Rome",
    name: str = "milan",
    method: str = "fedlean",
    ways: str = ",".join((*RULES, DAILY)),
    minutes: float = 0,
) -> str:
    """Replay a table of hours day by day, and compare with never training and training every day.

    A run is made of the first days, with the settings of `stforecast forecast`. Then each further
    day is a table of its own that `update` gets, as in service. The results get a row for each way
    and day: what it did, and the errors of the forecast that it made of the next day. The next call
    goes on after the last day.

    Args:
        results: gets the rows.
        *data: a wide table of hours on the wall clock.
        since: first day; by default the first of the table.
        train_days: days of the run that the service begins with.
        days: days to replay, at most.
        cells: columns to take, the first; 0 for all.
        zone: time zone of the table.
        name: name of the data in the results.
        method: method of the run.
        ways: what to replay: these, or `retrained every 7 days`.
        minutes: time after which no further day is begun; 0 for no such time.
    """
    wide = hourly_table(data[0]).loc[since or None :]
    wide = wide.iloc[: 24 * (train_days + days)]
    wide = wide.loc[:, wide.isna().mean() < MISSING].iloc[:, : cells or None]
    logging.getLogger("stforecast").setLevel(logging.ERROR)
    last = time.monotonic() + 60 * minutes if minutes else math.inf
    assert results.path is not None
    of = {"data": name, "settings": results.settings(data[0], "name", "ways", "minutes")}
    for way in ways.split(","):
        done = sum(row["data"] == name and row["way"] == way for row in results.rows)
        begins = range(24 * (train_days + done), len(wide) - 23, 24)
        if way in TRAINED:
            replayed = partial(_trained, every=24 * TRAINED[way])
        else:
            folder = results.path.parent / f"{name}, {way}"
            replayed = partial(_in_service, folder=folder, way=way)
        for row in replayed(wide, 24 * train_days, begins, zone, method):
            results.add({**of, "way": way, **row})
            if time.monotonic() > last:
                return replay_table(pd.DataFrame(results.rows))
    if not results.rows:
        raise InputError(f"{data[0]}: no day to replay after {train_days} days")
    return replay_table(pd.DataFrame(results.rows))


def _in_service(
    wide: pd.DataFrame, n_steps: int, begins: range, zone: str, method: str, folder: Path, way: str
) -> Iterator[dict[str, object]]:
    """Replay the commands on the days that begin at these steps; yield a row for each."""
    run, new = folder / "run", folder / "day.csv"
    if begins.start == n_steps:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wide.iloc[:n_steps].to_csv(folder / "first.csv")
        cube = prepare(
            folder / "first.csv", folder / "first.nc", layout="wide", clock="local",
            time_zone=zone, allow_gaps=True,
        )  # fmt: skip
        with open_data(cube) as known:
            settings = _settings(known, method)
        runs.run(method, cube, run, settings)
        (run / FILE).write_text(f"[update]\n{RULES[way]}")
    state = last_state(run)
    if (n := len(read_state(state).log) if state else 0) * 24 != begins.start - n_steps:
        days = (begins.start - n_steps) // 24
        raise InputError(f"{run}: {n} updates, but {days} days in the results; delete both")
    for day in begins:
        wide.iloc[day : day + 24].to_csv(new)
        done = timed(update, run, new)
        of = done.value
        yield _row(wide, of.forecast, of.interval, of.action, done.cpu_seconds)


def _trained(
    wide: pd.DataFrame, n_steps: int, begins: range, zone: str, method: str, every: int
) -> Iterator[dict[str, object]]:
    """Train from the beginning every so many steps on the last `n_steps`; yield a row a day."""
    forecaster, until = Forecaster(method), -1
    for day in begins:
        known = _known(wide, day + 24, n_steps, zone)
        before, last = time.process_time(), day - (day - n_steps) % every
        if until != last:
            past = _known(wide, last + 24, n_steps, zone)
            forecaster, until = Forecaster(method, **_settings(past, method)).fit(past), last
        forecast, interval = forecaster.outlook(known)
        seconds = time.process_time() - before
        yield _row(wide, forecast, interval, ANEW if last == day else WENT_ON, seconds)


def _known(wide: pd.DataFrame, end: int, n_steps: int, zone: str) -> xr.Dataset:
    part = wide.iloc[end - n_steps : end]
    return open_data(part, clock="local", time_zone=zone, allow_gaps=True)


def _settings(known: xr.Dataset, method: str) -> dict[str, Any]:
    return dict(make_plan(known, HORIZON, None, method, {}).settings)


def _row(
    wide: pd.DataFrame,
    forecast: pd.DataFrame,
    interval: Interval | None,
    action: str,
    seconds: float,
) -> dict[str, object]:
    """Return the errors of the forecast of a day, but for cells with one reading all day."""
    local = pd.DatetimeIndex(forecast.index).tz_localize(None)
    wide = wide[[type(wide.columns[0])(c) for c in forecast.columns]]  # in order of names
    values = wide.reindex(local).to_numpy(float, copy=True)
    values[:, np.fmax.reduce(values) == np.fmin.reduce(values)] = np.nan  # These counters stand.
    error, inside, width = forecast.to_numpy() - values, np.nan, np.nan
    seen = np.isfinite(error)
    before = wide.reindex(local - pd.Timedelta(days=1)).to_numpy()
    row = {"day": f"{local[0]:%Y-%m-%d}", "action": action, "cpu_seconds": round(seconds, 2)}
    if not seen.any():
        return {**row, "n": 0}
    if interval is not None:
        lower, upper = (bound.to_numpy() for bound in interval)
        inside = float(((lower <= values) & (values <= upper))[seen].mean())
        width = float(np.nanmean(upper - lower))
    naive = float(np.nanmean(np.abs(before - values)))
    return {
        **row, "n": int(seen.sum()), "mae": float(np.abs(error[seen]).mean()), "naive": naive,
        "coverage": inside, "width": width,
    }  # fmt: skip


def replay_table(rows: pd.DataFrame) -> str:
    """Tabulate errors, coverage, its range over weeks, trainings and seconds of each way.

    The difference from the rule's errors has an interval of 95 % over whole weeks.
    """
    heads = {
        "data": ("data", ""), "way": ("way", ""), "days": ("days", ""), "mae": ("MAE", ".2f"),
        "above": ("above the rule's, %", ""), "below": ("below the day before, %", ".1f"),
        "coverage": ("coverage of 90 %", ".1f"), "weeks": ("by week", ""),
        "width": ("width", ".1f"), "calibrated": ("calibrated", ""), "trained": ("trained", ""),
        "won": ("won", ""), "cpu": ("CPU s a day", ".1f"),
    }  # fmt: skip
    return table(_summaries(rows), heads)


def _summaries(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the numbers of each way of each data set."""
    found = []
    for (data, way), own in rows.groupby(["data", "way"], sort=False):
        known, counts = own[own["n"] > 0], own["action"].value_counts()
        by_week = 100 * _by_week(known)["coverage"]
        span = f"{by_week.min():.1f} to {by_week.max():.1f}" if len(by_week) else "-"
        error, naive = known["mae"].mean(), known["naive"].mean()
        found.append({
            "data": data, "way": way, "days": len(known), "mae": error,
            "above": _above(known, rows.query("data == @data and way == @RULE and n > 0")),
            "below": 100 * (1 - error / naive), "coverage": 100 * known["coverage"].mean(),
            "weeks": span, "width": known["width"].mean(),
            "calibrated": int(counts.get(CALIBRATED, 0)),
            "trained": int(sum(counts.get(a, 0) for a in (FURTHER, ANEW, KEPT))),
            "won": int(sum(counts.get(a, 0) for a in (FURTHER, ANEW))),
            "cpu": own["cpu_seconds"].mean(),
        })  # fmt: skip
    return found


def _above(own: pd.DataFrame, rule: pd.DataFrame) -> str | None:
    """Return by how many per cent weekly errors are above the rule's; None for the rule itself."""
    weeks = [_by_week(known)["mae"].to_numpy() for known in (own, rule)]
    if len(weeks[0]) != len(weeks[1]) or len(weeks[0]) < 2 or own.index.equals(rule.index):
        return None
    return str(per_cent_above(np.log(weeks[0] / weeks[1]).tolist()))


def _by_week(known: pd.DataFrame) -> pd.DataFrame:
    """Return the means over each whole week of a way's scored days."""
    columns = ["mae", "naive", "coverage"]
    return known[columns].groupby(np.arange(len(known)) // 7).mean()[: len(known) // 7]


def draw_replay(rows: pd.DataFrame) -> Figure:
    """Draw error and coverage by week of each way, a column of panels for each data set."""
    data, colors = rows["data"].unique(), dict(zip(rows["way"].unique(), HUES, strict=False))
    figure = Figure((4.2 * len(data), 5.2), layout="constrained")
    panels = figure.subplots(2, len(data), sharex="col", squeeze=False)
    for (upper, lower), name in zip(panels.T, data, strict=True):
        of_data = rows[(rows["data"] == name) & (rows["n"] > 0)]
        for way, known in of_data.groupby("way", sort=False):
            weeks, color = _by_week(known), colors[way]
            x = np.arange(1, len(weeks) + 1)
            upper.plot(x, weeks["mae"] / weeks["naive"], ".-", color=color)
            lower.plot(x, 100 * weeks["coverage"], ".-", color=color)
        upper.axhline(1, color="grey", lw=0.8, ls=":")
        lower.axhline(90, color="grey", lw=0.8, ls=":")
        upper.set_title(name, fontsize="medium")
        lower.set_xlabel("week of the replay")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0, 0].set_ylabel("MAE by that of the day before")
    panels[1, 0].set_ylabel("coverage of 90 % bounds, %")
    handles = [Line2D([], [], marker=".", color=color, label=way) for way, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(colors), frameon=False)
    return figure
