"""Flower's SuperNode, started again until it joins whenever it ends.

The server keeps a place for a node that was killed for about a minute (Flower's lease). Until then
it refuses the same key, and the SuperNode that was started again ends at once with Flower's error
2004; an unknown key looks the same. So for five minutes, several leases, a refusal is
taken for a lease.

Every program is started in a process group of its own, so its children are stopped with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import psutil

from data_prep.base.errors import InputError, Words

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 10.0
"""Seconds before a new start: the wait doubles from the first to the longest."""

UNREACHABLE = "Connection attempt failed"
REFUSAL = r"\[code: 2004\]"

HOST = "127.0.0.1"

GRACE = 5.0
"""Seconds that a process has to terminate before it is killed."""


def find_program(name: str) -> str:
    """Find a program next to this Python, or on the path."""
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


def environment() -> dict[str, str]:
    """Return the environment of Flower's programs, which find each other by the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
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
    """Stop a group leader and all of its descendants, which are killed after some seconds."""
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
    """Let Linux end this process, which is about to start another program, with its parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # It may be ignored where this was started.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def start_program(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in a process group of its own, without input; it ends with this process."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_parent,
        **options,
    )


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


class KeptProcess:
    """A node's process, started again whenever it ends, as a context manager.

    It is named in the log, and waits some seconds before a process that ended is started again.
    """

    def __init__(self, name: str, program: Sequence[str], wait: float = FIRST_WAIT) -> None:
        self.name, self.program, self.wait = name, program, wait

    def __enter__(self) -> Self:
        """Start the process."""
        self._ended = threading.Event()
        self.process = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the process."""
        self._ended.set()
        stop_all_of(self.process)
        self._keeper.join()

    def _start(self) -> subprocess.Popen[Any]:
        return start_program([sys.executable, *self.program])

    def _keep(self) -> None:
        while True:
            code = self.process.wait()
            if self._ended.wait(self.wait):
                return
            log.warning("the node's %s ended (code %d); it is started again", self.name, code)
            self.process = self._start()
            if self._ended.is_set():  # Since the wait ended.
                stop_all_of(self.process)


@dataclass
class Ending:
    """What one SuperNode printed, as far as it tells why it ended.

    Attributes:
        joined: time at which it joined; None if it did not.
        code: its exit code; negative if a signal ended it.
        lines: its last lines.
    """

    joined: float | None = None
    code: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    @property
    def text(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)

    def failed_by(self, said: str) -> re.Match[str] | None:
        """Return the match of a pattern in its last lines; None if it has joined."""
        return re.search(said, self.text) if self.joined is None else None

    @property
    def permanent(self) -> bool:
        """Return whether another try would end in the same way."""
        unreachable = "Exit Code: 305" in self.text  # Or it refuses.
        return self.joined is None and self.code > 0 and not unreachable

    @property
    def reason(self) -> str:
        """Return Flower's error, or else the last line."""
        error = r"(?<=Exit Code: )\d+(?s:.*?)(?=\nFor more information|\Z)"
        if found := re.search(error, self.text):
            return " ".join(found[0].split())
        return self.lines[-1] if self.lines else "it printed nothing"


@dataclass
class Supervisor:
    """Keeps a SuperNode running.

    Args:
        command: returns the command that starts it, given the port of its API for processes on
            this machine.
        superlink: address of the server, for messages.
        answers: program of Python that answers its messages, given the address of that API.
        refused: seconds of refusals after which it gives up.
        waits: shortest and longest wait before a new start, in seconds.
    """

    command: Callable[[int], list[str]]
    superlink: str
    answers: Sequence[str] = ()
    refused: float = 300.0
    waits: tuple[float, float] = (FIRST_WAIT, LONGEST_WAIT)
    _refused_since: float | None = field(default=None, init=False)

    def run(self) -> None:
        """Start the SuperNode, and start it again when it ends, until SIGINT or SIGTERM.

        Raises:
            InputError: if it ends for a reason that does not pass.
        """
        try:
            with signals_raise():
                wait = self.waits[0]
                while True:
                    ending = self._run_once()
                    if ending.joined and time.monotonic() - ending.joined > 60:
                        wait = self.waits[0]
                    self._check(ending)
                    log.warning("%s; again in %g s", self._reason(ending), wait)
                    time.sleep(wait)
                    wait = min(2 * wait, self.waits[1])
        except Signalled as e:
            log.info("stopped by %s; the node has left the federation", e)

    def _run_once(self) -> Ending:
        """Run a SuperNode until it ends."""
        port = free_port()
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
        process = start_program(self.command(port), env=environment(), **output)
        ending = Ending()
        reader = threading.Thread(target=self._read, args=(process.stdout, ending), daemon=True)
        reader.start()
        answers = KeptProcess("app", (*self.answers, f"{HOST}:{port}"))
        try:
            with answers if self.answers else contextlib.nullcontext():
                ending.code = process.wait()
        finally:
            stop_all_of(process, grace=10.0)  # In which it leaves the federation.
            reader.join(2.0)
        return ending

    def _read(self, lines: IO[str], ending: Ending) -> None:
        """Log what a SuperNode prints and note what tells its state."""
        begin = re.compile(r"^(?:\x1b\[\d+m)*(DEBUG|INFO|WARNING|ERROR) *(?:\x1b\[0m)?:\s*")
        for line in lines:
            found, level = begin.match(line), logging.INFO
            if found:  # Flower informs of several lines a message.
                level = logging.DEBUG if found[1] == "INFO" else getattr(logging, found[1])
            text = re.sub(r"\x1b\[\d*m", "", line[found.end() :] if found else line).rstrip()
            if not text:
                continue
            log.log(level, "flower: %s", text)
            if found := re.search(r"SuperNode ID: (\d+)", text):
                ending.joined, self._refused_since = time.monotonic(), None
                log.info("joined the federation at %s as node %s", self.superlink, found[1])
            if UNREACHABLE in text and UNREACHABLE not in ending.text:
                log.warning("no server answers at %s yet; trying on", self.superlink)
            ending.lines.append(text)

    def _reason(self, ending: Ending) -> str:
        if ending.joined is not None:
            return "the SuperNode ended"
        if ending.failed_by(REFUSAL):
            return (
                f"{self.superlink} does not let this node in: it still counts the node that was "
                "here before (for about a minute), or does not know the key"
            )
        return f"no connection to {self.superlink} ({ending.reason[:300]})"

    def _check(self, ending: Ending) -> None:
        """Raise an error if another try would not help."""
        if why := ending.failed_by(r"certificate verify failed: ([^(\n]*[^(\n. ])"):
            raise InputError(
                f"{self.superlink} shows a certificate that this node does not trust ({why[1]}); ",
                Words("give its authority's, such as ca.crt, as {root_certificates}, "),
                "or ask the server's owner for one that is valid now and has the server's name",
            )
        if ending.failed_by(r"\[code: 2001\]"):
            raise InputError(
                f"{self.superlink} lets in only nodes with a key that it knows; make one "
                "with ssh-keygen (docs/federation.md), let the server's owner register its public "
                "half, and ",
                Words("give {key}"),
            )
        if ending.permanent:
            raise InputError(f"the SuperNode cannot start: {ending.reason[:300]}")
        if not ending.failed_by(REFUSAL):
            self._refused_since = None
            return
        if self._refused_since is None:
            self._refused_since = time.monotonic()
        elif time.monotonic() - self._refused_since >= self.refused:
            raise InputError(
                f"{self.superlink} has refused this node for {self.refused:g} s; let its key in "
                "with `flwr supernode register KEY.pub`, or stop the other node that uses the key"
            )
