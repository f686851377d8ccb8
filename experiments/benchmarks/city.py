"""Measure whole runs on cities of many cells: phase by phase, and from raw files to the report."""

from __future__ import annotations

import datetime
import importlib
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import psutil
import torch

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.city.activity import PER_HOUR, PRESETS, simulated_days
from data_prep.city.simulate import CITIES, block, zones
from data_prep.cube import make_cube, write_cube
from experiments.benchmarks import frame
from stforecast.bench.ray import cluster
from stforecast.bench.ray_actors import RayActors
from stforecast.comparison.results import summary
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.forecasting import runs

START, OTHERS = datetime.date(2013, 11, 1), "others"

PHASES: dict[str, Sequence[str]] = {
    "open": ("forecaster.as_series", "forecaster.prepare_series"),
    "windows": ("trained_method.client_samples",),
    "training": ("forecaster.fit",),
    "rounds": ("trained_method.Federation.run_round",),
    "corrections": ("trained_method.Trainer.ready",),
    "validation": ("trained_method.Trainer.score",),
    "forecasts": ("evaluate.Evaluation._forecasts",),
    "errors": ("evaluate.Evaluation._errors", "evaluate.Evaluation._interval_errors"),
    "bounds": ("evaluate.Evaluation._widened",),
    "tables": ("runs.UnfinishedForecastRun.write_results",),
}
"""Functions of `stforecast.forecasting` of each phase; of nested ones, only the inner counts."""

FIRST, SUMMARY, CLUSTER = "first round", "summary", "Ray"

SHOWN = ("open", "windows", FIRST, "rounds", *list(PHASES)[4:6], "training", *list(PHASES)[6:])
"""Phases in the order of the table."""

COLUMNS = {
    "cells": ("cells", ""),
    "days": ("days", ""),
    "horizon": ("hours ahead", ""),
    "method": ("method", ""),
    **{name: (name, ".1f") for name in (*SHOWN, SUMMARY, OTHERS)},
    "cpu": ("CPU s", ".0f"),
    "wall": ("s", ".0f"),
    "peak": ("peak GB", ".2f"),
    "data": ("GB of data", ".3f"),
    "left": ("GB left", ".2f"),
}

RUN = ["cells", "days", "horizon", "method"]

SPREAD = {
    "cells": ("cells", ""),
    "actors": ("workers of Ray", ""),
    "wall": ("s", ".0f"),
    "faster": ("times as fast", ".2f"),
    "cpu": ("CPU s", ".0f"),
    CLUSTER: ("of Ray's processes", ".0f"),
}

COMMANDS = {
    "command": ("command", ""),
    "cpu": ("CPU s", ".0f"),
    "wall": ("s", ".0f"),
    "peak": ("peak GB of a process", ".2f"),
    "written": ("GB written", ".2f"),
}


