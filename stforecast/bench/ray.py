"""Parallel execution by Ray (extra `ray`), one task per item, such as a run of a benchmark.

Tasks write run folders where the ordinary code looks for them, which then continues from there. So
the machines need a shared file system with the same paths, and the results equal those without Ray.
A task whose worker is lost is repeated elsewhere.

Without an address (Ray's own `RAY_ADDRESS`) Ray is started on this machine and stopped at the end.
Ray pickles what it moves between its own processes; none of it comes from data files.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.base.errors import InputError, error_text, needing
from data_prep.base.progress import parts
from stforecast.bench.run_groups import K, T

log = logging.getLogger(__name__)


@contextmanager
def cluster(n_cpus: int | None = None) -> Iterator[Any]:
    """Connect to Ray; stop it at the end if it was started here, with all cores by default."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needing("ray", "ray is not installed"):
        import ray
    ours = not ray.is_initialized()
    if ours:
        where: dict[str, Any] = (
            {}
            if "RAY_ADDRESS" in os.environ
            else {"address": "local", "num_cpus": n_cpus, "include_dashboard": False}
        )
        # Tasks and actors have one core each; Ray sets OMP_NUM_THREADS itself.
        where["runtime_env"] = {"env_vars": {"POLARS_MAX_THREADS": "1"}}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
        except Exception as e:  # Ray raises bare ones, e.g. on a machine that is too busy.
            raise InputError(f"Ray did not start: {' '.join(str(e).split())[:300]}") from e
        if handler and threading.current_thread() is threading.main_thread():
            # Ray's own handler would end a run without a checkpoint.
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def do_each(
    do: Callable[[T], None], items: Sequence[T], title: str, *, progress: bool = False
) -> dict[int, str]:
    """Call a module's function with each item, one task each; return one-line errors by position.

    A task that raises does not stop the others, and is not repeated.
    """
    failures: dict[int, str] = {}
    with cluster() as ray:
        task = ray.remote(num_cpus=1, max_retries=3)(_quietly)
        here = Path.cwd()
        waiting = {task.remote(do, item, here): i for i, item in enumerate(items)}
        with parts(len(items), title, "part", progress=progress) as begins:
            while waiting:
                begins()
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                i = waiting.pop(done)
                try:
                    if problem := ray.get(done):
                        failures[i] = problem
                except ray.exceptions.RayError as e:
                    failures[i] = one_line(e)
    return failures


def ray_map(
    do: Callable[[T], K], items: Iterable[T], workers: int = 0, threads: int = 1
) -> Iterator[K]:
    """Yield a function's results for the items, in order, one task each.

    A task that was lost too often is done here. An exception of a task is raised here. An item is
    taken, and sent, when so many `workers`, by default all, have at most one other to wait for.
    """
    with cluster(workers * threads or None) as ray:
        task = ray.remote(num_cpus=threads, max_retries=3)(_there)
        here, waiting = Path.cwd(), deque[tuple[T, Any]]()
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 0)) // threads)

        def first() -> K:
            item, result = waiting.popleft()
            try:
                found: K = ray.get(result)
            except ray.exceptions.RayTaskError as e:
                raise (e.cause or e) from None
            except ray.exceptions.RayError as e:
                log.warning("%s; it is tried again here", one_line(e))
                return do(item)
            return found

        for item in items:
            waiting.append((item, task.remote(do, item, here)))
            if len(waiting) > workers:
                yield first()
        while waiting:
            yield first()


def one_line(error: Exception) -> str:
    """Return an error of Ray in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _there(do: Callable[[T], K], item: T, folder: Path) -> K:
    os.chdir(folder)
    return do(item)


def _quietly(do: Callable[[T], None], item: T, folder: Path) -> str:
    """Call a function in a folder with one thread; return an error in one line, or nothing."""
    import torch

    torch.set_num_threads(1)
    try:
        _there(do, item, folder)
    except Exception as e:
        return error_text(e)
    return ""


def do_runs(jobs: Sequence[Any], title: str, *, progress: bool = False) -> None:
    """Execute every unfinished `Job`, one task each.

    Failures are left to `stforecast.bench.jobs.do_jobs`, which is called afterwards: it collects
    finished runs, retries the others and records failures.
    """
    todo = [job for job in jobs if job.finished() is None]
    for i, problem in do_each(_do_run, todo, title, progress=progress).items():
        log.warning("%s: %s; it is tried again here", todo[i].name, problem)


def _do_run(job: Any) -> None:
    if job.finished() is None:
        job.run(progress=False)
