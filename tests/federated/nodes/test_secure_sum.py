"""Sums over nodes that keep only numbers: drop-outs at each stage, lies, what each side sees."""

import contextlib
import json
import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.nodes.masker import SUM, Fewest, Masker
from stforecast.federated.nodes.messages import OF_SUMS, Message, Rejected
from stforecast.federated.nodes.secure_sum import (
    SecureSum,
    SumLost,
    check_advert,
    check_finish_advert,
    check_masked,
    check_revealed,
    check_shares,
)
from stforecast.federated.uploads.masking import FRACTION, PublicKeys, SecureSums, commitment

SHAPES = {"a": [3], "n": []}
SESSION = {"run": "r", "session": "s"}


class Members:
    """A link to nodes `10 + i`, whose first client is `2 i`; each answer is of a new process.

    `spoil(task, i, answer)` changes an answer, or returns None for a node that is lost for good.
    """

    def __init__(self, folder, values, threshold=0.5, cells=1):
        self.fewest = Fewest(cells=cells)
        self.folder, self.settings = folder, SecureSums(threshold)
        self.lost, self.sent, self.refusals = set(), [], []
        self.spoil = lambda task, i, answer: answer
        self.keys = {}
        for i, of_node in enumerate(values):
            keys = self.masker(10 + i).begin("s", of_node, cells=2)
            self.keys[10 + i] = PublicKeys(*(bytes.fromhex(keys[k]) for k in ("seal", "mask")))

    def masker(self, node):
        return Masker(self.folder / str(node), 2 * (node - 10), self.settings, self.fewest)

    def nodes(self):
        return set(self.keys)

    def ask(self, messages, timeout):
        answers = {}
        for node, message in messages.items():
            if node in self.lost:
                continue
            task = message.about["task"]
            message = Message(json.loads(json.dumps(message.about)), message.payload)
            try:
                answer = self.masker(node).answer(message)
            except InputError as e:
                answers[node] = str(e)
                self.refusals.append(str(e))
                continue
            self.sent.append((task, node, answer))
            answer = Message(json.loads(json.dumps(answer.about)), dict(answer.payload))
            answer = self.spoil(task, node - 10, answer)
            if answer is None:
                self.lost.add(node)
            else:
                answers[node] = answer
        return answers

    def sum(self):
        return SecureSum(
            self, 1.0, self.settings, SESSION, SHAPES, {n: 2 * (n - 10) for n in self.keys},
            self.keys, "node {}".format, cells=dict.fromkeys(self.keys, 2),
        )  # fmt: skip


@pytest.fixture
def values():
    draw = torch.Generator().manual_seed(3)
    return [
        {"a": torch.randn(3, generator=draw, dtype=torch.float64), "n": torch.tensor(float(i))}
        for i in range(5)
    ]


@pytest.fixture
def members(tmp_path, values):
    return Members(tmp_path, values)


def assert_sum_of(found, values, some):
    nodes, total = found
    assert nodes == [10 + i for i in some]
    for name in SHAPES:
        exact = sum(values[i][name].double() for i in some)
        assert ((total[name] - exact).abs() <= len(some) / 2 ** (FRACTION + 1) + 1e-15).all()


def test_the_sum_is_that_of_all(members, values):
    assert_sum_of(members.sum().run(), values, range(5))


def lose(*lost):
    """Lose nodes before they answer a task."""
    return lambda task, i, answer: None if (task, i) in lost else answer


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ([("share", 1)], [0, 2, 3, 4]),
        ([("mask", 1)], [0, 2, 3, 4]),
        ([("mask", 0), ("mask", 4)], [1, 2, 3]),
        ([("share", 0), ("mask", 3)], [1, 2, 4]),
        ([("unmask", 2)], [0, 1, 2, 3, 4]),
        ([("unmask", 2), ("unmask", 4)], [0, 1, 2, 3, 4]),
        ([("mask", 1), ("unmask", 2)], [0, 2, 3, 4]),
    ],
)
def test_nodes_may_be_lost_at_every_stage(lost, left, members, values):
    """Before masks their values are missing, after them their values are part of the sum."""
    members.spoil = lose(*lost)
    assert_sum_of(members.sum().run(), values, left)


