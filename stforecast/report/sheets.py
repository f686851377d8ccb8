"""Sheets of a page: what is known of the data, and how the runs were made."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.text import counted, some
from data_prep.cube import local_time, observed, step_of
from stforecast.bench.run_groups import R, RunGroup
from stforecast.comparison.hours import clock_of
from stforecast.comparison.rows import folds_of
from stforecast.federated.runs.run_folder import Run
from stforecast.forecasting.results import ForecastRun, data_of
from stforecast.report.tables import Table, number, share

AT_ONCE = 20_000_000
"""Values to read at once."""

MOST_VALUES = 200_000_000
"""Values of a cube up to which all its services are searched for gaps, not the run's alone."""

ABOUT_GAPS = (
    "missing: share of steps × cells without a value. blank cells: cells without any value, or "
    "with nothing but zeros."
)

EMPTY_IS_ZERO = "Telecom Italia leaves a field empty where nothing was recorded; it is read as 0."

N_NAMES = 8
"""Number of cells to name."""


@dataclass(frozen=True)
class DataSheet:
    """What is known of the data: facts, gaps of each service if the data are there, checksums."""

    facts: dict[str, str]
    services: Table | None
    checksums: dict[str, str]


def data_sheet(run: ForecastRun, cube: xr.Dataset | None) -> DataSheet:
    """Describe the data of a run; they are None if they are not there any more."""
    path = data_of(run.about)
    if cube is None:
        gone = f"{path}: no longer exist, so their gaps and sources are unknown"
        units = _units(str(run.about.get("units", "1")))
        return DataSheet({"data": gone, "service": run.about["service"], "units": units}, None, {})
    checksums = json.loads(str(cube.attrs.get("source_checksums", "{}")))
    names = [str(n) for n, v in cube.data_vars.items() if set(v.dims) == {"time", "cell"}]
    counted_all = sum(cube[name].size for name in names) <= MOST_VALUES
    own = run.about["service"]
    rows = [_service_row(cube, name) for name in names if counted_all or name == own]
    of_italia = "Telecom Italia" in f"{cube.attrs.get('title')} {cube.attrs.get('source')}"
    notes = [ABOUT_GAPS, EMPTY_IS_ZERO] if of_italia else [ABOUT_GAPS]
    table = Table("Missing values and zeros", rows, notes)
    return DataSheet(_facts(run, path, cube), table, checksums)


def _facts(run: ForecastRun, path: Path, cube: xr.Dataset) -> dict[str, str]:
    times, step = local_time(cube), step_of(cube)
    zone, clock = str(cube.attrs.get("time_zone", "UTC")), str(cube.attrs.get("clock", "utc"))
    kept = "UTC" if clock == "utc" else "the local wall clock, never adjusted"
    service = cube[run.about["service"]]
    long_name = str(service.attrs.get("long_name", run.about["service"]))
    n_forecast = int(run.about.get("clients", cube.sizes["cell"]))
    zero = "missing" if service.attrs.get("zero_is_missing", 0) else "a value"
    return {
        "data": str(path),
        "title": str(cube.attrs.get("title", "-")),
        "source": str(cube.attrs.get("source", "-")),
        "licence": str(cube.attrs.get("license", "-")),
        "service": f"{run.about['service']} ({long_name})",
        "units": _units(str(service.attrs.get("units", "1"))),
        "a zero is": zero,
        "cells": f"{cube.sizes['cell']:,}, of which {n_forecast:,} were forecast",
        "steps": f"{cube.sizes['time']:,} of {_length(step)}",
        "extent": f"{times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M}, {clock_of(zone)}",
        "time zone": f"{zone}; the file stores {kept}",
    }


def _units(units: str) -> str:
    return "none" if units == "1" else units


def _length(step: pd.Timedelta) -> str:
    minutes = step / pd.Timedelta(minutes=1)
    return f"{minutes:g} min" if minutes < 60 or minutes % 60 else f"{minutes / 60:g} h"


