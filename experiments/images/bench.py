"""Runs a benchmark of images, keeps what is finished and writes the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.figures import draw_figures
from experiments.images.grid import ImageGrid
from experiments.images.report import results_table
from experiments.jobs import Job, Outcome, all_settings, do_jobs, write_page
from experiments.names import slug
from experiments.progress import rounds_bar
from experiments.ray_engine import LOCAL
from stforecast.federated.runs.run_folder import is_begun, write_csv
from stforecast.federated.runs.run_lock import locked
from vision.config import NO_DIFFERENCE, resolve
from vision.learner import load_images
from vision.plots import PLOTS
from vision.results import COMMAND, ImageRun, open_image_run, resume, run


@dataclass(frozen=True)
class ImageJob(Job[ImageRun]):
    """One run of a grid.

    Attributes:
        scenario: how the images are divided.
    """

    scenario: str

    command = COMMAND

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

    def check(self) -> None:
        """Refuse images that are not there."""
        load_images(resolve(self.entry.method, **self.settings))

    def open(self) -> ImageRun:
        """The finished run of the folder."""
        return open_image_run(self.folder)

    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Settings, which name the images."""
        return all_settings(resolve, about["settings"], NO_DIFFERENCE - {"seed"})


def run_image_grid(
    grid: ImageGrid, out: Path, *, progress: bool = False, engine: str = LOCAL
) -> Outcome[ImageRun]:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many runs at a time.

    Raises:
        InputError: if `out` holds runs with other settings or another process writes there, or two
            runs would share a folder.
    """
    with locked(out):
        runs, failures = do_jobs(_jobs(grid, out), grid.title, out / "runs", progress, engine)
        gallery = draw_figures(grid.figures, runs, out / "figures", _group, PLOTS)
        outcome = Outcome(runs, failures, gallery)
        _write_tables(grid, outcome, out)
    return outcome


def _jobs(grid: ImageGrid, out: Path) -> list[ImageJob]:
    return [
        ImageJob(
            out / "runs" / slug(data) / slug(scenario or "-") / slug(entry.label) / f"seed-{seed}",
            entry,
            {**grid.settings, **own, **entry.settings, "data": data, "seed": seed},
            scenario,
        )
        for scenario, own in grid.scenarios.items()
        for data in ([own["data"]] if "data" in own else grid.data)
        for entry in grid.entries
        for seed in grid.seeds
    ]


def _group(run: ImageRun) -> str:
    """Data and scenario, which the runs of a figure share."""
    parts = [run.about["data"], run.about.get("scenario", "")]
    return "-".join(slug(part) for part in parts if part)


def _write_tables(grid: ImageGrid, outcome: Outcome[ImageRun], out: Path) -> None:
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
