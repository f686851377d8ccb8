"""Settings of a node, and the command that starts its SuperNode.

Keeps the processes running that stay on a node: its worker, and the starter of Flower's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from data_prep.base.errors import InputError, no_file
from data_prep.base.files import claim_folder
from stforecast.flower.app_starter import write_programs
from stforecast.flower.hand_over import SECURE_ONLY, WORKER
from stforecast.flower.supernode import HOST, end_with_parent, find_program, free_port, stop_all_of

ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})")
PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a node, which its owner gives.

    Attributes:
        superlink: address of the server, as HOST:PORT.
        data: cube of this node, written by `stforecast prepare`.
        first_client: number of its first cell in the whole federation, from 0.
        out: folder for the clients' state and results; by default beside the cube.
        root_certificates: certificate of the authority that signed the server's; by default those
            of the system.
        key: private key of this node (P-384), of which the server knows the public half.
        require_secure_aggregation: take part only in runs with secure aggregation.
        insecure: use no encryption, for trials on one machine.
        worker: answer all messages from one process that stays; else from a new one for each, which
            needs less memory between them.
    """

    superlink: str
    data: Path
    first_client: int
    out: Path | None = None
    root_certificates: Path | None = None
    key: Path | None = None
    require_secure_aggregation: bool = False
    insecure: bool = False
    worker: bool = True

    def check(self) -> None:
        """Check all that can be known before the server is asked.

        Raises:
            InputError: with the first setting that cannot be used.
        """
        found = ADDRESS.fullmatch(self.superlink)
        if found is None or not 0 < int(found[2]) < 2**16:
            raise InputError(
                f"superlink is {self.superlink!r}; give the server's name and port without "
                "https://, such as forecast.example.org:8000"
            )
        if self.first_client < 0:
            raise InputError(
                f"first_client is {self.first_client}; the clients of a federation count from 0"
            )
        if not self.data.is_file():
            raise no_file(self.data, "cube", "write one with `stforecast prepare`")
        if self.insecure and (self.root_certificates or self.key):
            raise InputError("insecure uses neither certificates nor keys; leave it out")
        for path in (self.root_certificates, self.key):
            if path and not path.is_file():
                raise no_file(
                    path, "certificate or key", "see docs/federation.md for how to make it"
                )
        if self.key and not PRIVATE.match(self.key.read_bytes()[:100]):
            raise InputError(
                f"{self.key}: not a private key; give the file that ssh-keygen wrote, "
                "not the one that ends in .pub"
            )

    def command(self, worker: Path | None = None) -> list[str]:
        """Return the command that starts the SuperNode.

        Args:
            worker: socket of the node's worker, if there is one.
        """
        given: dict[str, str | int] = {
            "data": str(self.data.resolve()), "first-client": self.first_client,
        }  # fmt: skip
        if self.out:
            given["out"] = str(self.out.resolve())
        if self.require_secure_aggregation:
            given[SECURE_ONLY] = True
        if worker:
            given[WORKER] = str(worker)
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        files = {
            "--root-certificates": self.root_certificates,
            "--auth-supernode-private-key": self.key,
        }
        return [
            find_program("flower-supernode"), "--superlink", self.superlink,
            "--host", HOST, "--port", str(free_port()), "--node-config", words,
            *(f"{flag}={path.resolve()}" for flag, path in files.items() if path),
            *(["--insecure"] if self.insecure else []),
        ]  # fmt: skip


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
