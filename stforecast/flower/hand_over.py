"""Hand a message over from Flower's process to the node's long-lived worker, and its answer back.

Flower 1.41 starts a process for every message. That process is quick to start as long as it imports
neither torch nor pandas, so it hands the message over to `stforecast.flower.worker`. This module is
what both sides need, and imports as little.

They talk through a Unix socket in a folder that only the node's owner may enter. A message is a
JSON text followed by the bytes of its tensors, as Flower holds them. Nothing is unpickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

ABOUT, PAYLOAD = "about", "payload"
"""Names of the records of a message of Flower's: one JSON text, and the tensors."""

WORKER = "worker"
"""Key of the socket's path in the configuration of a node."""

SECURE_ONLY = "require-secure-aggregation"
"""Key of whether a node takes part only in runs with secure aggregation."""

ALLOW = "allow-disclosure"
"""Key of whether a node takes part where others can compute its readings."""

PATIENCE = 60.0
"""Seconds that a worker may take to start."""


class Array(NamedTuple):
    """A tensor with the attributes of Flower's `Array`; `stype` is the format of `data`."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


Arrays = Mapping[str, Array]
"""Tensors by name, of this class or of Flower's."""


def send(connection: Connection, about: Mapping[str, Any], arrays: Arrays) -> None:
    """Send JSON values and tensors."""
    heads = [[name, a.dtype, a.shape, a.stype] for name, a in arrays.items()]
    connection.send_bytes(json.dumps({"values": about, "arrays": heads}).encode())
    for a in arrays.values():
        connection.send_bytes(a.data)


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, Array]]:
    """Receive what `send` sent."""
    found = json.loads(connection.recv_bytes())
    arrays = {
        name: Array(dtype, tuple(shape), stype, connection.recv_bytes())
        for name, dtype, shape, stype in found["arrays"]
    }
    return found["values"], arrays


def ask_worker(
    socket: str, about: Mapping[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a worker's answer; the worker may still be starting."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            connection = Client(socket, "AF_UNIX")
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    with connection:
        send(connection, about, arrays)
        return receive(connection)


def content_of(text: str, arrays: Arrays) -> Any:
    """Return Flower's content of a message, a `RecordDict`."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {ABOUT: ConfigRecord({"json": text})}
    if arrays:
        records[PAYLOAD] = ArrayRecord(
            {n: Array(a.dtype, a.shape, a.stype, a.data) for n, a in arrays.items()}
        )
    return RecordDict(records)