@pytest.mark.parametrize("task", OF_SUMS)
def test_below_the_threshold_the_sum_is_lost_and_nobody_is_guilty(task, members):
    members.spoil = lose((task, 0), (task, 1), (task, 2))
    with pytest.raises(SumLost, match=r"2 nodes .*3") as e:
        members.sum().run()
    assert e.value.guilty == set()


@pytest.mark.parametrize(
    ("cells", "lost", "refused"),
    [(11, (), "share"), (10, [("share", 1)], "mask"), (10, [("mask", 1)], "unmask")],
)
def test_no_node_reveals_itself_in_a_sum_over_too_few_cells(cells, lost, refused, tmp_path, values):
    """Each of five has two: the server asks for too few, or a node is lost."""
    members = Members(tmp_path, values, cells=cells)
    members.spoil = lose(*lost)
    with pytest.raises(SumLost):
        members.sum().run()
    assert refused not in {task for task, *_ in members.sent}
    assert "cells, this node wants" in members.refusals[0]


def test_values_that_no_sum_can_hold_are_named_as_the_reason(tmp_path, values):
    members = Members(tmp_path, [{**of, "a": of["a"] + 1e12} for of in values])
    with pytest.raises(SumLost, match=r"10: a .*size 1e"):
        members.sum().run()


def test_a_higher_threshold_needs_more_nodes(tmp_path, values):
    members = Members(tmp_path, values, threshold=0.8)
    members.spoil = lose(("unmask", 1))
    with pytest.raises(SumLost, match=r"4 nodes revealed .*5 "):
        members.sum().run()


def test_a_single_node_has_no_sum(tmp_path, values):
    with pytest.raises(SumLost, match=r"1 nodes .*2"):
        Members(tmp_path, values[:1]).sum().run()


def other_digit(text):
    return ("1" if text[0] == "0" else "0") + text[1:]


def spoilt(task, i, change):
    def spoil(of, j, answer):
        if (of, j) == (task, i):
            change(answer)
        return answer

    return spoil


def false_shares(answer):
    shares = answer.about["shares"]
    shares |= {i: other_digit(share) for i, share in shares.items()}


def nonsense(answer):
    answer.about["shares"] = {"0": "nonsense"}


def hidden(answer):
    answer.about["shares"].clear()


@pytest.mark.parametrize("change", [false_shares, nonsense, hidden])
def test_false_shares_are_named_and_cost_nothing_above_the_threshold(
    change, members, values, caplog
):
    members.spoil = spoilt("unmask", 3, change)
    assert_sum_of(members.sum().run(), values, range(5))
    assert mentions(caplog.text, "node 13 leaves", "'unmask'")


def test_false_shares_cost_the_sum_below_the_threshold(members):
    def spoil(task, i, answer):
        if task == "unmask" and i == 3:
            false_shares(answer)
        return None if task == "unmask" and i < 2 else answer

    members.spoil = spoil
    with pytest.raises(SumLost, match=r"2 nodes revealed .*10") as e:
        members.sum().run()
    assert e.value.guilty == {13}


def garble(answer):
    """Seal something else for everybody."""
    answer.about["sealed"] = {j: other_digit(s) for j, s in answer.about["sealed"].items()}


def garble_for_one(answer):
    answer.about["sealed"]["6"] = other_digit(answer.about["sealed"]["6"])


def test_a_dealer_of_unusable_shares_is_guilty(members, caplog):
    members.spoil = spoilt("share", 1, garble)
    with pytest.raises(SumLost, match=r"1 nodes revealed .*11") as e:
        members.sum().run()
    assert e.value.guilty == {11}
    assert mentions(caplog.text, "node 10", "node 11")


def test_one_unusable_share_costs_nothing(members, values, caplog):
    members.spoil = spoilt("share", 1, garble_for_one)
    assert_sum_of(members.sum().run(), values, range(5))
    assert mentions(caplog.text, "node 13", "node 11")


