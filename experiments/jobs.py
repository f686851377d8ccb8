"""Runs of a benchmark one after another: what is finished is kept, what fails is noted."""

from __future__ import annotations

import datetime
import json
import logging
import os
import platform
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tqdm import tqdm

from data_prep.cube import atomic_path
from data_prep.errors import InputError
from experiments.config_file import Entry
from experiments.figures import Gallery
from experiments.ray_engine import LOCAL, RAY, do_runs
from stforecast.federated.runs.run_folder import is_begun, is_finished, read_begun
from stforecast.federated.runs.signals import Stopped

log = logging.getLogger(__name__)

R = TypeVar("R", bound="About")

FAILED = "failed.txt"
"""File in a run's folder that holds the traceback of its failure."""


class About(Protocol):
    """A finished run, by what its `run.json` says."""

    @property
    def about(self) -> dict[str, Any]: ...  # noqa: D102  described above


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """What became of a benchmark.

    Attributes:
        runs: finished runs.
        failures: folder of each failed run below `runs/` to its error's one line.
        gallery: its figures.
    """

    runs: list[R]
    failures: dict[str, str]
    gallery: Gallery = field(default_factory=Gallery)


@dataclass(frozen=True)
class Job(ABC, Generic[R]):
    """One run of a benchmark.

    Attributes:
        folder: the run's folder.
        entry: its method, as the file has it.
        settings: all of its settings, the seed among them.
    """

    folder: Path
    entry: Entry
    settings: dict[str, Any]

    command: ClassVar[str]
    """What writes such folders, for messages."""

    @property
    def name(self) -> str:
        """Label and seed, for the progress bar."""
        return f"{self.entry.label}, seed {self.settings['seed']}"

    @abstractmethod
    def run(self, progress: bool) -> R:
        """Do the run, or what is left of it."""

    def check(self) -> None:
        """Refuse data that are not there, before the first run.

        Raises:
            InputError: naming them.
        """

    @abstractmethod
    def open(self) -> R:
        """The finished run of the folder."""

    @abstractmethod
    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What tells runs apart, of one whose `run.json` this is."""

    def about(self) -> dict[str, Any]:
        """What the `run.json` of this run holds of what it is made of."""
        return {"settings": {"method": self.entry.method, **self.settings}}

    def finished(self) -> R | None:
        """The run, if its folder holds it already.

        Raises:
            InputError: if the folder holds another run, finished or not.
        """
        if is_begun(self.folder):
            self._refuse_other(read_begun(self.folder, self.command))
        if not is_finished(self.folder):
            return None
        found = self.open()
        self._refuse_other(found.about)
        return found

    def _refuse_other(self, found: Mapping[str, Any]) -> None:
        wanted, made = self.identity(self.about()), self.identity(found)
        changed = sorted(k for k in wanted.keys() | made.keys() if wanted.get(k) != made.get(k))
        if changed:
            raise InputError(
                f"{self.folder} was run with other settings ({', '.join(changed)}); delete it or "
                "choose another --out"
            )


def all_settings(
    resolve: Callable[..., Any], settings: Mapping[str, Any], ignored: Set[str]
) -> dict[str, Any]:
    """All settings as `run.json` has them; what an older version did not know has its default.

    Args:
        resolve: makes a config of a method and its settings.
        settings: the method among them.
        ignored: names of settings that make no difference.
    """
    flat: dict[str, Any] = json.loads(json.dumps(resolve(**settings).flat()))
    return {name: value for name, value in flat.items() if name not in ignored}


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
        InputError: if two jobs share a folder, a folder holds another run, or data of a run that is
            not finished are not there.
    """
    _refuse_twins(jobs)
    for job in jobs:
        if not is_finished(job.folder):
            job.check()
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