@frame.benchmark(goes_on=True)
def city(
    results: frame.Results,
    *,
    cells: str = "40,500,3000,10000",
    horizons: str = "1,24",
    methods: str = "fedlean,lightgbm",
    days: int = 62,
    threads: int = frame.CORES,
    actors: str = "0",
) -> str:
    """Measure runs on generated cities of hours, from the cube to the files, the bounds included.

    Each run has a process of its own. The table has the CPU seconds of each phase, the sum, the
    seconds of the clock and the peak of the memory; the file has all three of each phase. What
    is in the file already is not measured again. With actors, a second table compares them with
    one process, whose files have to be the same.

    Args:
        results: gets a row for each phase of each run.
        cells: numbers of cells.
        horizons: hours ahead.
        methods: methods, with their default settings.
        days: number of days.
        threads: number of threads, of each actor, too.
        actors: numbers of actors of Ray; 0 for one process without Ray.
    """
    results.fix(threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        for n in frame.listed_numbers(cells):
            cube = Path(folder) / f"{n}.nc"
            for horizon, method, spread in itertools.product(
                frame.listed_numbers(horizons), methods.split(","), frame.listed_numbers(actors)
            ):
                key = {"cells": n, "days": days, "horizon": horizon, "method": method}
                if results.has(**key, actors=spread):
                    continue
                if not cube.exists():
                    frame.in_own_process(generate_city, cube, n, days)
                found = frame.in_own_process(measure_phases, method, cube, horizon, threads, spread)
                results.add(*({**key, "actors": spread, **row} for row in found))
    tables = [city_table, *([spread_table] if actors != "0" else [])]
    return "\n\n".join(table(results.rows) for table in tables)


def generate_city(path: Path, n_cells: int, days: int) -> None:
    """Write a cube of hourly Internet activity of a heterogeneous city.

    More cells than Milan's come from further draws, with larger ids.
    """
    place, preset = CITIES["milan"], PRESETS["heterogeneous"]
    most, numbers, activity = place.n_cells, [], []
    for draw, first in enumerate(range(0, n_cells, most)):
        ids = block(place, min(n_cells - first, most))
        days_of = simulated_days(zones(place, ids, preset.kind), START, days, 1 + draw, preset)
        hours = [(t[::PER_HOUR], a.reshape(-1, PER_HOUR, len(ids)).sum(1)) for t, a, _ in days_of]
        times, values = zip(*hours, strict=True)
        numbers.append(ids + first)
        activity.append(np.concatenate(values).astype(np.float32))
    utc = pd.DatetimeIndex(np.concatenate([t.tz_convert("UTC").tz_localize(None) for t in times]))
    cube = make_cube(
        {"internet": np.hstack(activity)}, utc, np.concatenate(numbers), units="1",
        title="A generated city", source="stforecast simulate", license="none",
        time_zone="Europe/Rome",
    )  # fmt: skip
    write_cube(cube, path)


def measure_phases(
    method: str, cube: Path, horizon: int, threads: int, actors: int = 0
) -> list[dict[str, Any]]:
    """Run a method in this process, or spread over actors; return what each phase used here.

    What Ray's processes used is a phase of its own, with the seconds of their start.
    """
    torch.set_num_threads(threads)
    usage = Usage()
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        stack.enter_context(usage.phase(OTHERS))
        settings: dict[str, Any] = {"horizon": horizon, "intervals": "normalised"}
        if actors:
            settings |= {"engine": "ray", "actors": actors, "workers": threads}
            with usage.phase(CLUSTER):
                stack.enter_context(cluster(actors * threads))
                of_ray = stack.enter_context(children_noted())
        for name, places in PHASES.items():
            for place in places:
                stack.enter_context(usage.counting(name, place))
        run = runs.run(method, cube, Path(folder) / "run", settings)
        with usage.phase(SUMMARY):
            summary(run)
        size = {"data": cube.stat().st_size / 1e9, "left": _size(run.folder) / 1e9}
        names = ("metrics.csv", "forecasts.nc", "model/state.safetensors")
        files = fingerprint({}, *(checksum(run.folder / name) for name in names))
        of_run = {"mse": run.score(), **size, "files": files}
        if actors:
            note_children(of_ray)
            usage.of[CLUSTER]["cpu"] += sum(of_ray.values())
    return [{"phase": name, **used, **of_run} for name, used in usage.of.items()]


def note_children(seconds: dict[int, float]) -> None:
    """Note the CPU seconds of all processes that this one has started, by their ids."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds[process.pid] = sum(process.cpu_times()[:2])


@contextmanager
def children_noted() -> Iterator[dict[int, float]]:
    """Yield what `note_children` fills whenever actors are about to be killed."""
    seconds, end = dict[int, float](), RayActors.end

    def noted(actors: RayActors) -> None:
        note_children(seconds)
        end(actors)

    with mock.patch.object(RayActors, "end", noted):
        yield seconds


class Usage:
    """CPU seconds, seconds and peak memory of a process by phase, without inner phases.

    Attributes:
        of: `cpu`, `wall` and `peak`, in GB, of each phase.
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {}
        self._within = [OTHERS]
        self._begin()

    def _begin(self) -> None:
        self._at = time.process_time(), time.perf_counter()
        # The peak of the memory begins anew, see proc(5).
        Path("/proc/self/clear_refs").write_text("5")

    def _note(self) -> None:
        """Count what was used since the last note for the phase."""
        used = self.of.setdefault(self._within[-1], {"cpu": 0.0, "wall": 0.0, "peak": 0.0})
        used["cpu"] += time.process_time() - self._at[0]
        used["wall"] += time.perf_counter() - self._at[1]
        used["peak"] = max(used["peak"], frame.own_memory("VmHWM") / 1e6)
        self._begin()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is used within the context for a phase."""
        self._note()
        self._within.append(name)
        try:
            yield
        finally:
            self._note()
            self._within.pop()

    @contextmanager
    def counting(self, name: str, place: str) -> Iterator[None]:
        """Count what calls of a function use within the context for a phase.

        `place` names the function in `stforecast.forecasting`.
        """
        module, *path, attribute = place.split(".")
        owner: Any = importlib.import_module(f"stforecast.forecasting.{module}")
        for part in path:
            owner = getattr(owner, part)
        function: Callable[..., Any] = getattr(owner, attribute)

        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            first = name == "rounds" and not args[0].state.round
            with self.phase(FIRST if first else name):
                return function(*args, **options)

        with mock.patch.object(owner, attribute, counted):
            yield


def city_table(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulate the runs in one process, with the CPU seconds of each phase."""
    found = pd.DataFrame([row for row in rows if not row.get("actors")])
    by_run = found.groupby(RUN, sort=False)
    of_run = {n: "max" for n in ("peak", "data", "left") if n in found}
    totals = by_run.agg({"cpu": "sum", "wall": "sum", **of_run})
    phases = found.pivot_table(index=RUN, columns="phase", values="cpu")
    found = totals.join(phases).reset_index()
    records: list[Any] = [row.dropna().to_dict() for _, row in found.astype(object).iterrows()]
    return frame.table(records, {n: column for n, column in COLUMNS.items() if n in found})


def spread_table(rows: Sequence[dict[str, Any]]) -> str:
    """Compare runs over actors with those in one process.

    Raises:
        InputError: if files of the two differ.
    """
    found = pd.DataFrame([{"actors": 0, "files": "", **row} for row in rows])
    found[CLUSTER] = found["cpu"].where(found["phase"] == CLUSTER, 0.0)
    of_run = {"cpu": "sum", "wall": "sum", CLUSTER: "sum", "files": "first"}
    found = found.groupby([*RUN, "actors"], sort=False).agg(of_run).reset_index()
    one = found[found["actors"] == 0].set_index(RUN)[["wall", "files"]]
    found = found.join(one.add_suffix(" of one"), on=RUN)
    if (other := found["files"] != found["files of one"]).any():
        run = ", ".join(f"{n} {v}" for n, v in found[other].iloc[0][[*RUN, "actors"]].items())
        raise InputError(f"{run}: not the files of one process; add 0 to actors, or find out why")
    found["faster"] = found["wall of one"] / found["wall"]
    records: list[Any] = found.to_dict("records")
    return frame.table(records, SPREAD)


@frame.benchmark(goes_on=True)
def raw_to_report(
    results: frame.Results, *, folder: Path, cells: int = 10_000, days: int = 62
) -> str:
    """Measure the commands that lead from raw text files to the report of a forecast.

    A city is simulated first, so the folder needs room for the raw days: 0.24 GB each for 10,000
    cells. A command that an earlier call has measured is not repeated. Nothing is removed.

    Args:
        results: gets a row for each command.
        folder: where the commands write.
        cells: number of cells.
        days: number of days.
    """
    results.fix(cells=cells, days=days)
    folder.mkdir(parents=True, exist_ok=True)
    prepare = ["prepare", "milan", "--raw", "raw", "--step", "1h", "--out"]
    commands = [
        ["simulate", "--city", "milan", f"--cells={cells}", f"--days={days}", "--out", "raw"],
        [*prepare, "milan.nc"],
        *([[*prepare, "milan-ray.nc", "--engine", "ray"]] if find_spec("ray") else []),
        ["run", "--data=milan.nc", "--service=internet", "--horizon=24",
         "--intervals=normalised", "--out", "run"],
        ["report", "run", "--out", "report.html"],
    ]  # fmt: skip
    for arguments in commands:
        command = " ".join(arguments)
        if not results.has(command=command):
            used = frame.in_own_process(run_as_child, folder, arguments)
            results.add({"command": command, **used})
    return frame.table(results.rows, COMMANDS)


def run_as_child(folder: Path, arguments: Sequence[str]) -> dict[str, float]:
    """Run a command of `stforecast` in a folder, as the first child of this process.

    Returns:
        CPU seconds, seconds, and GB: the largest peak of one process, and what was written.
    """
    before, began = _size(folder), time.perf_counter()
    command = [sys.executable, "-m", "stforecast", *arguments]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InputError(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cpu": used.ru_utime + used.ru_stime,
        "wall": time.perf_counter() - began,
        "peak": used.ru_maxrss / 1e6,
        "written": (_size(folder) - before) / 1e9,
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
