"""Keeps the processes running that stay on a node: its worker, and the starter of Flower's."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from stforecast.flower.app_starter import PROGRAM, write_program
from stforecast.flower.programs import end_with_parent, find_program, stop_all_of

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds before a process that ended is started again, by default."""


class KeptProcess:
    """A node's process, started again whenever it ends, as a context manager.

    Its socket lies in a temporary folder that only this user may enter.

    Args:
        name: its name in the log.
        program: arguments of Python, before the socket.
        wait: seconds before a process that ended is started again.

    Attributes:
        socket: path of the socket.
        process: the process.
    """

    def __init__(self, name: str, program: Sequence[str], wait: float = WAIT) -> None:
        self.name, self.program, self.wait = name, program, wait

    def __enter__(self) -> Self:
        """Start the process."""
        # Of mode 0700.
        self._folder = tempfile.TemporaryDirectory(prefix=f"stforecast-{self.name}-")
        self.socket = Path(self._folder.name) / "socket"
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
        self._folder.cleanup()

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


class KeptStarter(KeptProcess):
    """A node's starter of Flower's processes, see `stforecast.flower.app_starter`.

    Attributes:
        programs: folder with the program that asks it, to be put first on the path.

    Raises:
        InputError: if Flower is not installed.
    """

    def __init__(self) -> None:
        super().__init__("starter", ("-m", "stforecast.flower.app_starter"))
        self.instead = find_program(PROGRAM)

    def __enter__(self) -> Self:
        """Start the process, and write the program that asks it."""
        super().__enter__()
        self.programs = self.socket.parent
        write_program(self.programs, self.socket, self.instead)
        return self
