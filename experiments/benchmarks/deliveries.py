"""Days delivered as a service gets them, right and disturbed, and readings with planted faults."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.cube import step_of
from experiments.benchmarks.frame import Results, benchmark, hourly_table
from stforecast.bench.tables import markdown
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

RULES = MonitorOptions()

Counts = dict[tuple[str, str], np.ndarray]
"""How many were judged and found, by question and kind."""

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
        since: first day; by default the first of the data.
        until: last day; by default the last of the data.
        cells: cells to take, the first; 0 for all.
    """
    logging.getLogger("stforecast").setLevel(logging.ERROR)
    logging.getLogger("data_prep").setLevel(logging.ERROR)
    is_cube = data[0].suffix == ".nc"
    cube = open_cube(data[0]) if is_cube else open_cube(hourly_table(data[0]), allow_gaps=True)
    cube = cube.sel(time=slice(since or None, until or None)).isel(cell=slice(cells or None))
    cube = _known(cube[[service or next(iter(cube.data_vars))]].load())
    issued = _forecasts(cube, method, train_days)
    rng = np.random.default_rng(0)
    places = range(FIRST, issued.sizes["time"])
    often = max(len(places) // disturbed, 1)
    counts: Counts = defaultdict(lambda: np.zeros(2, dtype=int))
    for i in places:
        state, day = _state(cube, issued, i)
        if np.isfinite(day[state.service]).mean() < 0.3:
            continue
        ways = _disturbed(day, state.service, rng) if i % often == 0 else iter([(GOOD, day)])
        for kind, records in ways:
            doubt = doubt_of_values(
                state, records, name, issued.isel(time=slice(i + 1)), issued.isel(time=slice(FIRST))
            )
            counts["held back", kind] += (1, doubt is not None)
    _plant(cube, issued, places, rng, counts)
    of = {"data": name, "settings": results.settings(data[0], "name")}
    results.add(*({**of, "what": what, "kind": kind, "n": n, "found": found}
                  for (what, kind), (n, found) in counts.items()))  # fmt: skip
    return deliveries_table(pd.DataFrame(results.rows))


def _known(cube: xr.Dataset) -> xr.Dataset:
    """Return a cube without cells with many missing values."""
    (service,) = cube.data_vars
    values = cube[service].transpose("time", "cell")
    never = values.isnull().all("cell")  # Such as nights without a metro.
    return cube.isel(cell=np.flatnonzero(values[~never].isnull().mean("time").to_numpy() < 0.05))


def _forecasts(cube: xr.Dataset, method: str, train_days: int) -> xr.Dataset:
    """Return the forecasts of each day after the training days, made at its midnight."""
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


def _plant(
    cube: xr.Dataset, issued: xr.Dataset, places: range, rng: np.random.Generator, counts: Counts
) -> None:
    """Count what is found in readings as they are, and of planted faults."""
    day, before = issued.sizes["horizon"], issued.isel(time=slice(FIRST))
    for i in places[:: max(len(places) // 60, 1)]:
        state, today = _state(cube, issued, i)
        past = readings_of(state.history, issued).iloc[-SPAN * day :]
        plain = pd.concat([past, readings_of(today, issued)])
        made = issued.isel(time=slice(max(i - SPAN, 0), i + 1))
        rarity, named = _found(before, made, plain)
        counts[LISTED, GOOD] += (np.isfinite(rarity).sum(), (rarity >= RULES.anomaly_in).sum())
        counts[BROKEN, GOOD] += (len(named), named.sum())
        spoilt, who = plain.copy(), rng.permutation(plain.shape[1])[: len(FAULTS)]
        for fault, cell in zip(FAULTS, who, strict=False):
            spoilt.iloc[-day:, cell] = _spoilt(plain.iloc[-day:, cell].to_numpy(), fault, rng)
        rarity, named = _found(before, made, spoilt)
        changed = (spoilt != plain).to_numpy()[-day:]
        for fault, cell in zip(FAULTS, who, strict=False):
            rare = rarity[changed[:, cell], cell] >= RULES.anomaly_in
            counts[LISTED, fault] += (1, rare.any())
            counts[BROKEN, fault] += (1, named[cell])


def _found(
    before: xr.Dataset, made: xr.Dataset, readings: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return how rare the readings of the last day are, and which cells are named."""
    day, rules = made.sizes["horizon"], (RULES.stuck_hours, RULES.anomaly_in)
    rare = rarity_of(before, made, readings, readings)
    states = find_states(readings.to_numpy(), rare.expected, rare.surely, day, *rules).state
    return rare.listed[-day:], states != ""


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


def deliveries_table(rows: pd.DataFrame) -> str:
    """Tabulate what was found of each kind in all data."""
    sums = rows.groupby(["kind", "what"], sort=False)[["found", "n"]].sum()
    found: dict[str, dict[str, str]] = {}
    for (kind, what), (n_found, n) in zip(sums.index, sums.to_numpy(), strict=True):
        found.setdefault(kind, {"delivery": kind})[what] = f"{n_found:,} of {n:,}"
    return markdown(list(found.values()))
