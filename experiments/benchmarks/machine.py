"""The machine, functions in processes of their own, and what processes use."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

CORES = os.cpu_count() or 1

_made: Callable[[], Any]


def processor() -> str:
    """Return the processor's name, as far as the system tells."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {CORES} cores"


def machine() -> dict[str, str]:
    """Return the processor, the versions that matter, and today's date."""
    return {
        "processor": processor(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


@contextlib.contextmanager
def own_process(make: Callable[..., Callable[[], T]], *args: Any) -> Iterator[Callable[[], T]]:
    """Yield what `make(*args)` returns, made and called in a new process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (make, *args)) as pool:
        pool.submit(int)  # The first task starts the process, so that several start together.
        yield lambda: pool.submit(_call).result()


def _prepare(make: Callable[..., Callable[[], Any]], *args: Any) -> None:
    global _made
    _made = make(*args)


def _call() -> Any:
    return _made()


def in_own_process(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a new process, to measure its memory and CPU time alone."""
    with own_process(partial, function, *args) as call:
        return call()


def own_memory(kind: str) -> int:
    """Return this process's memory in kB: `RssAnon`, now and without files, or `VmHWM`, peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[kind].split()[0])


def memory(pids: Collection[int]) -> float:
    """Return the proportional set size of processes and all that they started, in MB."""
    return _sum(pids, lambda process: process.memory_full_info().pss) / 1e6


def processor_time(pids: Collection[int]) -> float:
    """Return the seconds that processes and all that they started have had, ended ones too."""
    # Its own, and that of children that ended and were waited for.
    return _sum(pids, lambda process: sum(process.cpu_times()[:4]))


def _sum(pids: Collection[int], value: Callable[[psutil.Process], float]) -> float:
    """Sum a value over processes and their descendants; any of them may end meanwhile."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    total = 0.0
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += value(process)
    return total
