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
from stforecast.flower.hand_over import ABOUT, PAYLOAD, Array, content_of

MOST_TEXT, MOST_TENSORS, MOST_HEADER = 2**24, 10_000, 1_000
"""Limits of a message: characters of `about`, tensors, characters of a tensor's header."""

NUMPY = "numpy.ndarray"
"""Flower's name of the format of numpy's files."""

POLL = 1.0
"""Seconds between two looks for an answer, and for lost nodes."""

MOST_LOOKS = 20.0
"""Looks for answers in a second at most, over all nodes."""


def pack(message: Message) -> Any:
    """Convert a message to Flower's content, a `RecordDict`."""
    return content_of(*encode(message))


def encode(message: Message) -> tuple[str, dict[str, Array]]:
    """Return a message as JSON text and tensors in the format of numpy's files."""
    arrays = {}
    for name, t in message.payload.items():
        values, file = np.ascontiguousarray(t.detach().cpu().numpy()), io.BytesIO()
        values = values.reshape(t.shape)  # numpy makes a number an array of one.
        npy.write_array(file, values, version=(1, 0), allow_pickle=False)
        arrays[name] = Array(str(values.dtype), values.shape, NUMPY, file.getvalue())
    return json.dumps(message.about), arrays


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


class GridLink:
    """A `stforecast.federated.nodes.messages.Link` to SuperNodes through the SuperLink's `Grid`."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid
        self._asked: dict[str, tuple[int, float, threading.Event]] = {}
        self._found: SimpleQueue[Any] = SimpleQueue()
        self._knocked: dict[str, tuple[int, float, threading.Event]] = {}
        self._heard: SimpleQueue[Any] = SimpleQueue()

    def nodes(self) -> set[int]:
        """Return the SuperNodes with a recent heartbeat."""
        return set(self.grid.get_node_ids())

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send all messages and wait for the answers of nodes that are still connected."""
        self._forget(self._busy())
        self._found = SimpleQueue()
        return self.ask_some(messages, timeout, len(messages))

    def ask_some(
        self, messages: Mapping[int, Message], timeout: float, enough: int
    ) -> dict[int, Message | str]:
        """Send all messages and wait for as many answers, also to earlier messages.

        Flower waits for minutes for a node that announced an answer and does not send the rest of
        it. So each node's answer is waited for in a thread of its own, and such a node delays
        nobody beyond `timeout`.
        """
        asked, answers = self._asked, dict[int, Message | str]()
        self._forget(messages.keys())
        end = time.monotonic() + timeout
        new = {i: (n, end, threading.Event()) for i, n in self._push(messages, timeout).items()}
        asked |= new
        pause = max(POLL, len(asked) / MOST_LOOKS)
        for i, (_, _, ended) in new.items():
            self._listen(i, pause, self._found, ended)
        while asked:
            waits = len(answers) < enough
            try:
                reply = self._found.get(waits, pause)
            except Empty:
                if not waits:
                    break
                now = time.monotonic()
                silent = {node for node, end, _ in asked.values() if end < now}
                self._forget(silent | (self._busy() - self.nodes()))
                continue
            if isinstance(reply, Exception):
                self._forget(self._busy())
                raise reply
            if found := asked.pop(reply.metadata.reply_to_message_id, None):
                answers[found[0]] = _read(reply)
        return answers

    def _busy(self) -> set[int]:
        """Return the nodes whose answers are waited for."""
        return {node for node, _, _ in self._asked.values()}

    def _forget(self, nodes: Collection[int]) -> None:
        """End the waiting for the answers of these nodes."""
        for i, (node, _, ended) in list(self._asked.items()):
            if node in nodes:
                ended.set()
                del self._asked[i]

    def knock(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send messages without waiting; return the answers that have come to earlier ones."""
        now, answers = time.monotonic(), {}
        while not self._heard.empty():
            reply = self._heard.get()
            if isinstance(reply, Exception):
                raise reply
            if asked := self._knocked.pop(reply.metadata.reply_to_message_id, None):
                answers[asked[0]] = _read(reply)
        for i, (_, end, ended) in list(self._knocked.items()):
            if end < now:
                ended.set()
                del self._knocked[i]
        busy = {node for node, _, _ in self._knocked.values()} | answers.keys()
        new = {node: message for node, message in messages.items() if node not in busy}
        for i, node in self._push(new, timeout).items():
            self._knocked[i] = node, now + timeout, threading.Event()
            self._listen(i, max(POLL, len(new) / MOST_LOOKS), self._heard, self._knocked[i][2])
        return answers

    def _push(self, messages: Mapping[int, Message], timeout: float) -> dict[str, int]:
        """Send messages; return the nodes by Flower's number of each message."""
        import flwr.app

        sent = [
            flwr.app.Message(pack(message), dst_node_id=node, message_type="train", ttl=timeout)
            for node, message in messages.items()
        ]
        return dict(zip(self.grid.push_messages(sent), messages, strict=True)) if sent else {}

    def _listen(
        self, number: str, pause: float, found: SimpleQueue[Any], ended: threading.Event
    ) -> None:
        args = (number, pause, found, ended)
        threading.Thread(target=self._wait_for, args=args, daemon=True).start()

    def _wait_for(
        self, number: str, pause: float, found: SimpleQueue[Any], ended: threading.Event
    ) -> None:
        """Put the answer to a message into a queue, or the error that looking for it raised."""
        try:
            while not ended.wait(pause):
                for reply in self.grid.pull_messages([number]):
                    found.put(reply)
                    return
        except Exception as e:
            found.put(e)


def _read(reply: Any) -> Message | str:
    if reply.has_error():
        reason = str(reply.error.reason or "error")[:200]
        printable = "".join(c if c.isprintable() else " " for c in reason)
        return f"{printable} (code {reply.error.code})"
    try:
        return unpack(reply.content)
    except ValueError as e:
        return str(e)
