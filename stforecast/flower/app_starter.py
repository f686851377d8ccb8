"""The starter of a node: `python -m stforecast.flower.app_starter SOCKET`.

Flower 1.41 starts the program `flwr-clientapp` for every message, and most of its time goes into
importing Flower. So `stforecast node` puts a program of this name first on the path of its
SuperNode. It asks the starter, which has imported Flower once, to fork; the fork then runs as
`flwr-clientapp` with the same arguments and outputs. Where that fails, a new process does the same.
Either way it is `stforecast.flower.own_app` that runs, and no other program of apps does.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import select
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from stforecast.flower import own_app
from stforecast.flower.own_app import PROGRAM
from stforecast.flower.supernode import find_program

log = logging.getLogger(__name__)

ASK = """
import os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as starter:
        starter.connect({socket!r})
        words = [str(os.getppid()), *sys.argv[1:]]
        socket.send_fds(starter, [b"\\0".join(map(os.fsencode, words))], [1, 2])
        starter.shutdown(socket.SHUT_WR)
        if not starter.recv(1):
            raise OSError
except OSError:
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
"""
"""Program that asks for a fork, and runs another program unless a fork answers.

It imports little, so that it takes some hundredths of a second.
"""

BUFFER = 2**16
"""Bytes read at once; Flower's arguments have some two hundred."""

PATIENCE = 10.0
"""Seconds that one that asks may take to send its arguments."""


def can_fork() -> bool:
    """Return whether forks of a process that has imported Flower are safe on this system."""
    return sys.platform == "linux"


def write_programs(folder: Path, starter: Path | None = None) -> None:
    """Write the programs that take the place of Flower's.

    Args:
        folder: folder that is put first on the path.
        starter: socket of the process that forks, if there is one.

    Raises:
        InputError: if Flower is not installed.
    """
    find_program(PROGRAM)
    for each in entry_points(group="console_scripts"):
        if each.name.startswith("flwr-"):  # Those of agents, connectors and servers.
            _write(folder / each.name, "false")
    _write(folder / (own := "own-app"), shlex.join([sys.executable, "-m", own_app.__name__]))
    write_program(folder, starter, str(folder / own))


def write_program(folder: Path, starter: Path | None, instead: str) -> None:
    """Write the program of a message.

    Args:
        folder: folder that is put first on the path.
        starter: socket of the process that forks, if there is one.
        instead: what runs where nothing forks.
    """
    if starter is None:
        _write(folder / PROGRAM, shlex.quote(instead))
        return
    ask = folder / "ask.py"
    ask.write_text(ASK.format(socket=str(starter), program=instead))
    # Without the folders of installed packages, whose search takes longer than all else here.
    _write(folder / PROGRAM, shlex.join([sys.executable, "-I", "-S", str(ask)]))


def _write(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o700)


def serve(
    listener: socket.socket, program: Callable[[], object], patience: float = PATIENCE
) -> None:
    """Fork for all that ask, one after the other.

    Args:
        listener: where they ask.
        program: what a fork runs, with the arguments in `sys.argv`.
        patience: seconds that one may take to send its arguments.
    """
    fork = multiprocessing.get_context("fork")
    while True:
        connection, _ = listener.accept()
        outputs: list[int] = []
        with connection:
            try:
                connection.settimeout(patience)
                text, outputs, *_ = socket.recv_fds(connection, BUFFER, 2)
                while more := connection.recv(BUFFER):
                    text += more
                if len(outputs) == 2:
                    words = [os.fsdecode(word) for word in text.split(b"\0")]
                    args = (listener, connection, program, words, outputs)
                    fork.Process(target=_run, args=args).start()
            except OSError as e:
                log.warning("no fork for a message, which a new process answers: %r", e)
            finally:
                for number in outputs:
                    os.close(number)


def _run(
    listener: socket.socket,
    connection: socket.socket,
    program: Callable[[], object],
    words: Sequence[str],
    outputs: Sequence[int],
) -> None:
    """Run the program in a fork that ends with Flower's process, which had started the program."""
    listener.close()  # Else others could still connect when the starter has ended.
    parent, *args = words
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    with connection:
        connection.sendall(b"1")
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    sys.argv = [PROGRAM, *args]
    program()


def _end_with(pid: int) -> None:
    """End this process when another one ends, as Flower's own watch does not where it waits."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    os._exit(1)


def main(path: str) -> None:
    """Import Flower, and listen on a socket that only this user may use."""
    os.umask(0o077)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        serve(listener, own_app.own_program())


if __name__ == "__main__":
    main(sys.argv[1])
