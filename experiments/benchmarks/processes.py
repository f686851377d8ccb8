"""Memory and processor time of processes and all that they started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

import psutil


def memory(pids: Collection[int]) -> float:
    """Return the proportional set size of processes and all that they started, in MB.

    Args:
        pids: numbers of the processes; one that has ended has none.
    """
    return _sum(pids, lambda process: process.memory_full_info().pss) / 1e6


def processor_time(pids: Collection[int]) -> float:
    """Return the seconds that processes and all that they started have had, ended ones too.

    Args:
        pids: numbers of the processes; one that has ended counts with the one that started it.
    """
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
