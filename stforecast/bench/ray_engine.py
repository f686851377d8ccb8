"""Many machines, by Ray (extra `ray`): a task for each item, such as a run of a benchmark.

What is done is what is done without it: a run folder lies where the ordinary code looks for it, and
that goes on from there. So the machines need one file system with the same paths, and the results
are equal. A task whose worker is lost is done again, elsewhere.

Without an address (Ray's own `RAY_ADDRESS`) Ray is started on this machine and stopped at the end.
Ray pickles what it moves between its own processes; nothing of it comes from files of data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from data_prep.errors import InputError

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCAL, RAY = "local", "ray"
"""Where work is done: one thing after another in this process, or spread by Ray."""

RETRIES = 3
"""How often a task is done again whose worker was lost."""


@contextmanager
def cluster(n_cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected; what was started here is stopped at the end.

    Args:
        n_cpus: cores to use where Ray is started here; by default all.

    Raises:
        InputError: if Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as e:
        raise InputError("no ray here; install the extra: pip install 'stforecast[ray]'") from e
    ours = not ray.is_initialized()
    if ours:
        where: dict[str, Any] = (
            {} if "RAY_ADDRESS" in os.environ else {"num_cpus": n_cpus, "include_dashboard": False}
        )
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **where)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def each(
    do: Callable[[T], None], items: Sequence[T], title: str, *, progress: bool = False
) -> dict[int, str]:
    """Do something with each item, one task each.

    A task that raises does not stop the others, and is not done again.

    Args:
        do: a function of a module; what it gives is dropped.
        items: what to do it with.
        title: for the progress bar.
        progress: whether to show it.

    Returns:
        Position of each item that failed to its error's one line.
    """
    from tqdm import tqdm  # takes longer to import than all that a short command needs

    failures: dict[int, str] = {}
    with cluster() as ray:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_quietly)
        here = Path.cwd()
        waiting = {task.remote(do, item, here): i for i, item in enumerate(items)}
        with tqdm(total=len(items), desc=title, disable=not progress) as bar:
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                i = waiting.pop(done)
                bar.update()
                try:
                    if problem := ray.get(done):
                        failures[i] = problem
                except ray.exceptions.RayError as e:
                    failures[i] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    return failures


def _quietly(do: Callable[[T], None], item: T, folder: Path) -> str:
    """Do it in a folder; an error's one line, or nothing. One core is one thread."""
    import torch

    torch.set_num_threads(1)
    try:
        os.chdir(folder)
        do(item)
    except Exception as e:
        return str(e) if isinstance(e, InputError) else f"{type(e).__name__}: {e}"
    return ""


def do_runs(jobs: Sequence[Any], title: str, *, progress: bool = False) -> None:
    """Do every run of a benchmark that is not finished, one task each.

    Failures are left to `stforecast.bench.jobs.do_jobs`, which comes after: it finds what is
    finished, tries again what is not and notes what fails.

    Args:
        jobs: see `stforecast.bench.jobs.Job`.
        title: of the benchmark, for the progress bar.
        progress: whether to show it.
    """
    todo = [job for job in jobs if job.finished() is None]
    for i, problem in each(_do_run, todo, title, progress=progress).items():
        log.warning("%s: %s; it is tried again here", todo[i].name, problem)


def _do_run(job: Any) -> None:
    if job.finished() is None:
        job.run(progress=False)
