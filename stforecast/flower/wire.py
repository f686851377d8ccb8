"""Letters as Flower's messages, and the link to its nodes.

A message holds two records: `about`, one JSON text, and `payload`, the tensors. Flower unpickles
nothing on the way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from stforecast.federated.nodes.messages import Letter

ABOUT, PAYLOAD = "about", "payload"
"""Names of a message's records."""

POLL = 1.0
"""Seconds between two looks for answers."""


def pack(letter: Letter) -> Any:
    """The content of a message, a `RecordDict`."""
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {ABOUT: ConfigRecord({"json": json.dumps(letter.about)})}
    if letter.payload:
        tensors = {name: t.detach().cpu().contiguous() for name, t in letter.payload.items()}
        records[PAYLOAD] = ArrayRecord(tensors)
    return RecordDict(records)


def unpack(content: Any) -> Letter:
    """The letter of a message's content.

    Raises:
        ValueError: if it is none.
    """
    try:
        about = json.loads(content[ABOUT]["json"])
        arrays = content[PAYLOAD].to_torch_state_dict() if PAYLOAD in content else {}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, EOFError) as e:
        raise ValueError(f"not a message of stforecast ({type(e).__name__}: {e})") from e
    if not isinstance(about, dict):
        raise ValueError(f"not a message of stforecast (about is {type(about).__name__})")
    return Letter(about, dict(arrays))


class GridLink:
    """Reaches SuperNodes through the SuperLink; see `stforecast.federated.nodes.messages.Link`.

    Args:
        grid: Flower's `Grid`.
    """

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        """SuperNodes whose heartbeat was heard lately."""
        return set(self.grid.get_node_ids())

    def ask(self, letters: Mapping[int, Letter], timeout: float) -> dict[int, Letter | str]:
        """Send all letters and wait for answers, but for none from a node that is gone."""
        from flwr.app import Message

        messages = [
            Message(pack(letter), dst_node_id=node, message_type="train", ttl=timeout)
            for node, letter in letters.items()
        ]
        waiting = dict(zip(self.grid.push_messages(messages), letters, strict=True))
        answers: dict[int, Letter | str] = {}
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


def _read(reply: Any) -> Letter | str:
    if reply.has_error():
        return f"{reply.error.reason or 'error'} (code {reply.error.code})".replace("\n", " ")
    try:
        return unpack(reply.content)
    except ValueError as e:
        return str(e)
