"""Runs a benchmark, keeps what is finished and writes the tables."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import os
import platform
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from data_prep.cube import atomic_path
from data_prep.errors import InputError
from data_prep.registry import find_data_set
from data_prep.simulate import simulate
from experiments.figures import Gallery, draw_figures
from experiments.grid import City, Entry, Grid
from experiments.names import slug
from experiments.progress import rounds_bar
from experiments.report import results_table
from stforecast.config import resolve
from stforecast.results import Run, open_run, run, write_csv
from stforecast.variants import NO_DIFFERENCE

log = logging.getLogger(__name__)


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
class _Job:
    """One run of a grid."""

    folder: Path
    data: Path
    entry: Entry
    settings: dict[str, Any]


def run_grid(grid: Grid, out: Path, *, progress: bool = False) -> Outcome:
    """Do every run of the grid that is not done yet, write the tables and draw the figures.

    A run that fails is noted in its folder and in the table and does not stop the others; it is
    tried again the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `figures/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.

    Raises:
        InputError: if `out` holds runs with other settings, two runs would share a folder, or a
            city cannot be simulated.
    """
    jobs = _jobs(grid, out, progress)
    found = {job.folder: _finished(job) for job in jobs}
    runs, failures = [], {}
    with tqdm(jobs, desc=grid.title, unit="run", disable=not progress) as bar:
        for job in bar:
            bar.set_postfix_str(f"{job.entry.label}, seed {job.settings['seed']}")
            try:
                runs.append(found[job.folder] or _run(job, progress))
            except Exception as e:
                name = str(job.folder.relative_to(out / "runs"))
                failures[name] = str(e) if isinstance(e, InputError) else f"{type(e).__name__}: {e}"
                log.warning("%s: %s", name, failures[name])
                job.folder.mkdir(parents=True, exist_ok=True)
                (job.folder / "failed.txt").write_text(traceback.format_exc())
    outcome = Outcome(runs, failures, draw_figures(grid.figures, runs, out / "figures"))
    _write_tables(grid, outcome, out)
    return outcome


def _write_tables(grid: Grid, outcome: Outcome, out: Path) -> None:
    if outcome.runs:
        errors = [r.metrics().assign(label=r.label) for r in outcome.runs]
        write_csv(pd.concat(errors), out / "metrics.csv")
    with atomic_path(out / "table.md") as part:
        parts = [
            f"# {grid.title}",
            f"    {grid.repeat(out)}",
            _facts(outcome.runs),
            results_table(outcome.runs, outcome.failures, grid.published),
            outcome.gallery.markdown(out),
        ]
        part.write_text("\n\n".join(filter(None, parts)) + "\n")


def _facts(runs: Sequence[Run]) -> str:
    """Markdown: what a reader needs to repeat the runs, and when and where this was written."""
    settings = [run.about["settings"] for run in runs]
    rounds = {s["rounds"] for s, run in zip(settings, runs, strict=True) if run.about["federated"]}
    versions = {f"{p} {v}" for run in runs for p, v in run.about.get("versions", {}).items()}
    seconds = sum(run.about["seconds"] for run in runs)
    found = {
        "written": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": ", ".join(map(str, sorted(rounds))),
        "seeds": ", ".join(map(str, sorted({s["seed"] for s in settings}))),
        "versions": ", ".join(sorted(versions)),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "runs": f"{len(runs)}, {seconds / 60:.1f} minutes together",
    }
    return "\n".join(f"- {name}: {value}" for name, value in found.items() if value)


def _jobs(grid: Grid, out: Path, progress: bool) -> list[_Job]:
    """Every run of the grid; cities are simulated here."""
    jobs: dict[Path, _Job] = {}
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
                    if folder in jobs:
                        raise InputError(
                            f"two runs would share the folder {folder}; give cubes names of their "
                            "own, and each seed and service once"
                        )
                    jobs[folder] = _Job(folder, data, entry, settings)
    return list(jobs.values())


def _run(job: _Job, progress: bool) -> Run:
    config = resolve(job.entry.method, **job.settings)
    with rounds_bar(
        config.training.rounds, progress=progress and config.federated, keep=False
    ) as after_round:
        finished = run(
            job.entry.method,
            job.data,
            job.folder,
            job.settings,
            label=job.entry.label,
            after_round=after_round,
        )
    (job.folder / "failed.txt").unlink(missing_ok=True)
    return finished


def _finished(job: _Job) -> Run | None:
    """The run in the folder, if it is there and is of these data and settings."""
    if not (job.folder / "run.json").exists():
        return None
    found = open_run(job.folder)
    wanted = {**_settings(job.entry.method, job.settings), "data": job.data.resolve()}
    made = {name: v for name, v in found.about["settings"].items() if name != "method"}
    before = {**_settings(found.method, made), "data": Path(found.about["data"]).resolve()}
    changed = sorted(k for k in wanted.keys() | before.keys() if wanted.get(k) != before.get(k))
    if changed:
        raise InputError(
            f"{job.folder} was run with other settings ({', '.join(changed)}); delete it or choose "
            "another --out"
        )
    return found


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
