"""Runs a benchmark, keeps what is finished and writes the tables."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep import DATA_SETS
from data_prep.errors import InputError
from data_prep.simulate import simulate
from experiments.figures import draw_figures
from experiments.grid import City, Grid
from experiments.jobs import Job, Outcome, all_settings, do_jobs, write_page
from experiments.names import slug
from experiments.progress import rounds_bar
from experiments.ray_engine import LOCAL
from experiments.report import results_table
from stforecast.config import read_by, resolve
from stforecast.data.series import as_cube, choose_service
from stforecast.federated.runs.run_folder import is_begun, write_csv
from stforecast.federated.runs.run_lock import locked
from stforecast.results import COMMAND, Run, data_of, open_run, resume, run
from stforecast.variants import NO_DIFFERENCE


@dataclass(frozen=True)
class ForecastJob(Job[Run]):
    """One run of a grid.

    Attributes:
        data: the cube.
    """

    data: Path

    command = COMMAND

    def run(self, progress: bool) -> Run:
        """Fit, judge and save a forecaster."""
        config = resolve(self.entry.method, **self.settings)
        with rounds_bar(
            config.training.rounds, progress=progress and config.federated, keep=False
        ) as after_round:
            if is_begun(self.folder):
                return resume(self.folder, self.data, after_round=after_round)
            return run(
                self.entry.method,
                self.data,
                self.folder,
                self.settings,
                label=self.entry.label,
                after_round=after_round,
            )

    def open(self) -> Run:
        """The finished run of the folder."""
        return open_run(self.folder)

    def about(self) -> dict[str, Any]:
        """What the `run.json` of this run holds of what it is made of."""
        return {**super().about(), "data": self.data}

    def check(self) -> None:
        """Refuse a cube or a service that is not there."""
        _check_service(self.data, self.settings.get("service"))

    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Settings and the cube's path."""
        read = read_by(about["settings"]["method"], about["settings"])
        settings = all_settings(resolve, read, NO_DIFFERENCE - {"seed"})
        return {**settings, "data": data_of(about).resolve()}


def run_grid(grid: Grid, out: Path, *, progress: bool = False, engine: str = LOCAL) -> Outcome[Run]:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    A run that fails is noted in its folder and in the table and does not stop the others; it is
    tried again the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many runs at a time.

    Raises:
        InputError: if `out` holds runs with other settings or another process writes there, two
            runs would share a folder, or a city cannot be simulated.
    """
    with locked(out):
        jobs = _jobs(grid, out, progress)
        runs, failures = do_jobs(jobs, grid.title, out / "runs", progress, engine)
        gallery = draw_figures(grid.figures, runs, out / "figures", _group)
        outcome = Outcome(runs, failures, gallery)
        _write_tables(grid, outcome, out)
    return outcome


@cache
def _check_service(data: Path, service: str | None) -> None:
    """Once for all runs; nothing is kept of an error."""
    cube, name = as_cube(data)
    with cube:
        choose_service(cube, service, name)


def _group(run: Run) -> str:
    """Data and service, which the runs of a figure share."""
    return f"{slug(Path(run.about['data']).stem)}-{slug(run.about['service'])}"


def _write_tables(grid: Grid, outcome: Outcome[Run], out: Path) -> None:
    if outcome.runs:
        errors = [r.metrics().assign(label=r.label) for r in outcome.runs]
        write_csv(pd.concat(errors), out / "metrics.csv")
    table = results_table(outcome.runs, outcome.failures, grid.published)
    write_page(out, grid.title, grid.repeat(out), outcome.runs, table, outcome.gallery)


def _jobs(grid: Grid, out: Path, progress: bool) -> list[ForecastJob]:
    """Every run of the grid; cities are simulated here."""
    jobs = []
    for item in grid.data:
        data = _simulated(item, out, progress) if isinstance(item, City) else Path(item)
        for service in grid.services:
            for entry in grid.entries:
                for seed in grid.seeds:
                    shared = read_by(entry.method, grid.settings)
                    settings = {**shared, **entry.settings, "seed": seed}
                    if service is not None:
                        settings["service"] = service
                    name = Path(slug(data.stem), slug(service or "-"), slug(entry.label))
                    folder = out / "runs" / name / f"seed-{seed}"
                    jobs.append(ForecastJob(folder, entry, settings, data))
    return jobs


def _simulated(city: City, out: Path, progress: bool) -> Path:
    """The cube of a simulated city, made once."""
    name = slug(city.name)
    cube, about = out / "data" / f"{name}.nc", out / "data" / f"{name}.json"
    text = json.dumps(dataclasses.asdict(city))
    if cube.exists():
        if not about.exists() or about.read_text() != text:
            raise InputError(f"{cube} is another city; delete it or choose another --out or name")
        return cube
    cube.parent.mkdir(parents=True, exist_ok=True)
    options = {k: v for k, v in dataclasses.asdict(city).items() if k != "name"}
    with tempfile.TemporaryDirectory(dir=cube.parent, prefix=f"{name}-raw-") as raw:
        simulate(Path(raw), progress=progress, **options)
        about.write_text(text)
        DATA_SETS.find(city.city).prepare(Path(raw), cube, progress=progress)
    return cube
