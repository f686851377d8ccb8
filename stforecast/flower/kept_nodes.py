"""Cache of nodes that a process keeps in memory between two messages.

A SuperNode starts a process for every message (Flower 1.41), but in Flower's simulation a process
answers many, mostly with a cached node. A node is rebuilt from disk if its cube or its checkpoints
have changed since it last read or wrote them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from stforecast.federated.nodes.messages import OF_SUMS, Message
from stforecast.flower.node import FlowerNode, Place, check_secure_only, in_sum
from stforecast.flower.settings import RunSettings

MOST = 4
"""Largest number of cached nodes; the least recently used is dropped first."""

_kept: dict[str, FlowerNode] = {}
_lock = threading.Lock()


def answer(run: RunSettings, node_config: Mapping[str, Any], message: Message) -> Message:
    """Return a node's answer to a message."""
    check_secure_only(run, node_config)
    place = Place.of(node_config, message.about.get("run"))
    task = message.about.get("task")
    if run.secure and task in OF_SUMS:
        return in_sum(run, place, message)
    before = message.about["round"] if task == "round" else None
    cube = place.data.stat()
    key = json.dumps([run.as_run_config(), [str(p) for p in place], cube.st_mtime_ns, cube.st_size])
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
