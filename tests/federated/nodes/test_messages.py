"""The server believes no answer that it has not looked at."""

import contextlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mentions import mentions

from stforecast.federated.core.tensors import like_of
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.nodes.messages import (
    Answer,
    Finished,
    Message,
    Rejected,
    check_finish,
    check_join,
    check_round,
    few_parties,
    most_common,
)
from stforecast.federated.uploads.uplink import Uplink

ASKED = [4, 5]
LIKE = {"w": ["float32", 3], "n": ["int64"]}
GOOD = {
    "ids": ASKED, "score": [3.0, 12.0], "loss": 2.5, "task_loss": 2.0, "like": LIKE,
}  # fmt: skip


def payload():
    return {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor([7, 8])}


def check(about=(), tensors=None, uplink=None):
    message = Message({**GOOD, **dict(about)}, payload() if tensors is None else tensors)
    return check_round(message, ASKED, uplink or Uplink())


def test_a_sound_answer_is_read():
    answer = check()
    assert answer.ids.tolist() == ASKED
    assert torch.equal(answer.upload["w"], payload()["w"])
    assert (answer.losses, answer.score, answer.bytes_up) == ((2.5, 2.0), (3.0, 12.0), 24 + 16)


def test_a_method_may_record_no_loss_of_the_task():
    assert math.isnan(check({"task_loss": math.nan}).losses[1])


def test_a_client_that_failed_may_be_left_out():
    answer = check({"ids": [5]}, {name: t[1:] for name, t in payload().items()})
    assert answer.ids.tolist() == [5]
    assert answer.upload["n"].tolist() == [8]


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"ids": [4, 4]}, "answers.*clients"),
        ({"ids": [4, 9]}, r"clients \[4, 9\].*\[4, 5\]"),
        ({"ids": None}, "be used"),
        ({"score": [float("nan"), 1.0]}, "validation score"),
        ({"score": [1.0, -1.0]}, "validation score"),
        ({"score": []}, "be used"),
        ({"score": [-1.0, 1.0]}, "validation score"),
        ({"task_loss": -1e9}, "loss is -1e"),
        ({"task_loss": float("inf")}, "loss is inf"),
        ({"loss": "much"}, "be used"),
        ({"loss": float("inf")}, "not finite"),
        ({"like": {"w": []}}, "be used"),
        ({"like": "w"}, "be used"),
        ({"like": {"w": ["float32", 4], "n": ["int64"]}}, "2 clients"),
        ({"like": {"w": ["float32", 3]}}, "2 clients"),
    ],
)
def test_garbage_is_rejected(about, reason):
    with pytest.raises(Rejected, match=reason):
        check(about)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"w": torch.zeros(2, 3)},
        {"w": torch.zeros(3, 3), "n": torch.zeros(3, dtype=torch.long)},
        {"w": torch.zeros(2, 3, dtype=torch.float64), "n": torch.tensor([7, 8])},
        {"w": torch.tensor(1.0), "n": torch.tensor([7, 8])},
    ],
)
def test_tensors_that_are_not_as_announced_are_rejected(tensors):
    with pytest.raises(Rejected, match="it sent"):
        check(tensors=tensors)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_upload_that_is_not_finite_is_rejected(value):
    tensors = payload()
    tensors["w"][1, 2] = value
    with pytest.raises(Rejected, match="not finite"):
        check(tensors=tensors)


def test_a_silent_node_is_rejected_in_its_own_words():
    with pytest.raises(Rejected, match="asleep"):
        check_round("asleep", ASKED, Uplink())


def test_codes_are_decoded_and_a_bomb_is_not():
    uplink, upload = Uplink(bits=8), {"w": torch.tensor([[-1.0, 0.0, 1.0], [2.0, 0.0, -2.0]])}
    wire = uplink.encode(upload, {}, [])
    answer = check({"like": like_of(upload)}, wire, uplink)
    torch.testing.assert_close(answer.upload, upload)
    with pytest.raises(Rejected, match="fewer values"):
        check({"like": {"w": ["float32", 10**9]}}, wire, uplink)
    with pytest.raises(Rejected, match="be used"):
        check({"like": {"v": ["float32", 3]}}, wire, uplink)
    with pytest.raises(Rejected, match="be used"):
        check({"like": {"w": ["nonsense", 3]}}, wire, uplink)


