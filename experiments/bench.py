"""Runs a benchmark, keeps what is finished and writes the tables."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.errors import InputError
from data_prep.registry import find_data_set
from data_prep.simulate import simulate
from experiments.config_file import Entry
from experiments.figures import Gallery, draw_figures
from experiments.grid import City, Grid
from experiments.jobs import do_jobs, refuse_other, write_page
from experiments.names import slug
from experiments.progress import rounds_bar
from experiments.ray_engine import LOCAL
from experiments.report import results_table
from stforecast.config import resolve
from stforecast.federated.run_folder import is_begun, is_finished, read_begun, write_csv
from stforecast.results import COMMAND, Run, open_run, resume, run
from stforecast.variants import NO_DIFFERENCE


@dataclass(frozen=True)
class Outcome:
    """What became of a grid.

    Attributes:
        runs: finished runs.
        failures: folder of each failed run below `runs/` to its error's one line.
        gallery: its figures.
    """

    runs: list[Run]
    failures: dict[str, str]
    gallery: Gallery = field(default_factory=Gallery)


@dataclass(frozen=True)
class ForecastJob:
    """One run of a grid; see `experiments.jobs.Job`."""

    folder: Path
    data: Path
    entry: Entry
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.entry.label}, seed {self.settings['seed']}"

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

    def finished(self) -> Run | None:
        """The run in the folder, if it is there and is of these data and settings."""
        if is_begun(self.folder):
            self._check(read_begun(self.folder, COMMAND))
        if not is_finished(self.folder):
            return None
        found = open_run(self.folder)
        self._check(found.about)
        return found

    def _check(self, about: dict[str, Any]) -> None:
        """Refuse a run of other data or settings."""
        made = dict(about["settings"])
        method = made.pop("method")
        refuse_other(
            self.folder,
            {**_settings(self.entry.method, self.settings), "data": self.data.resolve()},
            {**_settings(method, made), "data": Path(about["data"]).resolve()},
        )


def run_grid(grid: Grid, out: Path, *, progress: bool = False, engine: str = LOCAL) -> Outcome:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    A run that fails is noted in its folder and in the table and does not stop the others; it is
    tried again the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many runs at a time.

    Raises:
        InputError: if `out` holds runs with other settings, two runs would share a folder, or a
            city cannot be simulated.
    """
    jobs = _jobs(grid, out, progress)
    runs, failures = do_jobs(jobs, grid.title, out / "runs", progress, engine)
    outcome = Outcome(runs, failures, draw_figures(grid.figures, runs, out / "figures", _group))
    _write_tables(grid, outcome, out)
    return outcome


def _group(run: Run) -> str:
    """Data and service, which the runs of a figure share."""
    return f"{slug(Path(run.about['data']).stem)}-{slug(run.about['service'])}"


def _write_tables(grid: Grid, outcome: Outcome, out: Path) -> None:
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
                    settings = {**grid.settings, **entry.settings, "seed": seed}
                    if service is not None:
                        settings["service"] = service
                    name = Path(slug(data.stem), slug(service or "-"), slug(entry.label))
                    folder = out / "runs" / name / f"seed-{seed}"
                    jobs.append(ForecastJob(folder, data, entry, settings))
    return jobs


def _settings(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings as `run.json` has them; what an older version did not know has its default."""
    flat: dict[str, Any] = json.loads(json.dumps(resolve(method, **settings).flat()))
    return {name: v for name, v in flat.items() if name not in NO_DIFFERENCE - {"seed"}}


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
        find_data_set(city.city).prepare(Path(raw), cube, progress=progress)
    return cube
