"""Letters as Flower's messages. Skipped without the extra."""

import contextlib
import json
import threading
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_for

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
    with pytest.raises(ValueError, match=r"message.*stforecast"):
        wire.unpack(content)


def packed(data, stype="numpy.ndarray"):
    array = flwr.Array("float32", (2,), stype, data)
    about = flwr.ConfigRecord({"json": "{}"})
    return flwr.RecordDict({"about": about, "payload": flwr.ArrayRecord({"w": array})})


def header(text, data=b"12345678"):
    text = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


def test_a_tensor_is_read_from_its_bytes():
    assert wire.unpack(packed(header(GOOD))).payload["w"].shape == (2,)


@pytest.mark.parametrize(
    "data",
    [
        header(GOOD.replace("(2,)", "(549755813888,)")),  # 2 TB.
        header(GOOD.replace("(2,)", "(-2,)")),
        header(GOOD.replace("(2,)", "(2, 0)")),
        header(GOOD.replace("(2,)", f"({10**400},)")),
        header(GOOD.replace("<f4", "O")),
        header(GOOD.replace("<f4", "<M8[s]"), b"1234567812345678"),
        header(GOOD.replace("False", "True")),
        header("(" * 500),
        header("'" * 999),
        header(GOOD + " " * 2000),
        header(GOOD)[:-1],
        b"PK\x03\x04 a zip archive",
        b"\x80\x04 a pickle",
        b"\x93NUMPY\x02\x00",
        b"",
    ],
)
def test_a_hostile_tensor_costs_only_its_message(data):
    with pytest.raises(ValueError, match=r"message.*stforecast"):
        wire.unpack(packed(data))


def test_another_serialisation_is_refused():
    with pytest.raises(ValueError, match=r"message.*stforecast"):
        wire.unpack(packed(header(GOOD), stype="pickle"))


def test_deeply_nested_and_long_texts_are_refused(monkeypatch):
    for text in ("[" * 100_000, '{"a": ' * 50_000, "1" * 10_000):
        with pytest.raises(ValueError, match=r"message.*stforecast"):
            wire.unpack(flwr.RecordDict({"about": flwr.ConfigRecord({"json": text})}))
    monkeypatch.setattr(wire, "MOST_TEXT", 3)
    with pytest.raises(ValueError, match=r"message.*4 characters"):
        wire.unpack(flwr.RecordDict({"about": flwr.ConfigRecord({"json": "{  }"})}))


@settings(max_examples=200)
@given(data=st.binary(max_size=120), place=st.integers(0, 130), cut=st.integers(0, 140))
def test_whatever_bytes_arrive_are_a_tensor_or_refused(data, place, cut):
    good = header(GOOD)
    spoilt = (good[:place] + data + good[place + len(data) :])[:cut]
    with contextlib.suppress(ValueError):
        found = wire.unpack(packed(spoilt)).payload["w"]
        assert found.numel() * found.element_size() <= len(spoilt)


class Grid:
    """Answers at once, with an error, or never; node 4 is gone after the first look.

    Node 5 announces an answer and does not send it, until `sent` is set.
    """

    def __init__(self):
        self.looks = 0
        self.pushed, self.all_pushed = {}, []
        self.sent = threading.Event()
        self.replies = {
            "m1": (False, wire.pack(Message({"hello": 1}))),
            "m2": (True, None),
            "m3": (False, flwr.RecordDict({})),
        }

    def get_node_ids(self):
        self.looks += 1
        return [1, 2, 3, 5] if self.looks > 1 else [1, 2, 3, 4, 5]

    def push_messages(self, messages):
        new = [f"m{message.metadata.dst_node_id}" for message in messages]
        self.pushed |= dict(zip(new, messages, strict=True))
        self.all_pushed += new
        return new

    def pull_messages(self, ids):
        if "m5" in ids:
            self.sent.wait()
        for i in set(ids) & self.replies.keys():
            failed, content = self.replies[i]
            yield types.SimpleNamespace(
                metadata=types.SimpleNamespace(reply_to_message_id=i),
                has_error=lambda failed=failed: failed,
                error=types.SimpleNamespace(code=7, reason="out of\nmemory"),
                content=content,
            )


def test_the_link_waits_for_nobody_who_is_gone(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.0)
    grid = Grid()
    link = wire.GridLink(grid)
    assert link.nodes() == {1, 2, 3, 4, 5}
    answers = link.ask({n: Message({"to": n}) for n in (1, 2, 3, 4)}, timeout=60)
    assert answers[1] == Message({"hello": 1})
    assert answers[2] == "out of memory (code 7)"
    assert answers[3].startswith("not a message of stforecast")
    assert 4 not in answers
    assert json.loads(grid.pushed["m2"].content["about"]["json"]) == {"to": 2}


def test_a_node_that_announces_an_answer_and_sends_none_holds_nobody(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.01)
    grid = Grid()
    answers = wire.GridLink(grid).ask({n: Message({}) for n in (5, 1, 2)}, timeout=1.0)
    assert answers.keys() == {1, 2}
    grid.sent.set()


def test_answers_that_are_late_come_with_a_later_call(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.01)
    grid = Grid()
    grid.replies["m5"] = (False, wire.pack(Message({"hello": 5})))
    link = wire.GridLink(grid)
    assert link.ask_some({n: Message({}) for n in (1, 5)}, 60, enough=1).keys() == {1}
    assert link.ask_some({1: Message({})}, 60, enough=1).keys() == {1}
    grid.sent.set()
    assert link.ask_some({}, 60, enough=1) == {5: Message({"hello": 5})}
    assert link.ask_some({}, 60, enough=1) == {}


def test_a_node_that_is_asked_anew_or_silent_has_no_late_answer(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.01)
    grid = Grid()
    link = wire.GridLink(grid)
    assert link.ask_some({n: Message({}) for n in (1, 5)}, 60, enough=1).keys() == {1}
    assert link.ask_some({5: Message({})}, 0.1, enough=1) == {}
    assert link.ask_some({n: Message({}) for n in (1, 5)}, 60, enough=1).keys() == {1}
    assert link.ask({2: Message({})}, 60).keys() == {2}
    grid.sent.set()
    assert link.ask_some({}, 60, enough=1) == {}


def test_a_knock_waits_for_nobody_and_hears_answers_later(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.01)
    grid, messages = Grid(), {n: Message({}) for n in (1, 5)}
    link = wire.GridLink(grid)
    assert link.knock(messages, timeout=60) == {}
    wait_for(lambda: not link._knocked.replies.empty())
    assert link.knock(messages, timeout=60) == {1: Message({"hello": 1})}
    assert grid.all_pushed == ["m1", "m5"]
    assert link.knock(messages, timeout=60) == {}
    assert grid.all_pushed == ["m1", "m5", "m1"]  # Node 5 has one to answer.
    link.knock({2: Message({})}, timeout=-1)
    link.knock({2: Message({})}, timeout=-1)
    assert grid.all_pushed[3:] == ["m2", "m2"]
    grid.sent.set()


def test_an_error_of_flowers_ends_the_wait(monkeypatch, task_identity):
    monkeypatch.setattr(wire, "POLL", 0.01)
    grid = Grid()
    monkeypatch.setattr(grid, "pull_messages", lambda ids: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wire.GridLink(grid).ask({1: Message({})}, timeout=60)