def test_joining_needs_free_numbers_and_samples():
    assert check_join(Message({"first": 3, "sizes": [8, 9]}), 5, [range(0, 3)]) == (
        range(3, 5), [8, 9],
    )  # fmt: skip
    with pytest.raises(Rejected, match=r"clients 2 to 3 .*another") as e:
        check_join(Message({"first": 2, "sizes": [8, 9]}), 5, [range(0, 3)])
    assert e.value.taken


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"first": 4, "sizes": [8, 9]},
        {"first": -1, "sizes": [8]},
        {"first": 0, "sizes": []},
        {"first": 0, "sizes": [0]},
        {"first": 0, "sizes": [8.5]},
        {"first": True, "sizes": [8]},
        {"first": 0, "sizes": 8},
        {"first": 0, "sizes": [2**40]},
    ],
)
def test_nonsense_at_joining_is_rejected(about):
    with pytest.raises(Rejected, match="it "):
        check_join(Message(about), 5, [])


def test_a_last_answer_is_read():
    errors = {"mse": 1.5, "mape": 0.2}
    found = check_finish(Message({"targets": 7, "errors": errors, "has_best": True}))
    assert found == Finished(errors, 7)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"targets": float("inf"), "errors": {}},
        {"targets": 3, "errors": {"mse": "small"}},
        {"targets": 3, "errors": [1.0]},
        {"targets": 3, "errors": {"mse": 10**400}},
        {"targets": -3, "errors": {"mse": 1.0}},
    ],
)
def test_nonsense_at_the_end_is_rejected(about):
    with pytest.raises(Rejected, match="it"):
        check_finish(Message(about))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
names = [*GOOD, "first", "sizes", "targets", "errors", "has_best"]
abouts = st.dictionaries(st.sampled_from(names), json_values)


@settings(max_examples=80)
@given(about=abouts | json_values)
def test_whatever_a_node_sends_is_accepted_or_rejected(about):
    """A hostile node sends any JSON; nothing but `Rejected` leaves a check."""
    for check_answer in (
        lambda m: check_join(m, 5, [range(0, 1)]),
        lambda m: check_round(m, ASKED, Uplink(bits=8)),
        check_finish,
    ):
        with contextlib.suppress(Rejected):
            check_answer(Message(about, payload()))


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(GOOD)), value=json_values)
def test_one_spoilt_part_of_an_answer_is_accepted_or_rejected(name, value):
    with contextlib.suppress(Rejected):
        found = check({name: value})
        assert set(found.ids.tolist()) <= set(ASKED)
        assert all(math.isfinite(v) for v in (*found.score, found.losses[0]))


def answer(n, like):
    return Answer(torch.arange(n), {}, like, (0.0, 0.0), (0.0, 0.0), 0)


def test_most_clients_decide_what_is_normal_then_the_round_before():
    a, b = {"w": ["float32", 3]}, {"w": ["float32", 4]}
    assert most_common([answer(1, a), answer(3, b), answer(1, a)], None) == b
    assert most_common([answer(2, a), answer(3, b), answer(2, a)], None) == a
    assert most_common([answer(2, b), answer(2, a)], a) == a
    assert most_common([], a) is None


SPOILS = {
    "other shapes": lambda a: Message(
        {**a.about, "like": {n: [k, *s, 1] for n, (k, *s) in a.about["like"].items()}},
        {n: t[..., None] for n, t in a.payload.items()},
    ),
    "not finite": lambda a: Message(a.about, {n: t * torch.nan for n, t in a.payload.items()}),
    "no tensors": lambda a: Message(a.about),
    "no numbers": lambda a: Message({}, a.payload),
    "other names": lambda a: Message(
        {**a.about, "like": {f"{n}'": v for n, v in a.about["like"].items()}},
        {f"{n}'": t for n, t in a.payload.items()},
    ),
}


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_node_that_answers_garbage_leaves_the_rest_as_without_it(spoil, federate, split, caplog):
    sizes, shares = (8,) * 5, (2, 1, 2)
    reports = []
    for change in (lambda a: "no answer", spoil):
        coordinator, link = split(federate(FedAvg, sizes, rounds=3), shares)
        link.spoil = lambda node, round, answer, change=change: (
            change(answer) if node == 1 and round == 1 else answer
        )
        coordinator.run()
        reports.append(coordinator.server.reports)
        assert mentions(caplog.text, "round 2", "without node 1", "2 to 2)")
        caplog.clear()
        for folder in link.factories:
            link.factories[folder]().folder.rename(
                f"{link.factories[folder]().folder}-{len(reports)}"
            )
    for a, b in zip(*reports, strict=True):
        assert (a.round, a.failed) == (b.round, b.failed)
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-6)
        assert a.validation_loss == pytest.approx(b.validation_loss, rel=1e-6)


def test_the_warning_of_few_parties_speaks_of_another_one_only_if_there_is_one():
    one, two = (few_parties(n).typed for n in (1, 2))
    assert "other's" not in one
    assert "other's" in two
    assert all("--min-parties 3" in said for said in (one, two))