def test_one_complaint_makes_nobody_guilty(members):
    garbled, lost = spoilt("share", 1, garble_for_one), lose(("unmask", 0), ("unmask", 4))
    members.spoil = lambda task, i, answer: lost(task, i, garbled(task, i, answer))
    with pytest.raises(SumLost, match=r"2 nodes revealed .*11") as e:
        members.sum().run()
    assert e.value.guilty == set()


def test_shares_that_fit_their_commitments_and_no_secret_are_found(members):
    members.spoil = spoilt("share", 2, lambda a: a.about.update(own="0" * 64))
    with pytest.raises(SumLost, match="node 12 dealt") as e:
        members.sum().run()
    assert e.value.guilty == {12}


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("share", lambda a: a.about["sealed"].pop("4")),
        ("share", lambda a: a.about["sealed"].update({"4": "00"})),
        ("share", lambda a: a.about.update(checks={})),
        ("mask", lambda a: a.payload.update({SUM: torch.zeros(4)})),
        ("mask", lambda a: a.payload.update({SUM: torch.zeros(3, dtype=torch.int64)})),
        ("mask", lambda a: a.payload.clear()),
        ("mask", lambda a: a.about.update(unusable=7)),
    ],
)
def test_nonsense_costs_its_sender_its_place_in_the_sum(task, change, members, values, caplog):
    members.spoil = spoilt(task, 4, change)
    assert_sum_of(members.sum().run(), values, range(4))
    assert mentions(caplog.text, "node 14 leaves", f"'{task}'")


def test_the_server_sees_no_vector_and_never_both_secrets_of_a_node(members, values):
    """Masked vectors are far from the values, and of each node one kind of shares is revealed."""
    members.spoil = lose(("mask", 1))
    members.sum().run()
    revealed = {}
    for task, _, answer in members.sent:
        if task == "mask":
            assert (answer.payload[SUM].double().abs() > 2**40).any()
        if task == "unmask":
            for i, share in answer.about["shares"].items():
                revealed.setdefault(i, []).append(share)
    dealt = {n: a.about["checks"] for task, n, a in members.sent if task == "share"}
    for i, shares in revealed.items():
        checks = dealt[10 + int(i) // 2].values()
        kinds = {kind for s in shares for pair in checks for kind in (0, 1)
                 if commitment(bytes.fromhex(s)).hex() == pair[kind]}  # fmt: skip
        assert kinds == ({1} if i == "2" else {0})


def stage(members, until):
    """Messages of the sum up to a task, as the nodes got them."""
    asked, ask = {}, members.ask

    def remember(messages, timeout):
        task = next(iter(messages.values())).about["task"]
        asked[task] = messages
        if task == until:
            raise SumLost("enough")
        return ask(messages, timeout)

    members.ask = remember
    with contextlib.suppress(SumLost):
        members.sum().run()
    members.ask = ask
    return {node: Message(json.loads(json.dumps(m.about))) for node, m in asked[until].items()}


def refused(members, node, message, reason):
    answer = members.ask({node: message}, 1.0)[node]
    assert isinstance(answer, str)
    assert reason in answer


def test_a_node_answers_each_task_once(members):
    message = stage(members, "unmask")[10]
    assert isinstance(members.ask({10: message}, 1.0)[10], Message)
    refused(members, 10, message, "not begun, or has ended")
    assert not (members.folder / "10").exists()


def test_a_share_that_cannot_be_unsealed_is_unusable_even_without_commitments(members):
    message = stage(members, "mask")[10]
    message.about["sealed"]["2"] = other_digit(message.about["sealed"]["2"])
    message.about["checks"]["2"] = []
    assert members.ask({10: message}, 1.0)[10].about["unusable"] == [2]


@pytest.mark.parametrize("stayed", [["0"], ["0", "2"], ["2", "4", "6"], ["0", "2", "4", "99"]])
def test_a_node_reveals_nothing_for_a_sum_that_is_too_small(stayed, members):
    message = stage(members, "unmask")[10]
    message.about["stayed"] = stayed
    refused(members, 10, message, "it takes at least 3 of [0, 2, 4, 6, 8]")


def test_a_node_masks_nothing_for_too_few(members):
    message = stage(members, "mask")[10]
    message.about["sealed"] = {"2": message.about["sealed"]["2"]}
    refused(members, 10, message, "it takes at least 3")


def test_a_node_deals_no_shares_for_keys_that_are_not_its_own(members):
    message = stage(members, "share")[10]
    swapped = message.about["peers"]
    swapped["0"] = swapped["2"]
    refused(members, 10, message, "does not pass on the keys of this node as they are")


def test_a_node_deals_no_shares_to_itself_alone(members):
    message = stage(members, "share")[10]
    message.about["peers"] = {"0": message.about["peers"]["0"]}
    refused(members, 10, message, "a sum over 1 nodes")


def test_tasks_out_of_turn_and_of_other_sums_are_refused(members):
    message = stage(members, "mask")[10]
    refused(members, 10, Message({**message.about, "task": "unmask"}), "waits for mask in 's'")
    refused(members, 10, Message({**message.about, "session": "t"}), "waits for mask in 's'")


def test_secrets_are_for_their_owner_only(tmp_path, values):
    (tmp_path / "10").mkdir(mode=0o755)  # Of an earlier copy, say.
    Members(tmp_path, values)
    for folder in tmp_path.iterdir():
        modes = [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())]
        assert modes == [0o700, 0o600]


