"""The long-lived worker of a node: `python -m stforecast.flower.worker SOCKET`.

It answers the messages that Flower's processes hand over, one after the other, with nodes that it
keeps in memory. `stforecast node` starts it, and starts it again if it ends. In Flower's simulation
a process answers many messages by itself, and keeps nodes, too.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from data_prep.base.errors import InputError
from data_prep.base.files import WriteError
from stforecast.federated.nodes.messages import OF_SUMS, Message
from stforecast.federated.nodes.run_settings import FederationSettings
from stforecast.flower.hand_over import ABOUT, PAYLOAD, Array, Arrays, receive, send
from stforecast.flower.node import FlowerNode, Place, check_allowed, in_sum
from stforecast.flower.settings import read_run
from stforecast.flower.telemetry import show_log
from stforecast.flower.wire import encode, unpack

log = logging.getLogger(__name__)

MOST = 4
"""Largest number of cached nodes; the least recently used is dropped first."""

_kept: dict[str, FlowerNode] = {}
_lock = threading.Lock()


def answer_of_node(
    run: FederationSettings, node_config: Mapping[str, Any], message: Message
) -> Message:
    """Return a node's answer to a message.

    A node is rebuilt from disk if its data or its checkpoints have changed since it last read or
    wrote them.
    """
    check_allowed(run, node_config)
    place = Place.of(node_config, message.about.get("run"))
    task = message.about.get("task")
    if run.secure and task in OF_SUMS:
        return in_sum(run, place, message)
    before = message.about["round"] if task == "round" else None
    files = [path.stat() for path in (place.data, *place.data.rglob("*"))]
    changed = max(s.st_mtime_ns for s in files), sum(s.st_size for s in files), len(files)
    key = json.dumps([run.as_run_config(), [str(p) for p in place], *changed])
    # Other threads cannot use the node meanwhile, and after an error it is dropped: its memory may
    # differ from its disk.
    with _lock:
        node = _kept.pop(key, None)
    if node is None or not node.current(before):
        node = FlowerNode(run, place, before)
    found = node.answer(message)
    if task != "finish":
        with _lock:
            _kept[key] = node
            for oldest in list(_kept)[:-MOST]:
                del _kept[oldest]
    return found


def answer(about: Mapping[str, Any], arrays: Arrays) -> tuple[dict[str, str], dict[str, Array]]:
    """Answer a message of the server, given its text, its tensors and the settings.

    Without an answer, the class of the `error` is returned. Its text, with paths, cells, times and
    values, stays in this node's log, but for a file that cannot be written.
    """
    show_log()
    try:
        run = read_run(about["run"])
        asked = unpack({ABOUT: {"json": about["text"]}, PAYLOAD: arrays})
        text, found = encode(answer_of_node(run, about["node"], asked))
    except Exception as e:
        log.error("no answer to the server: %s", e, exc_info=not isinstance(e, InputError))
        return {"error": str(e) if isinstance(e, WriteError) else type(e).__name__}, {}
    return {"text": text}, found


def serve_messages(listener: Listener) -> None:
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
        serve_messages(listener)


if __name__ == "__main__":
    main(sys.argv[1])
