"""The long-lived worker of a node: `python -m stforecast.flower.worker SOCKET`.

It answers the messages that Flower's processes hand over, one after the other, with nodes that it
keeps in memory. `stforecast node` starts it, and starts it again if it ends.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from data_prep.base.errors import InputError
from stforecast.flower import kept_nodes
from stforecast.flower.hand_over import ABOUT, PAYLOAD, Array, Arrays, receive, send
from stforecast.flower.settings import RunSettings
from stforecast.flower.standing import show_log
from stforecast.flower.wire import encode, unpack

log = logging.getLogger(__name__)


def answer(about: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, str], dict[str, Array]]:
    """Answer a message of the server, given its text, its tensors and the settings.

    Without an answer, the class of the `error` is returned. Its text, with paths, cells, times and
    values, stays in this node's log.
    """
    show_log()
    try:
        run = RunSettings.from_run_config(about["run"])
        asked = unpack({ABOUT: {"json": about["text"]}, PAYLOAD: arrays})
        text, found = encode(kept_nodes.answer(run, about["node"], asked))
    except Exception as e:
        log.error("no answer to the server: %s", e, exc_info=not isinstance(e, InputError))
        return {"error": type(e).__name__}, {}
    return {"text": text}, found


def serve(listener: Listener) -> None:
    """Answer all that connect, one after the other."""
    while True:
        connection = listener.accept()
        assert isinstance(connection, Connection)
        with connection:
            try:
                send(connection, *answer(*receive(connection)))
            except Exception as e:
                # Flower may end its process before it has its answer.
                log.warning("a message was not handed over: %r", e)


def main(socket: str) -> None:
    """Listen on a socket that only this user may use."""
    os.umask(0o077)
    show_log()
    Path(socket).unlink(missing_ok=True)  # Of a worker that was killed.
    with Listener(socket, "AF_UNIX") as listener:
        serve(listener)


if __name__ == "__main__":
    main(sys.argv[1])
