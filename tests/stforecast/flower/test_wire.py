"""Letters as Flower's messages. Skipped without the extra."""

import contextlib
import json
import types

import pytest
import torch

from stforecast.federated.nodes.messages import Message
from stforecast.flower import wire

flwr = pytest.importorskip(
    "flwr.app", reason="needs the extra flower: pip install 'stforecast[flower]'"
)


def test_a_letter_comes_back_as_it_went():
    payload = {
        "b.weight": torch.randn(2, 3, 4),
        "a": torch.tensor([1, 2]),
        "mask": torch.tensor([[True], [False]]),
        "shared": torch.arange(3.0).expand(2, 3),
    }
    message = Message({"round": 3, "train": [4, 5], "best": None, "score": [0.1, 2.0]}, payload)
    found = wire.unpack(wire.pack(message))
    assert found.about == message.about
    assert list(found.payload) == list(payload)
    for name, t in payload.items():
        assert found.payload[name].dtype == t.dtype
        assert torch.equal(found.payload[name], t)


def test_a_letter_without_tensors_has_one_record():
    content = wire.pack(Message({"task": "join"}))
    assert list(content) == ["about"]
    assert wire.unpack(content) == Message({"task": "join"})


@pytest.mark.parametrize(
    "content",
    [
        flwr.RecordDict({}),
        flwr.RecordDict({"about": flwr.ConfigRecord({"json": "{"})}),
        flwr.RecordDict({"about": flwr.ConfigRecord({"json": "[1]"})}),
        flwr.RecordDict({"about": flwr.ConfigRecord({"text": "{}"})}),
        flwr.RecordDict({"about": flwr.MetricRecord({"json": 1})}),
        flwr.RecordDict(
            {"about": flwr.ConfigRecord({"json": "{}"}), "payload": flwr.ConfigRecord({"w": 1})}
        ),
        flwr.RecordDict(
            {
                "about": flwr.ConfigRecord({"json": "{}"}),
                "payload": flwr.ArrayRecord(
                    {"w": flwr.Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY nonsense")}
                ),
            }
        ),
    ],
)
def test_what_is_no_letter_is_said_to_be_none(content):
    with pytest.raises(ValueError, match="not a message of stforecast"):
        wire.unpack(content)


class Grid:
    """Answers at once, with an error, or never; node 4 is gone after the first look."""

    def __init__(self):
        self.looks = 0
        self.pushed = {}

    def get_node_ids(self):
        self.looks += 1
        return [1, 2, 3] if self.looks > 1 else [1, 2, 3, 4]

    def push_messages(self, messages):
        for message in messages:
            self.pushed[f"m{message.metadata.dst_node_id}"] = message
        return list(self.pushed)

    def pull_messages(self, ids):
        replies = {
            "m1": (False, wire.pack(Message({"hello": 1}))),
            "m2": (True, None),
            "m3": (False, flwr.RecordDict({})),
        }
        for i in set(ids) & replies.keys():
            failed, content = replies[i]
            yield types.SimpleNamespace(
                metadata=types.SimpleNamespace(reply_to_message_id=i),
                has_error=lambda failed=failed: failed,
                error=types.SimpleNamespace(code=7, reason="out of\nmemory"),
                content=content,
            )


def test_the_link_waits_for_nobody_who_is_gone(monkeypatch):
    monkeypatch.setattr(wire, "POLL", 0.0)
    with contextlib.suppress(ImportError):  # Where Flower keeps it; a message wants to know it.
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("run_id", "node_id", "task_id"):
            setattr(TaskIdentity, name, 1)
    grid = Grid()
    link = wire.GridLink(grid)
    assert link.nodes() == {1, 2, 3, 4}
    answers = link.ask({n: Message({"to": n}) for n in (1, 2, 3, 4)}, timeout=60)
    assert answers[1] == Message({"hello": 1})
    assert answers[2] == "out of memory (code 7)"
    assert answers[3].startswith("not a message of stforecast")
    assert 4 not in answers
    assert json.loads(grid.pushed["m2"].content["about"]["json"]) == {"to": 2}
