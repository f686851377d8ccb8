"""Flower's programs on this machine, the ports that they take, and how they are stopped.

Every program is started in a process group of its own, so its children are stopped with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from data_prep.errors import InputError

HOST = "127.0.0.1"

GRACE = 5.0
"""Seconds that a process has to terminate before it is killed."""

PR_SET_PDEATHSIG = 1
"""Linux's number of the request for a signal when the parent ends."""


def find_program(name: str) -> str:
    """Find a program next to this Python, or on the path.

    Raises:
        InputError: if there is none.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"{name} is not installed; pip install 'stforecast[flower]'")
    return found


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])


def environment(*folders: Path | None) -> dict[str, str]:
    """Return the environment of Flower's programs, which find each other by the path.

    Args:
        *folders: folders in which they look first; None for none.
    """
    first = [str(f) for f in (*folders, Path(sys.executable).parent) if f]
    path = os.pathsep.join([*first, os.environ.get("PATH", os.defpath)])
    return {"FLWR_TELEMETRY_ENABLED": "0", **os.environ, "PATH": path}


class Signalled(BaseException):
    """A signal to stop."""


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `Signalled` on SIGINT and SIGTERM; further ones are ignored while it is handled."""

    def stop(number: int, frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Signalled(signal.Signals(number).name)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_all_of(
    process: subprocess.Popen[Any], how: signal.Signals = signal.SIGTERM, grace: float = GRACE
) -> None:
    """Stop a group leader and all of its descendants.

    Args:
        process: the group leader.
        how: signal that they get first.
        grace: seconds that the leader has to terminate before all are killed.
    """
    groups = process_groups(process.pid)
    _signal(groups, how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    left = _signal(groups, signal.SIGKILL)
    process.wait()
    end = time.monotonic() + GRACE
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = _signal(left, signal.SIGKILL)


def end_with_parent() -> None:
    """Let Linux end this process when the one that started it is killed.

    For a process that is about to start another program.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # It may be ignored where this was started.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def process_groups(pid: int) -> set[int]:
    """Return the groups of a group leader and of its descendants, which may have their own."""
    groups = {pid}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(child.pid))
    return groups


def _signal(groups: set[int], number: signal.Signals) -> set[int]:
    """Signal process groups and return those that still exist."""
    found = set()
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
            found.add(group)
    return found
