"""Runs of a benchmark one after another: what is finished is kept, what fails is noted."""

from __future__ import annotations

import datetime
import logging
import os
import platform
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from data_prep.cube import atomic_path
from data_prep.errors import InputError
from experiments.figures import Gallery
from experiments.ray_engine import LOCAL, RAY, do_runs
from stforecast.federated.stopped import Stopped

log = logging.getLogger(__name__)

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

FAILED = "failed.txt"
"""File in a run's folder that holds the traceback of its failure."""


class Job(Protocol[R_co]):
    """One run of a benchmark.

    Attributes:
        folder: the run's folder.
        name: for the progress bar.
    """

    @property
    def folder(self) -> Path: ...  # noqa: D102  described above

    @property
    def name(self) -> str: ...  # noqa: D102

    def finished(self) -> R_co | None:
        """The run, if its folder holds it already.

        Raises:
            InputError: if the folder holds a run with other data or settings.
        """
        ...

    def run(self, progress: bool) -> R_co:
        """Do the run."""
        ...


class About(Protocol):
    """A finished run, by what its `run.json` says."""

    @property
    def about(self) -> dict[str, Any]: ...  # noqa: D102


def do_jobs(
    jobs: Sequence[Job[R]], title: str, folder: Path, progress: bool, engine: str = LOCAL
) -> tuple[list[R], dict[str, str]]:
    """Do every job that is not done yet.

    A run that fails is noted in its folder and does not stop the others; it is tried again the next
    time.

    Args:
        jobs: in order.
        title: of the benchmark, for the progress bar.
        folder: above all jobs' folders, for the names of failures.
        progress: whether to show progress bars.
        engine: `local`, or `ray` for many at a time (`experiments.ray_engine`).

    Returns:
        Finished runs, and the folder of each failed one to its error's one line.

    Raises:
        InputError: if two jobs share a folder, or a folder holds another run.
    """
    _refuse_twins(jobs)
    if engine == RAY:
        do_runs(jobs, title, progress=progress)
    found = {job.folder: job.finished() for job in jobs}
    runs, failures = [], {}
    with tqdm(jobs, desc=title, unit="run", disable=not progress) as bar:
        for job in bar:
            bar.set_postfix_str(job.name)
            try:
                runs.append(found[job.folder] or job.run(progress))
                (job.folder / FAILED).unlink(missing_ok=True)
            except Stopped as stop:
                raise Stopped(
                    stop.signal, f"{stop.place} of {job.name}", "begin the same again to go on"
                ) from stop
            except Exception as e:
                name = str(job.folder.relative_to(folder))
                failures[name] = str(e) if isinstance(e, InputError) else f"{type(e).__name__}: {e}"
                log.warning("%s: %s", name, failures[name])
                job.folder.mkdir(parents=True, exist_ok=True)
                (job.folder / FAILED).write_text(traceback.format_exc())
    return runs, failures


def _refuse_twins(jobs: Iterable[Job[Any]]) -> None:
    seen: set[Path] = set()
    for job in jobs:
        if job.folder in seen:
            raise InputError(
                f"two runs would share the folder {job.folder}; give data names of their own, and "
                "each seed, service and scenario once"
            )
        seen.add(job.folder)


def refuse_other(folder: Path, wanted: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Compare what a folder's run was made of with what is wanted.

    Raises:
        InputError: naming what differs.
    """
    changed = sorted(k for k in wanted.keys() | made.keys() if wanted.get(k) != made.get(k))
    if changed:
        raise InputError(
            f"{folder} was run with other settings ({', '.join(changed)}); delete it or choose "
            "another --out"
        )


def facts(runs: Sequence[About]) -> str:
    """Markdown: what a reader needs to repeat the runs, and when and where this was written."""
    abouts = [run.about for run in runs]
    rounds = {a["settings"]["rounds"] for a in abouts if a.get("federated", True)}
    versions = {f"{p} {v}" for about in abouts for p, v in about.get("versions", {}).items()}
    seconds = sum(about["seconds"] for about in abouts)
    found = {
        "written": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": ", ".join(map(str, sorted(rounds))),
        "seeds": ", ".join(map(str, sorted({a["settings"]["seed"] for a in abouts}))),
        "versions": ", ".join(sorted(versions)),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "runs": f"{len(runs)}, {seconds / 60:.1f} minutes together",
    }
    return "\n".join(f"- {name}: {value}" for name, value in found.items() if value)


def write_page(
    out: Path, title: str, command: str, runs: Sequence[About], table: str, gallery: Gallery
) -> None:
    """Write `table.md`: what was run and how, the table, the figures.

    Args:
        out: the benchmark's folder.
        title: its heading.
        command: that repeats it.
        runs: finished runs.
        table: of their results, as Markdown.
        gallery: its figures.
    """
    parts = [f"# {title}", f"    {command}", facts(runs), table, gallery.markdown(out)]
    with atomic_path(out / "table.md") as part:
        part.write_text("\n\n".join(filter(None, parts)) + "\n")
