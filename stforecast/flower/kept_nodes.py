"""Nodes that a process keeps in memory between two messages.

A SuperNode starts a process for every message (Flower 1.41), but in its simulation a process
answers many, and most of them find their node ready. The disk stays the truth: a node is made anew
when its cube or its checkpoints are not what it last saw.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from stforecast.federated.nodes.messages import Message
from stforecast.flower.node import FlowerNode, Place
from stforecast.flower.settings import RunSettings

MOST = 4
"""Nodes that are kept; the one unused for longest goes first."""

_kept: dict[str, FlowerNode] = {}
_lock = threading.Lock()


def answer(
    run: RunSettings, node_config: Mapping[str, Any], run_id: int, message: Message
) -> Message:
    """A node's answer to a message.

    Args:
        run: what the run's configuration says.
        node_config: what the node's owner says.
        run_id: Flower's number of the run.
        message: from the server.

    Raises:
        InputError: if the configuration, the data or the message cannot be used.
    """
    place = Place.of(node_config, run_id)
    cube = place.data.stat()
    key = json.dumps(
        [run_id, run.as_run_config(), [str(p) for p in place], cube.st_mtime_ns, cube.st_size]
    )
    # Nobody else finds the node meanwhile, nor after an error: its memory may differ from its disk.
    with _lock:
        node = _kept.pop(key, None)
    if node is None or not node.current:
        node = FlowerNode(run, place)
    found = node.answer(message)
    if message.about.get("task") != "finish":
        with _lock:
            _kept[key] = node
            for oldest in list(_kept)[:-MOST]:
                del _kept[oldest]
    return found
