"""Keeps the processes running that stay on a node: its worker, and the starter of Flower's."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from data_prep.atomic import claim_folder
from stforecast.flower.app_starter import write_programs
from stforecast.flower.programs import end_with_parent, stop_all_of

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds before a process that ended is started again, by default."""


@contextlib.contextmanager
def private_folder(name: str) -> Iterator[Path]:
    """Yield a temporary folder that only this user may enter; those of killed nodes are removed."""
    folder, lock = claim_folder(Path(tempfile.gettempdir()), f"stforecast-{name}-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


class KeptProcess:
    """A node's process, started again whenever it ends, as a context manager.

    Its socket lies in a temporary folder that only this user may enter.

    Args:
        name: its name in the log.
        program: arguments of Python, before the socket.
        wait: seconds before a process that ended is started again.

    Attributes:
        folder: its temporary folder.
        socket: path of the socket.
        process: the process.
    """

    def __init__(self, name: str, program: Sequence[str], wait: float = WAIT) -> None:
        self.name, self.program, self.wait = name, program, wait

    def __enter__(self) -> Self:
        """Start the process."""
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(private_folder(self.name))
        self.socket = self.folder / "socket"
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
        self._stack.close()

    def _start(self) -> subprocess.Popen[Any]:
        self.socket.unlink(missing_ok=True)
        return subprocess.Popen(
            [sys.executable, *self.program, str(self.socket)],
            stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip

    def _keep(self) -> None:
        while True:
            code = self.process.wait()
            if self._ended.wait(self.wait):
                return
            log.warning("the node's %s ended (code %d); it is started again", self.name, code)
            self.process = self._start()
            if self._ended.is_set():  # Since the wait ended.
                stop_all_of(self.process)


def kept_worker() -> KeptProcess:
    """Return a node's worker, see `stforecast.flower.worker`."""
    return KeptProcess("worker", ("-m", "stforecast.flower.worker"))


@contextlib.contextmanager
def node_programs(fork: bool) -> Iterator[Path]:
    """Yield a folder with the programs of a node's messages, to be put first on its path.

    Args:
        fork: whether a process stays that forks them, see `stforecast.flower.app_starter`.

    Raises:
        InputError: if Flower is not installed.
    """
    if fork:
        with KeptProcess("starter", ("-m", "stforecast.flower.app_starter")) as starter:
            write_programs(starter.folder, starter.socket)
            yield starter.folder
    else:
        with private_folder("programs") as folder:
            write_programs(folder)
            yield folder
