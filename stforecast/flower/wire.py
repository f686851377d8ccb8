"""Conversion of a federation's messages to Flower's, and the link to its nodes.

Flower's message holds two records: `about`, one JSON text, and `payload`, the tensors. Flower
unpickles nothing.
"""

from __future__ import annotations

import io
import json
import math
import threading
import time
from collections.abc import Collection, Mapping
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from stforecast.federated.nodes.messages import Message

ABOUT, PAYLOAD = "about", "payload"
"""Names of the records of a message of Flower's: one JSON text, and the tensors."""

MOST_TEXT, MOST_TENSORS, MOST_HEADER = 2**24, 10_000, 1_000
"""Limits of a message: characters of `about`, tensors, characters of a tensor's header."""

NUMPY = "numpy.ndarray"
"""Flower's name of the format of numpy's files."""

POLL = 1.0
"""Seconds between two looks for an answer, and for lost nodes."""


def pack(message: Message) -> Any:
    """Convert a message to Flower's content, a `RecordDict`; tensors as numpy's files."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {ABOUT: ConfigRecord({"json": json.dumps(message.about)})}
    arrays = {}
    for name, t in message.payload.items():
        values, file = np.ascontiguousarray(t.detach().cpu().numpy()), io.BytesIO()
        values = values.reshape(t.shape)  # numpy makes a number an array of one.
        npy.write_array(file, values, version=(1, 0), allow_pickle=False)
        arrays[name] = Array(str(values.dtype), values.shape, NUMPY, file.getvalue())
    if arrays:
        records[PAYLOAD] = ArrayRecord(arrays)
    return RecordDict(records)


def unpack(content: Any) -> Message:
    """Convert Flower's content, which is not trusted, to a message.

    Nothing is allocated beyond the size of what arrived.

    Raises:
        ValueError: if it is not a message of this package.
    """
    try:
        text = content[ABOUT]["json"]
        if len(text) > MOST_TEXT:
            raise ValueError(f"{len(text)} characters")
        about = json.loads(text)
        arrays = content.get(PAYLOAD, {})
        if len(arrays) > MOST_TENSORS:
            raise ValueError(f"{len(arrays)} tensors")
        payload = {str(name): _tensor(array) for name, array in arrays.items()}
        if not isinstance(about, dict):
            raise ValueError(f"about is {type(about).__name__}")
    except Exception as e:  # Whatever it is, it costs the sender its message and nothing else.
        raise ValueError(f"not a message of stforecast ({e!r:.120})") from e
    return Message(about, payload)


def _tensor(array: Any) -> Tensor:
    """Read an array of Flower's in the format of numpy's files."""
    if array.stype != NUMPY:
        raise ValueError(f"an array as {array.stype!r}")
    file = io.BytesIO(array.data)
    if (version := npy.read_magic(file)) != (1, 0):
        raise ValueError(f"an array of version {version}")
    shape, fortran, dtype = npy.read_array_header_1_0(file, max_header_size=MOST_HEADER)
    n_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biuf" or fortran or min(shape, default=0) < 0:
        raise ValueError(f"an array {shape} of {dtype}, fortran {fortran}")
    if n_bytes != len(array.data) - file.tell():
        raise ValueError(f"an array {shape} of {dtype} in {len(array.data)} bytes")
    values = np.frombuffer(array.data, dtype, offset=file.tell())
    return torch.from_numpy(values.reshape(shape).copy())


class _Asked:
    """Messages to nodes whose answers are waited for.

    Flower waits for minutes for a node that announced an answer and does not send the rest of it.
    So each answer is waited for in a thread of its own, and such a node delays no other.
    """

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self.replies: SimpleQueue[Any] = SimpleQueue()
        self._sent: dict[str, tuple[int, float, threading.Event]] = {}

    @property
    def pause(self) -> float:
        """Seconds between two looks for an answer."""
        return max(POLL, len(self._sent) / 20)  # Over all nodes, 20 looks in a second at most.

    def nodes(self) -> set[int]:
        """Return the nodes that have not answered."""
        return {node for node, _, _ in self._sent.values()}

    def silent(self) -> set[int]:
        """Return the nodes that have not answered in time."""
        now = time.monotonic()
        return {node for node, end, _ in self._sent.values() if end < now}

    def send(self, messages: Mapping[int, Message], timeout: float) -> None:
        """Send messages, whose answers may take `timeout` seconds."""
        import flwr.app

        if not messages:
            return
        end = time.monotonic() + timeout
        packed = [
            flwr.app.Message(pack(message), dst_node_id=node, message_type="train", ttl=timeout)
            for node, message in messages.items()
        ]
        numbers = self.grid.push_messages(packed)
        new = {i: (n, end, threading.Event()) for i, n in zip(numbers, messages, strict=True)}
        self._sent |= new
        for i, (_, _, ended) in new.items():
            args = i, self.pause, ended
            threading.Thread(target=self._listen, args=args, daemon=True).start()

    def _listen(self, number: str, pause: float, ended: threading.Event) -> None:
        """Put the answer to a message into the queue, or the error that looking for it raised."""
        try:
            while not ended.wait(pause):
                for reply in self.grid.pull_messages([number]):
                    self.replies.put(reply)
                    return
        except Exception as e:
            self.replies.put(e)

    def forget(self, nodes: Collection[int]) -> None:
        """End the waiting for the answers of these nodes."""
        for i, (node, _, ended) in list(self._sent.items()):
            if node in nodes:
                ended.set()
                del self._sent[i]

    def next(self, *, wait: bool) -> tuple[int, Message | str] | None:
        """Return a node and its answer; None if none has come, or comes within a pause."""
        while True:
            try:
                reply = self.replies.get(wait, self.pause)
            except Empty:
                return None
            if isinstance(reply, Exception):
                self.forget(self.nodes())
                raise reply
            if asked := self._sent.pop(reply.metadata.reply_to_message_id, None):
                return asked[0], _read(reply)


class GridLink:
    """A `stforecast.federated.nodes.messages.Link` to SuperNodes through the SuperLink's `Grid`."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self._asked, self._knocked = _Asked(grid), _Asked(grid)

    def nodes(self) -> set[int]:
        """Return the SuperNodes with a recent heartbeat."""
        return set(self.grid.get_node_ids())

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send all messages and wait for the answers of nodes that are still connected."""
        self._asked.forget(self._asked.nodes())
        self._asked = _Asked(self.grid)
        return self.ask_some(messages, timeout, len(messages))

    def ask_some(
        self, messages: Mapping[int, Message], timeout: float, enough: int
    ) -> dict[int, Message | str]:
        """Send all messages and wait for as many answers, also to earlier messages."""
        asked, answers = self._asked, dict[int, Message | str]()
        asked.forget(messages.keys())
        asked.send(messages, timeout)
        while busy := asked.nodes():
            waits = len(answers) < enough
            if found := asked.next(wait=waits):
                answers[found[0]] = found[1]
            elif waits:
                asked.forget(asked.silent() | (busy - self.nodes()))
            else:
                break
        return answers

    def knock(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send messages without waiting; return the answers that have come to earlier ones."""
        knocked, answers = self._knocked, dict[int, Message | str]()
        while found := knocked.next(wait=False):
            answers[found[0]] = found[1]
        knocked.forget(knocked.silent())
        busy = knocked.nodes() | answers.keys()
        knocked.send({n: message for n, message in messages.items() if n not in busy}, timeout)
        return answers


def _read(reply: Any) -> Message | str:
    if reply.has_error():
        reason = str(reply.error.reason or "error")[:200]
        printable = "".join(c if c.isprintable() else " " for c in reason)
        return f"{printable} (code {reply.error.code})"
    try:
        return unpack(reply.content)
    except ValueError as e:
        return str(e)
