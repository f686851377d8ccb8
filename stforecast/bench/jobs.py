"""Execution of a benchmark: finished runs are kept, failures recorded, tables and figures made."""

from __future__ import annotations

import json
import logging
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Generic

import pandas as pd

from data_prep.base.errors import InputError, Stopped, Words, error_text, slug
from data_prep.base.files import naming_full_disk
from data_prep.base.progress import parts
from stforecast.bench import LOCAL, RAY
from stforecast.bench.figures import Gallery, draw_figures
from stforecast.bench.grid import Grid
from stforecast.bench.grid_file import Entry
from stforecast.bench.kept import PROBE, pack_runs, unpack_runs
from stforecast.bench.kind import Fold, Kind
from stforecast.bench.progress import rounds_bar
from stforecast.bench.ray import do_runs
from stforecast.bench.run_groups import R
from stforecast.bench.tables import facts_to_repeat, in_markdown, write_page
from stforecast.federated.runs.run_folder import Run, is_begun, is_finished, read_begun, write_csv
from stforecast.federated.runs.unfinished_run import locked

log = logging.getLogger(__name__)

FAILED = "failed.txt"
"""File in a run's folder that holds the traceback of its failure."""


@dataclass(frozen=True)
class Job(Generic[R]):
    """A run of a benchmark, finished or not; its settings include the seed.

    Of one to run `again`, only what tables read may be kept.
    """

    kind: Kind[R]
    folder: Path
    entry: Entry
    settings: dict[str, Any]
    data: Any
    scenario: str | None = None
    fold: Fold | None = None
    again: bool = False

    @property
    def name(self) -> str:
        """Label, fold and seed, for the progress bar."""
        fold = f", fold {self.fold.number}" if self.fold else ""
        return f"{self.entry.label}{fold}, seed {self.settings['seed']}"

    def run(self, *, progress: bool) -> R:
        """Execute or resume the run; put back what was kept of it if it fails."""
        rounds = self.kind.settings.resolve(self.entry.method, **self.settings).total_rounds
        label = f"{self.name}, rounds"
        with rounds_bar(
            rounds, progress=progress and rounds > 0, label=label, keep=False
        ) as after_round:
            aside = self.folder.with_name(f".{self.folder.name}")
            if is_finished(self.folder):
                shutil.rmtree(aside, ignore_errors=True)
                self.folder.rename(aside)
            try:
                if is_begun(self.folder):
                    run = self._in_row(self.kind.go_on(self, after_round))
                else:
                    run = self.kind.begin(self, after_round)
            except Exception:
                if aside.exists():
                    shutil.rmtree(self.folder, ignore_errors=True)
                    aside.rename(self.folder)
                raise
            shutil.rmtree(aside, ignore_errors=True)
            return run

    def finished(self) -> R | None:
        """Return the run if it is finished; refuse another one in its folder, or other data."""
        if is_begun(self.folder):
            self._refuse_other(read_begun(self.folder, self.kind.run_type.command))
        if not is_finished(self.folder):
            return None
        found = self.kind.run_type.open(self.folder)
        if found.kept and self.again:
            return None
        self._refuse_other(found.about)
        if self.kind.content(self) not in (None, found.about.get("content")):
            raise InputError(
                f"{self.folder} was run on other data: {self.data} has changed since, or its "
                "clients; ",
                Words("delete it or choose another {out}"),
            )
        return self._in_row(found)

    def _in_row(self, run: R) -> R:
        """Return the run with the label and table that its row has now."""
        return run.in_row(self.entry.label, self.entry.table)

    def _refuse_other(self, found: Mapping[str, Any]) -> None:
        settings = {"method": self.entry.method, **self.settings}
        wanted = self._identity({"settings": settings, "data": self.data})
        made = self._identity(found)
        changed = sorted(k for k in wanted.keys() | made.keys() if wanted.get(k) != made.get(k))
        if changed:
            raise InputError(
                f"{self.folder} was run with other settings ({', '.join(changed)}); ",
                Words("delete it or choose another {out}"),
            )

    def _identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of `run.json` that identifies a run."""
        read = self.kind.settings.read_by(about["settings"]["method"], about["settings"])
        flat: dict[str, Any] = json.loads(json.dumps(self.kind.settings.resolve(**read).flat()))
        ignored = self.kind.run_type.no_difference - {"seed"}
        return {n: v for n, v in flat.items() if n not in ignored} | self.kind.identity(about)


def grid_jobs(grid: Grid[R], out: Path, *, progress: bool) -> list[Job[R]]:
    """Return every run of a grid, after creating simulated data, and finished ones of more seeds.

    The first seed of the first fold of every row and data set comes first, then the first seed of
    the further folds, then the further seeds, so a benchmark that is stopped has a balanced table.
    """
    jobs: list[tuple[int, Job[R]]] = []
    for data, scenario in grid.kind.places(grid, out, progress=progress):
        for fold, entry in product(grid.kind.folds(grid, scenario, data), grid.entries):
            names = (Path(data).stem, scenario.name or "-", entry.label)
            folder = out.joinpath("runs", *map(slug, names))
            if fold:
                folder /= f"fold-{fold.number}"
            shared = grid.kind.job_settings(grid, entry, scenario, data)
            seeds = grid.seeds_of(entry)
            numbers = (path.name.removeprefix("seed-") for path in folder.glob("seed-*"))
            known = {int(number) for number in numbers if number.isdigit()}
            for turn, seed in enumerate([*seeds, *sorted(known - {*seeds})]):
                settings = {**shared, "seed": seed, **(fold.settings if fold else {})}
                place = folder / f"seed-{seed}"
                asked = seed in seeds and entry.label in (grid.rows or [entry.label])
                if asked or is_finished(place):
                    about = data, scenario.name, fold, asked and bool(grid.rows)
                    jobs.append((turn, Job(grid.kind, place, entry, settings, *about)))
    jobs.sort(key=lambda found: (found[0], found[1].fold.number if found[1].fold else 0))
    return [job for _, job in jobs]


def do_jobs(
    jobs: Sequence[Job[R]], title: str, folder: Path, *, progress: bool, engine: str = LOCAL
) -> tuple[list[R], dict[str, str]]:
    """Return the finished runs, and the one-line error of each failed one by its place in `folder`.

    A failed run is recorded in its folder and does not stop the others; it is retried the next
    time. If something was kept of it, the failure is raised, as tables without it would replace
    those with it. Twins, other runs in the folders and missing data are refused before the first
    run.
    """
    seen: set[Path] = set()
    for job in jobs:
        if job.folder in seen:
            raise InputError(
                f"two runs would share the folder {job.folder}; give data names of their own, and "
                "each seed, service and scenario once"
            )
        seen.add(job.folder)
    for job in jobs:
        if job.again or not is_finished(job.folder):
            job.kind.check_data(job)
    if engine == RAY:
        do_runs(jobs, title, progress=progress)
    found = {job.folder: job.finished() for job in jobs}
    failures = {}
    missing = [job for job in jobs if not found[job.folder]]
    with parts(len(missing), title, "run", progress=progress) as begins:
        for job in missing:
            begins(job.name)
            try:
                found[job.folder] = job.run(progress=progress)
            except Stopped as stop:
                raise Stopped(
                    stop.signal, f"{stop.place} of {job.name}", "run the same command to resume"
                ) from stop
            except Exception as e:
                if is_finished(job.folder):
                    raise
                name = str(job.folder.relative_to(folder))
                failures[name] = error_text(e)
                log.warning("%s: %s", name, failures[name])
                job.folder.mkdir(parents=True, exist_ok=True)
                with naming_full_disk(job.folder):
                    (job.folder / FAILED).write_text(traceback.format_exc())
    runs = {place: run for place, run in found.items() if run}
    for place in runs:
        (place / FAILED).unlink(missing_ok=True)
    return [*runs.values()], failures


def _errors_of(run: Run) -> pd.DataFrame:
    """Return the errors of a run with the facts by which it differs from others."""
    facts: dict[str, str | int] = {"label": run.label, **run.facts(), "seed": run.seed}
    table = run.metrics()
    return table.assign(**{name: value for name, value in facts.items() if name not in table})


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """Result of a benchmark: finished runs, one-line errors by folder, table and figures."""

    runs: Sequence[R]
    failures: Mapping[str, str]
    table: str
    gallery: Gallery


def run_grid(
    grid: Grid[R], out: Path, *, progress: bool = False, engine: str = LOCAL
) -> Outcome[R]:
    """Execute all missing runs of the grid, write the tables and draw the figures.

    `out` gets `runs/`, `figures/`, `table.md`, `.tex` and `.json`, `metrics.csv` and
    `kept.tar.xz`. No figures are drawn if only sums are kept of some runs.
    """
    with locked(out):
        unpack_runs(out)
        jobs = grid_jobs(grid, out, progress=progress)
        runs, failures = do_jobs(jobs, grid.title, out / "runs", progress=progress, engine=engine)
        figures = () if any(run.kept for run in runs) else grid.figures
        gallery = draw_figures(figures, runs, out / "figures", grid.kind.plots)
        note = grid.note.split("\n\n") if grid.note else []
        parts = [*note, *grid.kind.results_parts(grid, runs, failures)]
        if runs:
            write_csv(pd.concat(map(_errors_of, runs)), out / "metrics.csv")
        facts = facts_to_repeat(runs)
        # Of a kept run, its own.
        kept = (r.about[PROBE] for r in runs if r.method == grid.referred and PROBE in r.about)
        if runs and (probed := next(kept, None) or grid.kind.probe(grid.referred, runs[0])):
            facts["probe"] = probed
        about = {"title": grid.title, "command": grid.repeat(out), "facts": facts}
        write_page(out, about, parts, gallery)
        pack_runs(grid.kind, runs, out, facts.get("probe", ""))
    return Outcome(runs, failures, in_markdown(parts), gallery)
