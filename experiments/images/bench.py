"""Runs a benchmark of images, keeps what is finished and writes the tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.config_file import Entry
from experiments.figures import Gallery, draw_figures
from experiments.images.grid import ImageGrid
from experiments.images.report import results_table
from experiments.jobs import do_jobs, refuse_other, write_page
from experiments.names import slug
from experiments.progress import rounds_bar
from experiments.ray_engine import LOCAL
from stforecast.federated.run_folder import is_begun, is_finished, read_begun, write_csv
from vision.config import NO_DIFFERENCE, resolve
from vision.plots import PLOTS
from vision.results import COMMAND, ImageRun, open_image_run, resume, run


@dataclass(frozen=True)
class ImageOutcome:
    """What became of a grid.

    Attributes:
        runs: finished runs.
        failures: folder of each failed run below `runs/` to its error's one line.
        gallery: its figures.
    """

    runs: list[ImageRun]
    failures: dict[str, str]
    gallery: Gallery


@dataclass(frozen=True)
class ImageJob:
    """One run of a grid; see `experiments.jobs.Job`."""

    folder: Path
    scenario: str
    entry: Entry
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """Label and seed."""
        return f"{self.entry.label}, seed {self.settings['seed']}"

    def run(self, progress: bool) -> ImageRun:
        """Fit, judge and save a learner."""
        rounds = resolve(self.entry.method, **self.settings).training.rounds
        with rounds_bar(rounds, progress=progress, keep=False) as after_round:
            if is_begun(self.folder):
                return resume(self.folder, after_round=after_round)
            return run(
                self.entry.method,
                self.folder,
                self.settings,
                label=self.entry.label,
                facts={"scenario": self.scenario},
                after_round=after_round,
            )

    def finished(self) -> ImageRun | None:
        """The run in the folder, if it is there and is of these settings."""
        if is_begun(self.folder):
            self._check(read_begun(self.folder, COMMAND))
        if not is_finished(self.folder):
            return None
        found = open_image_run(self.folder)
        self._check(found.about)
        return found

    def _check(self, about: dict[str, Any]) -> None:
        """Refuse a run of other settings."""
        made = dict(about["settings"])
        method = made.pop("method")
        wanted = _settings(self.entry.method, self.settings)
        refuse_other(self.folder, wanted, _settings(method, made))


def run_image_grid(
    grid: ImageGrid, out: Path, *, progress: bool = False, engine: str = LOCAL
) -> ImageOutcome:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many runs at a time.

    Raises:
        InputError: if `out` holds runs with other settings, or two runs would share a folder.
    """
    runs, failures = do_jobs(_jobs(grid, out), grid.title, out / "runs", progress, engine)
    gallery = draw_figures(grid.figures, runs, out / "figures", _group, PLOTS)
    outcome = ImageOutcome(runs, failures, gallery)
    _write_tables(grid, outcome, out)
    return outcome


def _jobs(grid: ImageGrid, out: Path) -> list[ImageJob]:
    return [
        ImageJob(
            out / "runs" / slug(data) / slug(scenario or "-") / slug(entry.label) / f"seed-{seed}",
            scenario,
            entry,
            {**grid.settings, **own, **entry.settings, "data": data, "seed": seed},
        )
        for scenario, own in grid.scenarios.items()
        for data in ([own["data"]] if "data" in own else grid.data)
        for entry in grid.entries
        for seed in grid.seeds
    ]


def _settings(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings as `run.json` has them; what an older version did not know has its default."""
    flat: dict[str, Any] = json.loads(json.dumps(resolve(method, **settings).flat()))
    return {name: v for name, v in flat.items() if name not in NO_DIFFERENCE - {"seed"}}


def _group(run: ImageRun) -> str:
    """Data and scenario, which the runs of a figure share."""
    parts = [run.about["data"], run.about.get("scenario", "")]
    return "-".join(slug(part) for part in parts if part)


def _write_tables(grid: ImageGrid, outcome: ImageOutcome, out: Path) -> None:
    if outcome.runs:
        tables = [
            r.metrics().assign(
                label=r.label,
                data=r.about["data"],
                scenario=r.about.get("scenario", ""),
                seed=r.about["settings"]["seed"],
            )
            for r in outcome.runs
        ]
        write_csv(pd.concat(tables), out / "metrics.csv")
    table = results_table(outcome.runs, outcome.failures, grid.published)
    write_page(out, grid.title, grid.repeat(out), outcome.runs, table, outcome.gallery)