def _service_row(cube: xr.Dataset, name: str) -> dict[str, str]:
    """Return one row of the table of services."""
    n_cells, n_values = cube.sizes["cell"], cube[name].size
    n_missing = n_zeros = 0
    recorded, above_zero = (np.zeros(n_cells, dtype=bool) for _ in range(2))
    without: list[bool] = []
    for values in _chunks(cube, name):
        missing = np.isnan(values)
        n_missing += int(missing.sum())
        n_zeros += int((values == 0).sum())
        recorded |= ~missing.all(axis=0)
        above_zero |= (~missing & (values != 0)).any(axis=0)
        without += missing.all(axis=1).tolist()
    blank = cube["cell"].to_numpy()[~(recorded & above_zero)]
    named = "all" if len(blank) == n_cells else some(blank.tolist(), N_NAMES)
    longest = max((len(list(run)) for nothing, run in groupby(without) if nothing), default=0)
    return {
        "service": name,
        "units": _units(str(cube[name].attrs.get("units", "1"))),
        "missing": share(n_missing / n_values),
        "zeros": share(n_zeros / n_values),
        "steps without any value": (
            f"{counted(sum(without), 'step')}, at most {longest} in a row" if longest else "0"
        ),
        "blank cells": named if len(blank) else "0",
    }


def _chunks(cube: xr.Dataset, name: str) -> Iterator[np.ndarray]:
    """Yield the observed values of some steps at once, `(steps, cells)`."""
    n_at_once = max(1, AT_ONCE // cube.sizes["cell"])
    for start in range(0, cube.sizes["time"], n_at_once):
        yield observed(cube.isel(time=slice(start, start + n_at_once)), name).to_numpy()


@dataclass(frozen=True)
class RunsSheet:
    """How runs were made: dates, settings, the command of each method, versions of packages."""

    dates: Table | None
    settings: Table
    commands: dict[str, str]
    versions: str


def forecasts_sheet(groups: Sequence[RunGroup[ForecastRun]]) -> RunsSheet:
    """Describe the forecast runs of one task."""
    return runs_sheet(groups, repeat_command, _dates(groups))


def runs_sheet(
    groups: Sequence[RunGroup[R]], repeat: Callable[[R], str], dates: Table | None = None
) -> RunsSheet:
    """Describe the runs of one task, and the commands by which `repeat` makes them again."""
    names = list(dict.fromkeys(name for group in groups for name in group.runs[0].settings))
    rows = []
    for name in names:
        values = {group.name: group.runs[0].settings.get(name) for group in groups}
        rows.append(
            {"setting": name}
            | {method: _shown(value) for method, value in values.items() if value is not None}
        )
    versions = {
        f"{package} {version}"
        for group in groups
        for run in group.runs
        for package, version in run.about.get("versions", {}).items()
    }
    return RunsSheet(
        dates,
        Table("All settings, as given", rows),
        {group.name: repeat(group.runs[0]) for group in groups},
        ", ".join(sorted(versions)),
    )


def _dates(groups: Sequence[RunGroup[ForecastRun]]) -> Table:
    rows = []
    for number_of_fold, run in folds_of(run for g in groups for run in g.runs).items():
        parts = run.about.get("parts") or {}
        fold = {"fold": str(number_of_fold)} if number_of_fold else {}
        rows += [
            {**fold, "part": part, "first target": span["first"], "last target": span["last"]}
            for part, span in parts.items()
            if span
        ]
    return Table("Dates, on the clock of the data", rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def repeat_command(run: ForecastRun) -> str:
    """Return the command that repeats a forecast run."""
    usual = _defaults(run.method, str(run.settings.get("model", "")))
    return command_of(run, usual, "--data", str(data_of(run.about)))


def command_of(run: Run, usual: Mapping[str, Any], *words_before: str) -> str:
    """Return the command of a run, with the settings that are not the usual ones."""
    words = [*run.command.split(), "--method", run.method, *words_before]
    for name, value in run.settings.items():
        if name == "method" or value is None or (name in usual and usual[name] == value):
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    words += ["--label", run.label] if run.label != run.method else []
    return shlex.join([*words, "--out", "FOLDER"])


def _defaults(method: str, model: str) -> dict[str, Any]:
    """Return the defaults of a method; none if it is not installed here."""
    from stforecast.forecasting.config import defaults, resolve  # imports torch

    try:
        usual = defaults(method)
        return {**resolve(method, model=model or usual["model"]).flat(), "model": usual["model"]}
    except InputError:
        return {}
