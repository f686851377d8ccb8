"""Flower's `ClientApp`, which answers on nodes and keeps them in memory between messages."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from data_prep.base.errors import InputError
from data_prep.base.files import WriteError
from stforecast.federated.nodes.messages import OF_SUMS, Message
from stforecast.federated.nodes.run_settings import FederationSettings
from stforecast.flower.node import FlowerNode, NodePlace, check_allowed, in_sum, in_totals
from stforecast.flower.settings import read_run
from stforecast.flower.telemetry import show_log
from stforecast.flower.totals import OF_TOTALS
from stforecast.flower.wire import pack, unpack

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
    place = NodePlace.of(node_config, message.about.get("run"))
    task = message.about.get("task")
    if task in OF_SUMS:
        return in_sum(run, place, message)
    if task in OF_TOTALS:
        return in_totals(run, place, message)
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


def answer(
    content: Any, run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> Message | str:
    """Answer a message of the server, given Flower's content of it, or return why there is none.

    The reason is the class of an error. Its text, with paths, cells, times and values, stays in
    this node's log, but for a file that cannot be written.
    """
    show_log()
    try:
        return answer_of_node(read_run(run_config), node_config, unpack(content))
    except Exception as e:
        log.error("no answer to the server: %s", e, exc_info=not isinstance(e, InputError))
        return str(e) if isinstance(e, WriteError) else type(e).__name__


def make_client_app() -> Any:
    """Return Flower's `ClientApp`, which answers for a node."""
    import flwr.app
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        found = answer(message.content, dict(context.run_config), dict(context.node_config))
        if isinstance(found, str):
            return without_answer(message, found)
        return flwr.app.Message(pack(found), reply_to=message)

    return app


def without_answer(message: Any, why: str) -> Any:
    """Return the error that a node sends when it cannot answer a message."""
    import flwr.app

    error = flwr.app.Error(100, f"{why}, see the node's own log")  # Flower's own codes are below.
    return flwr.app.Message(error, reply_to=message)