def any_json():
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70)
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner,
                                                                    max_size=4),
        max_leaves=12,
    )  # fmt: skip


FIELDS = ["keys", "ids", "like", "sealed", "checks", "own", "unusable", "shares", "seal", "mask"]
abouts = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), any_json(), max_size=6)
tensors = st.sampled_from(
    [{}, {SUM: torch.zeros(4)}, {SUM: torch.zeros(4, dtype=torch.int64)}, {"x": torch.zeros(())}]
)


@settings(max_examples=50)
@given(abouts, tensors)
def test_whatever_arrives_is_checked_or_rejected(about, payload):
    """No other exception gets out of a check, whatever JSON a node sends."""
    answer = Message(about, payload)
    for check in (
        lambda: check_advert(answer, [0, 1]),
        lambda: check_finish_advert(answer),
        lambda: check_shares(answer, 0, [0, 2, 4]),
        lambda: check_masked(answer, SHAPES, [2, 4]),
        lambda: check_revealed(answer, {0: "0" * 64}),
    ):
        with contextlib.suppress(Rejected):
            check()


@settings(max_examples=10)
@given(task=st.sampled_from(OF_SUMS), about=abouts, field=st.data())
def test_nonsense_of_one_node_never_ends_a_sum_of_five(task, about, field, tmp_path_factory):
    logging.disable()
    rows = [{"n": torch.tensor(float(i))} for i in range(5)]
    members = Members(tmp_path_factory.mktemp("members"), rows)

    def change(answer):
        known = [n for n in answer.about if n in FIELDS]
        name = field.draw(st.sampled_from(known))
        answer.about[name] = field.draw(any_json())
        answer.about.update({n: v for n, v in about.items() if n not in known})

    members.spoil = spoilt(task, 2, change)
    try:
        nodes, total = members.sum().run()
        assert set(nodes) >= {10, 11, 13, 14}
        assert total["n"] == sum(n - 10 for n in nodes)
    except SumLost as e:
        guilty = e.guilty
    else:
        guilty = {12}
    finally:
        logging.disable(logging.NOTSET)
    assert guilty == {12}


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little")])
def test_a_public_key_that_agrees_with_none_is_rejected(key):
    """It would make every other node fail."""
    good = "09" + "00" * 31
    about = {"ids": [], "like": {}, "keys": {"seal": good, "mask": key.hex()}}
    with pytest.raises(Rejected):
        check_advert(Message(about), [])
    about["keys"]["mask"] = good
    assert check_advert(Message(about), []).keys.mask == bytes.fromhex(good)
