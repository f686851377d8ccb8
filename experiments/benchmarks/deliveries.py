"""Days delivered as a service gets them, right and disturbed, and readings with planted faults."""

from __future__ import annotations

import logging
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import step_of
from experiments.benchmarks.frame import Results, benchmark, table
from stforecast.data.cubes import open_cube
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.quick import make_plan
from stforecast.service.cells import find_states
from stforecast.service.delivery import doubt_of_values
from stforecast.service.expected import SPAN, rarity_of, readings_of
from stforecast.service.folder import ServiceState, UpdateStanding
from stforecast.service.settings import MonitorOptions

FACTORS = (8, 1000, 1024, 1e6, 1 / 60, 1 / 8, 1 / 1000)

HOURS = (-8, -5, -2, -1, 1, 2, 5, 8)
"""Hours by which a day is moved."""

GOOD, LISTED, BROKEN = "as it is", "listed as anomalies", "named broken"

FIRST = 7
"""Days of forecasts that must be known before a day is judged."""

FAULTS = ("three times as high", "0", "one value all day", "twice as high all day", "shuffled day")
"""Planted faults: of one reading at its busiest hour, or of a day."""


@benchmark("deliveries.csv", goes_on=True)
def deliveries(
    results: Results,
    *data: Path,
    service: str = "",
    name: str = "milan",
    method: str = "fedlean",
    train_days: int = 28,
    disturbed: int = 20,
    since: str = "",
    until: str = "",
    cells: int = 0,
) -> str:
    """Judge each day of a data set as a delivery, as it is and disturbed, and planted faults.

    A model is trained on the first days, and forecasts each further day at its midnight. The
    results get a row for each kind of disturbance: how many deliveries were judged, and how many
    were held back; and for each kind of planted fault, how many were listed as anomalies, and how
    many named. Each row has the file and the options, so that it can be measured again.

    Args:
        results: gets the rows.
        *data: a wide table, or a cube.
        service: variable to take; by default the first.
        name: name of the data in the results.
        method: method of the model.
        train_days: days to train on, without those that calibrate the bounds.
        disturbed: days that are also delivered disturbed, at most, evenly spread.
        since: first day; by default that of the data.
        until: last day; by default that of the data.
        cells: cells to take, the first; 0 for all.
    """
    logging.getLogger("stforecast").setLevel(logging.ERROR)
    logging.getLogger("data_prep").setLevel(logging.ERROR)
    given = (
        data[0] if data[0].suffix == ".nc" else pd.read_csv(data[0], index_col=0, parse_dates=True)
    )
    cube = open_cube(given) if isinstance(given, Path) else open_cube(given, allow_gaps=True)
    cube = cube.sel(time=slice(since or None, until or None)).isel(cell=slice(cells or None))
    cube = _known(cube[[service or next(iter(cube.data_vars))]].load())
    issued = _forecasts(cube, method, train_days)
    rng = np.random.default_rng(0)
    places = range(FIRST, issued.sizes["time"])
    often = max(len(places) // disturbed, 1)
    held: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    for i in places:
        state, day = _state(cube, issued, i)
        if np.isfinite(day[state.service]).mean() < 0.3:
            continue
        ways = _disturbed(day, state.service, rng) if i % often == 0 else iter([(GOOD, day)])
        for kind, records in ways:
            doubt = doubt_of_values(
                state, records, name, issued.isel(time=slice(i + 1)), issued.isel(time=slice(FIRST))
            )
            judged[kind] += 1
            held[kind] += doubt is not None
    about = {**results.about, "name": ""}
    options = [f"--{n.replace('_', '-')} {v}" for n, v in about.items() if v]
    of = {"data": name, "settings": " ".join([data[0].name, *options])}
    results.add(*({**of, "what": "held back", "kind": kind, "n": n, "found": held[kind]}
                  for kind, n in judged.items()))  # fmt: skip
    results.add(*({**of, **row} for row in _planted(cube, issued, places, rng)))
    return deliveries_text(pd.DataFrame(results.rows))


def _known(cube: xr.Dataset) -> xr.Dataset:
    """Return a cube without the cells of which much is missing."""
    (service,) = cube.data_vars
    values = cube[service].transpose("time", "cell")
    never = values.isnull().all("cell")  # Such as nights without a metro.
    return cube.isel(cell=np.flatnonzero(values[~never].isnull().mean("time").to_numpy() < 0.05))


def _forecasts(cube: xr.Dataset, method: str, train_days: int) -> xr.Dataset:
    """Return the forecasts of each day after those of training, made at its midnight."""
    day = round(pd.Timedelta(days=1) / step_of(cube))
    n_days, calibrate = cube.sizes["time"] // day, max(train_days // 5, 4)
    split = f"days:{train_days},{calibrate},{n_days - train_days - calibrate}"
    plan = make_plan(cube, day, None, method, {"split": split})
    forecaster = Forecaster(method, **plan.settings).fit(cube)
    found = forecaster.test_forecasts()
    names = [n for n in ("y_hat", "y", "lower", "upper", "seasonal_mae") if n in found]
    return found[names].isel(time=slice(None, None, day)).load()


def _state(cube: xr.Dataset, issued: xr.Dataset, i: int) -> tuple[ServiceState, xr.Dataset]:
    """Return a service before a day, and the day."""
    begin = int(cube.indexes["time"].searchsorted(issued.indexes["time"][i]))
    day = issued.sizes["horizon"]
    history = cube.isel(time=slice(max(begin - 2 * SPAN * day, 0), begin))
    standing = UpdateStanding(1.0, "", "")
    past = issued.isel(time=slice(max(i - SPAN, 0), i))
    return (
        ServiceState(history, past, standing, pd.DataFrame()),
        cube.isel(time=slice(begin, begin + day)),
    )


def _disturbed(
    day: xr.Dataset, service: str, rng: np.random.Generator
) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield a day as it is, and disturbed in each way."""

    def of(values: np.ndarray) -> xr.Dataset:
        return day.assign({service: (("time", "cell"), values, day[service].attrs)})

    values = day[service].transpose("time", "cell").to_numpy()
    known = np.where(np.isfinite(values), 0.0, np.nan)
    yield GOOD, day
    for factor in FACTORS:
        title = f"times {factor:g}" if factor > 1 else f"times 1/{1 / factor:g}"
        yield title, of(values * factor)
    for value in (-1, 0, 77):
        yield f"all {value}", of(known + value)
    for hours in HOURS:
        moved = day.assign_coords(time=day["time"] + np.timedelta64(hours, "h"))
        yield f"{hours:+d} h", moved
    yield "cells shuffled", of(values[:, rng.permutation(values.shape[1])])
    yield "cells moved by one", of(np.roll(values, 1, axis=1))
    order = np.argsort(np.nan_to_num(values).sum(axis=0))
    swapped = values.copy()
    swapped[:, order[[0, -1]]] = values[:, order[[-1, 0]]]
    yield "two cells swapped", of(swapped)


def _planted(
    cube: xr.Dataset, issued: xr.Dataset, places: range, rng: np.random.Generator
) -> Iterator[dict[str, object]]:
    """Yield rows on readings as they are, and on planted faults."""
    options, day = MonitorOptions(), issued.sizes["horizon"]
    listed: Counter[str] = Counter()
    named: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    n_readings = n_listed = n_cells = n_named = 0
    for i in places[:: max(len(places) // 60, 1)]:
        state, today = _state(cube, issued, i)
        past = readings_of(state.history, issued).iloc[-SPAN * day :]
        now = readings_of(today, issued)
        readings = pd.concat([past, now])
        made, before = (
            issued.isel(time=slice(max(i - SPAN, 0), i + 1)),
            issued.isel(time=slice(FIRST)),
        )
        right = rarity_of(before, made, readings, readings)
        n_readings += int(np.isfinite(right.listed[-day:]).sum())
        n_listed += int((right.listed[-day:] >= options.anomaly_in).sum())
        judge = (day, options.stuck_hours, options.anomaly_in)
        plain = readings.to_numpy()
        states = find_states(plain, right.expected, right.surely, *judge)
        n_cells, n_named = n_cells + plain.shape[1], n_named + int((states.state != "").sum())
        spoilt, who = plain.copy(), rng.permutation(plain.shape[1])[: len(FAULTS)]
        for fault, cell in zip(FAULTS, who, strict=False):
            spoilt[-day:, cell] = _spoilt(spoilt[-day:, cell], fault, rng)
        table_of = pd.DataFrame(spoilt, readings.index, readings.columns)
        odd = rarity_of(before, made, table_of, table_of)
        after = find_states(spoilt, odd.expected, odd.surely, *judge)
        for fault, cell in zip(FAULTS, who, strict=False):
            changed = spoilt[-day:, cell] != plain[-day:, cell]
            tried[fault] += 1
            listed[fault] += bool((odd.listed[-day:, cell][changed] >= options.anomaly_in).any())
            named[fault] += after.state[cell] != ""
    yield {"what": LISTED, "kind": GOOD, "n": n_readings, "found": n_listed}
    yield {"what": BROKEN, "kind": GOOD, "n": n_cells, "found": n_named}
    for fault, n in tried.items():
        yield {"what": LISTED, "kind": fault, "n": n, "found": listed[fault]}
        yield {"what": BROKEN, "kind": fault, "n": n, "found": named[fault]}


def _spoilt(values: np.ndarray, fault: str, rng: np.random.Generator) -> np.ndarray:
    """Return a cell's day with a fault."""
    found, at = values.copy(), int(np.argmax(np.nan_to_num(values)))
    if fault == FAULTS[0]:
        found[at] *= 3
    elif fault == FAULTS[1]:
        found[at] = 0
    elif fault == FAULTS[2]:
        found[:] = values[0] if np.isfinite(values[0]) else values[at]
    elif fault == FAULTS[3]:
        found *= 2
    else:
        found = rng.permutation(values)
    return found


def deliveries_text(rows: pd.DataFrame) -> str:
    """Say how many right deliveries were held back, and tabulate all kinds."""
    good = rows.query("what == 'held back' and kind == @GOOD")
    odd = rows.query("what == @LISTED and kind == @GOOD")
    cells = rows.query("what == @BROKEN and kind == @GOOD")
    said = (
        f"Of {good['n'].sum():,} right deliveries, {good['found'].sum()} were held back. Of "
        f"{odd['n'].sum():,} right readings, {odd['found'].sum():,} were listed as anomalies, "
        f"{1000 * odd['found'].sum() / odd['n'].sum():.2f} of 1,000; of {cells['n'].sum():,} cells "
        f"on right days, {cells['found'].sum()} were named."
    )
    return f"{textwrap.fill(said, 120)}\n\n{deliveries_table(rows)}"


def deliveries_table(rows: pd.DataFrame) -> str:
    """Tabulate what was found of each kind, in all data and in each."""
    heads = {"what": ("what", ""), "kind": ("kind", ""), "all": ("all", "")}
    heads |= {name: (name, "") for name in rows["data"].unique()}
    found = []
    for (what, kind), own in rows.groupby(["what", "kind"], sort=False):
        by_data = {row["data"]: _share(row["found"], row["n"]) for _, row in own.iterrows()}
        total = _share(int(own["found"].sum()), int(own["n"].sum()))
        found.append({"what": what, "kind": kind, "all": total, **by_data})
    order = {what: i for i, what in enumerate(("held back", LISTED, BROKEN))}
    return table(sorted(found, key=lambda row: order[row["what"]]), heads)


def _share(found: int, n: int) -> str:
    return f"{found:,} of {n:,}"
