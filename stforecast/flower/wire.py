"""Conversion of a federation's messages to Flower's, and the link to its nodes.

Flower's message holds two records: `about`, one JSON text, and `payload`, the tensors. Flower
unpickles nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from stforecast.federated.nodes.messages import Message

ABOUT, PAYLOAD = "about", "payload"
"""Names of a message's records."""

POLL = 1.0
"""Seconds between two checks for answers."""


def pack(message: Message) -> Any:
    """Convert a message to Flower's content, a `RecordDict`."""
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {ABOUT: ConfigRecord({"json": json.dumps(message.about)})}
    if message.payload:
        tensors = {name: t.detach().cpu().contiguous() for name, t in message.payload.items()}
        records[PAYLOAD] = ArrayRecord(tensors)
    return RecordDict(records)


def unpack(content: Any) -> Message:
    """Convert Flower's content to a message.

    Raises:
        ValueError: if it is not a message of this package.
    """
    try:
        about = json.loads(content[ABOUT]["json"])
        arrays = content[PAYLOAD].to_torch_state_dict() if PAYLOAD in content else {}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, EOFError) as e:
        raise ValueError(f"not a message of stforecast ({type(e).__name__}: {e})") from e
    if not isinstance(about, dict):
        raise ValueError(f"not a message of stforecast (about is {type(about).__name__})")
    return Message(about, dict(arrays))


class GridLink:
    """A `stforecast.federated.nodes.messages.Link` to SuperNodes through the SuperLink.

    Args:
        grid: Flower's `Grid`.
    """

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        """Return the SuperNodes with a recent heartbeat."""
        return set(self.grid.get_node_ids())

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send all messages and wait for the answers of nodes that are still connected."""
        import flwr.app

        sent = [
            flwr.app.Message(pack(message), dst_node_id=node, message_type="train", ttl=timeout)
            for node, message in messages.items()
        ]
        waiting = dict(zip(self.grid.push_messages(sent), messages, strict=True))
        answers: dict[int, Message | str] = {}
        end = time.monotonic() + timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = _read(reply)
            gone = set(waiting.values()) - self.nodes()
            waiting = {i: node for i, node in waiting.items() if node not in gone}
            if waiting:
                time.sleep(POLL)
        return answers


def _read(reply: Any) -> Message | str:
    if reply.has_error():
        return f"{reply.error.reason or 'error'} (code {reply.error.code})".replace("\n", " ")
    try:
        return unpack(reply.content)
    except ValueError as e:
        return str(e)
