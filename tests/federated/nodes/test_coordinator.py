"""A federation of nodes does what the in-process executor does, and goes on when nodes do not."""

import dataclasses
import math
import shutil
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.methods.ditto import Ditto
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.solo import Solo
from stforecast.federated.nodes import coordinator as coordinator_module
from stforecast.federated.nodes import membership
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Link, Message
from stforecast.federated.runs.checkpoint import go_back
from stforecast.federated.uploads.masking import SecureSums
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.methods import METHODS as ALL
from stforecast.methods.fuels import Fuels

METHODS = {n: m for n, m in ALL.items() if not m.pooled}
SIZES, SHARES = (8, 12, 8, 12, 8), (2, 1, 2)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def assert_equal_rounds(reports, expected, *, bytes_too=True):
    names = ["round", "train_loss", "train_task_loss", "validation_loss", "participants"]
    names += ["bytes_down"] if bytes_too else []
    for report, other in zip(reports, expected, strict=True):
        for name in names:
            found, wanted = getattr(report, name), getattr(other, name)
            assert found == pytest.approx(wanted, rel=1e-4, nan_ok=True), (name, report)


def assert_equal_clients(factories, state):
    for make in factories.values():
        node = make()
        rows = slice(node.trainer.numbers.start, node.trainer.numbers.stop)
        own = node.trainer.state.clients.flat()
        for name, t in state.clients.flat().items():
            close(own[name], t[rows])


@pytest.mark.quick(2)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", METHODS)
def test_numbers_are_those_of_one_process(name, federate, split):
    federation = federate(METHODS[name], (12,) * 5, rounds=3)
    coordinator, link = split(federation, SHARES)
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    close(coordinator.server.state.server, federation.state.server)
    assert_equal_clients(link.factories, federation.state)
    of_three = METHODS[name].sends.sums != "none"  # Each node sends the mean of its clients.
    for report, one_process in zip(coordinator.server.reports, federation.reports, strict=True):
        assert 5 * report.bytes_up == (3 if of_three else 5) * one_process.bytes_up


@pytest.mark.parametrize(
    ("method", "settings", "rows"),
    [
        (FedAvg, {}, [1, 1, 1]),
        (FedAvg, {"uplink": Uplink("gaussian", noise_std=0.1, clip=1.0)}, [1, 1, 1]),
        (FedAvg, {"uplink": Uplink(bits=8)}, [2, 1, 2]),
        (FedAvg, {"slow_share": 0.2}, [1, 1, 1]),
        (FedAvg, {"slow_share": 0.2, "mixing": 0.5}, [2, 1, 2]),
        (Fuels, {}, [2, 1, 2]),
    ],
)
def test_a_node_s_uploads_are_added_up_before_they_leave(method, settings, rows, federate, split):
    """Where each is quantised or mixed by itself, or the server compares them, they are not."""
    coordinator, link = split(federate(method, SIZES, rounds=1, **settings), SHARES)
    coordinator.run()
    sent = [m.payload for m in link.messages if m.payload and "task" not in m.about]
    assert [{len(t) for t in payload.values()} for payload in sent] == [{n} for n in rows]


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", [FedAvg, Fuels])
def test_each_node_keeps_its_clients_of_the_best_round(method, federate, split):
    federation = federate(method, SIZES, rounds=6, lr=1.0)
    coordinator, link = split(federation, (3, 2))  # Too few for a vote: the pooled loss decides.
    coordinator.run()
    federation.run()
    assert 1 <= coordinator.server.best_round == federation.best.round < 6
    for make in link.factories.values():
        node = make()
        assert node.best.round == federation.best.round
        rows = slice(node.trainer.numbers.start, node.trainer.numbers.stop)
        for name, t in federation.best.clients.params.items():
            close(node.best.clients.params[name], t[rows])


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedAvg, {"participation": 0.4, "rounds": 4}),
        (FedAvg, {"optimizer_state": "round", "rounds": 3}),
        (Ditto, {"clip_gradients": 0.1}),
        (Fuels, {"participation": 0.6, "rounds": 4}),
        (FedAvg, {"schedule": "cosine", "optimizer": "sgd", "momentum": 0.9}),
        (FedAvg, {"shuffle": True, "drop_last": False}),
    ],
)
def test_settings_mean_the_same(method, settings, federate, split):
    federation = federate(method, SIZES, **settings)
    coordinator, link = split(federation, SHARES)
    coordinator.run()
    federation.run()
    # Nodes whose clients are not drawn are sent the model all the same: they judge it.
    assert_equal_rounds(coordinator.server.reports, federation.reports, bytes_too=False)
    assert_equal_clients(link.factories, federation.state)


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("uplink", [Uplink(bits=8), Uplink(bits=4), Uplink(clip=1.0)])
def test_uploads_are_encoded_on_the_node(uplink, federate, split):
    federation = federate(Fuels, SIZES, uplink=uplink)
    coordinator, _ = split(federation, SHARES)
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_sends_counters(name, federate):
    method = METHODS[name]
    upload = federate(method, (12, 12)).trainer.train(torch.arange(2)).upload
    assert method.sends.counts == any(not t.is_floating_point() for t in upload.values())


@pytest.mark.attack("noise computed from the seed")
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "exponential"])
def test_the_server_cannot_compute_the_noise_of_a_node(noise, federate, split):
    """One that knows all settings can train as the node does; the noise must differ each time."""
    noisy, true = Uplink(noise, noise_std=3.0), Uplink()
    _, link = split(federate(FedAvg, (8, 8), uplink=noisy), (1, 1))
    known, plain = (federate(FedAvg, (8, 8), uplink=uplink) for uplink in (noisy, true))
    payload = {n: t[None] for n, t in known.state.server.items()}
    ask = Message({"task": "round", "run": "", "round": 0, "train": [0], "best": None}, payload)
    answers = [link.factories[0](0).round(ask).payload for _ in range(2)]
    true, computed = (f.trainer.train(torch.tensor([0])).upload for f in (plain, known))
    first, second, computed = (
        torch.cat([(upload[n] - t).flatten() for n, t in true.items()])
        for upload in (*answers, computed)
    )
    assert not torch.allclose(first, computed)
    assert not torch.allclose(first, second)
    assert first.abs().max() < 100  # So it is the noise, of a standard deviation of 3.


@pytest.mark.quick(2)
@pytest.mark.parametrize(("method", "shares"), [(FedAvg, (1,) * 5), (Fuels, SHARES)])
def test_the_server_guards_itself_alike(method, shares, federate, split):
    federation = federate(method, SIZES, robust=Robust("clip"))
    coordinator, link = split(federation, shares)
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    assert_equal_clients(link.factories, federation.state)


@pytest.mark.repeats
def test_a_client_that_diverges_is_left_out_on_its_node(federate, split, logged):
    federation = federate(FedAvg, SIZES)
    federation.train.tensors["y"][3] = torch.inf
    coordinator, link = split(federation, SHARES)
    coordinator.run()
    federation.run()
    assert [r.failed for r in coordinator.server.reports] == [1, 1, 1]
    assert mentions(logged(), "client 3", "finite")
    assert_equal_clients(link.factories, federation.state)


def test_delta_coding_is_refused(federate, split):
    federation = federate(Fuels, uplink=Uplink(delta_coding=True))
    with pytest.raises(InputError, match="not support delta_coding"):
        split(federation, (3,))


@pytest.mark.repeats
def test_batch_norm_and_one_node_only(federate, split, module):
    federation = federate(FedAvg, SIZES, build=module)
    coordinator, link = split(federation, (5,))
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    assert_equal_clients(link.factories, federation.state)


@pytest.mark.parametrize("method", [FedAvg, Fuels])
def test_only_payloads_cross(method, federate, split):
    federation = federate(method, (12,) * 5, rounds=2)
    samples = torch.cat(
        [t.flatten() for d in (federation.train, federation.validation)
         for name, t in d.tensors.items() if name in ("x", "x_next", "y")]
    )  # fmt: skip
    samples = samples[samples.isfinite()].unique()
    coordinator, link = split(federation, SHARES)
    coordinator.run()
    names = {"prototypes"} if method is Fuels else set(federation.method.population.names)
    down = {"positive", "negative"} if method is Fuels else names
    crossed = 0
    for message in link.messages:
        assert set(message.payload) <= names | down
        for t in message.payload.values():
            crossed += t.numel()
            assert not torch.isin(t, samples).any()
        numbers = [v for v in message.about.values() if isinstance(v, float)]
        assert not torch.isin(torch.tensor(numbers), samples).any()
        assert set(message.about) <= {
            "task", "run", "clients", "round", "train", "best", "parties",
            "first", "sizes", "ids", "score", "loss", "task_loss", "like", "targets", "errors",
            "has_best",
        }  # fmt: skip
    assert crossed > 0


def test_a_method_that_would_send_samples_is_stopped(federate, split):
    class Careless(FedAvg):
        name = ""

        def upload(self, cohort):
            return {"x": cohort.data.tensors["x"]}

    _, link = split(federate(Careless), (3,))
    node = link.factories[0]()
    payload = {name: t.expand(3, *t.shape) for name, t in _initial(node).items()}
    with pytest.raises(ValueError, match="samples as 'x'"):
        node.round(Message({"round": 0, "train": [0, 1, 2], "best": None}, payload))


@pytest.mark.parametrize(("train", "rows"), [([0, 3], 3), ([-1], 3), ([0], 2)])
def test_a_letter_for_other_clients_is_refused(train, rows, federate, split):
    _, link = split(federate(FedAvg), (3,))
    node = link.factories[0]()
    payload = {name: t.expand(rows, *t.shape) for name, t in _initial(node).items()}
    with pytest.raises(InputError, match="node's, 0 to 2"):
        node.round(Message({"round": 0, "train": train, "best": None}, payload))


def _initial(node):
    return {name: t[0] for name, t in node.trainer.method.population.initial().items()}


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", [FedAvg, Fuels])
def test_a_node_that_is_lost_leaves_the_rest_going(method, federate, split, logged):
    federation = federate(method, SIZES, rounds=4)
    coordinator, link = split(federation, SHARES)
    link.absent = lambda node, round: node == 1 and round >= 2
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [5, 5, 4, 4]
    assert mentions(logged(), "round 3:", "node 1", "2 to 2)")
    assert all(math.isfinite(r.validation_loss) for r in coordinator.server.reports)


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", [FedAvg, Fuels])
def test_a_silent_node_is_left_out_of_a_round_and_comes_back(method, federate, split, logged):
    federation = federate(method, SIZES, rounds=4)
    coordinator, link = split(federation, SHARES)
    silent = lambda node, round, answer: "no answer" if (node, round) == (0, 1) else answer  # noqa: E731
    link.spoil = silent
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [5, 3, 5, 5]
    assert [r.failed for r in coordinator.server.reports] == [0, 2, 0, 0]
    assert mentions(logged(), "round 2", "without node 0", "0 to 1")


@pytest.mark.repeats
def test_what_a_silent_node_was_sent_is_counted(federate, split):
    coordinator, link = split(federate(FedAvg, SIZES, rounds=4), SHARES)
    link.spoil = lambda node, round, answer: "no answer" if (node, round) == (0, 1) else answer
    coordinator.run()
    assert len({r.bytes_down for r in coordinator.server.reports}) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("secure", [None, SecureSums()])
def test_a_node_without_the_best_round_is_left_out_of_the_errors_and_named(
    secure, federate, split, logged, monkeypatch
):
    monkeypatch.setattr(coordinator_module, "most_improved", lambda now, before: False)
    coordinator, link = split(
        federate(FedAvg, SIZES, rounds=4), SHARES, patience=Patience(0.2, 1, 0.01, enough=4),
        secure=secure,
    )  # fmt: skip
    link.absent = lambda node, round: node == 1 and round < 2
    coordinator.run()
    assert coordinator.server.best_round == 1
    assert list(coordinator.left_out) == [1]
    assert mentions(logged(), "node 1", "errors")
    if secure:  # The errors of nodes 0 and 2 alone.
        assert coordinator.test_errors == pytest.approx({"mse": 1.0, "mae": 0.25})


@pytest.mark.repeats
def test_a_node_that_is_silent_after_the_last_round_leaves_no_round(federate, split, logged):
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES)
    link.spoil = silent_from(2, 2)
    coordinator.run()
    assert mentions(logged(), "validation", "node 0", "0 to 1)")
    assert "round 3" not in logged()


def silent_from(first, last, node=0):
    return lambda n, round, answer: "no answer" if n == node and first <= round <= last else answer


def test_nobody_waits_for_a_node_that_was_silent_in_three_rounds(federate, split, logged):
    """It is asked to join without waiting, and trains again as soon as it answers that."""
    coordinator, link = split(federate(FedAvg, SIZES, rounds=9), SHARES)
    link.spoil, asked = silent_from(1, 5), []
    waited = link.ask
    link.ask = lambda messages, timeout: asked.append(set(messages)) or waited(messages, timeout)
    link.knock = lambda messages, timeout: waited(messages, timeout)
    coordinator.run()
    assert [r.participants for r in coordinator.server.reports] == [5, 5, 5, 5, 3, 3, 5, 5, 5]
    assert [0 in nodes for nodes in asked[:9]] == [True] * 4 + [False] * 2 + [True] * 3
    assert mentions(logged(), "node 0", "0 to 1)", "3 rounds")
    assert mentions(logged(), "round 7: node 0", "0 to 1) joins")
    assert not coordinator.membership.strikes


@pytest.mark.slow
def test_a_node_that_only_joins_costs_ever_less_time(federate, split, monkeypatch):
    """Silent in each round though it joins: left out at once, each time for longer."""
    clock = iter(range(10**6))
    monkeypatch.setattr(membership, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    patience = Patience(0.2, 20, 0.01)
    coordinator, link = split(federate(FedAvg, SIZES, rounds=60), SHARES, patience=patience)
    link.spoil = lambda n, round, a: "late" if (n, link.task) == (0, "round") else a
    coordinator.run()
    waited = [i for i, r in enumerate(coordinator.server.reports) if r.participants == 5]
    assert waited[:4] == [0, 1, 2, 3]
    pauses = [b - a for a, b in pairwise(waited[3:])]
    assert len(pauses) >= 2
    assert pauses == sorted(set(pauses))


@pytest.mark.repeats
def test_strikes_can_be_turned_off_and_a_usable_answer_takes_them_away(federate, split, logged):
    for spoil, strikes in (
        (silent_from(1, 7), 0),
        (lambda n, round, answer: "no answer" if n == 0 and round % 3 else answer, 3),
    ):
        coordinator, link = split(
            federate(FedAvg, SIZES, rounds=8), SHARES, patience=Patience(0.2, 1, 0.01, 0, strikes)
        )
        link.spoil = spoil
        coordinator.run()
        assert [r.participants for r in coordinator.server.reports] == [5] * 8
        for make in link.factories.values():
            shutil.rmtree(make().folder)
    assert "nobody waits" not in logged()
    assert mentions(logged(), "node 0", "0 to 1) answers again")


@pytest.mark.quick(2)
@pytest.mark.parametrize("secure", [None, SecureSums()])
def test_parties_are_told_what_two_can_learn_and_a_minimum_is_kept(
    secure, federate, split, logged, caplog
):
    for shares, told in (((3, 2), 1 + 2), (SHARES, 0)):
        coordinator, link = split(federate(FedAvg, SIZES, rounds=2), shares, secure=secure)
        coordinator.run()
        assert logged().count("each can compute the other's upload") == told
        caplog.clear()
        for make in link.factories.values():
            shutil.rmtree(make().folder)
    three = Patience(0.2, 1, 0.01, min_parties=3)
    for shares, spoil, said in (
        ((3, 2), lambda n, round, answer: answer, "2 nodes have the 5 connected clients, at least"),
        (SHARES, silent_from(1, 9), "in a row: 2 parties trained, at least 3 must"),
    ):
        coordinator, link = split(federate(FedAvg, SIZES), shares, patience=three, secure=secure)
        link.spoil = spoil
        with pytest.raises(InputError, match=said):
            coordinator.run()
        assert len(coordinator.server.reports) == len(shares) - 2


def test_a_round_waits_for_the_fewest_parties(federate, split, logged):
    """Node 1 is lost in round 2 for some looks of the server's; nobody trains meanwhile."""
    patience = Patience(0.2, 5, 0.001, min_parties=3)
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES, patience=patience)
    looks = []

    def absent(node, round):
        looks.extend([round] if node == 1 and round == 1 else [])
        return node == 1 and round == 1 and len(looks) < 9

    link.absent = absent
    coordinator.run()
    assert mentions(logged(), "round 2:", "node 1", "2 to 2)")
    assert "is repeated" not in logged()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [5, 5]


def test_without_the_fewest_parties_nobody_trains_and_the_run_ends(federate, split):
    patience = Patience(0.2, 0.01, 0.001, min_parties=3)
    coordinator, link = split(federate(FedAvg, SIZES), SHARES, patience=patience)
    link.absent = lambda node, round: node == 1 and round > 0
    with pytest.raises(InputError, match=r"row: 2 nodes .*3 "):
        coordinator.run()
    assert not [m for m in link.messages if m.about.get("round", 0) and "train" in m.about]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", [FedAvg, Fuels])
def test_a_node_that_was_killed_goes_on_from_its_folder(method, federate, split, logged):
    """Node 2 is gone in round 3 and comes back as another node with the same folder."""
    federation = federate(method, SIZES, rounds=4)
    coordinator, link = split(federation, SHARES)
    link.factories[7] = link.factories[2]
    link.absent = lambda node, round: round >= 2 if node == 2 else node == 7 and round < 3
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [5, 5, 3, 5]
    assert mentions(logged(), "round 4: node 7", "3 to 4) joins")
    steps = link.factories[7]().trainer.state.clients.moments["steps"]
    batches = 3 * 2 * torch.tensor([12 // 4, 8 // 4])
    assert all(torch.equal(t, batches.to(t)) for t in steps.values())


@pytest.mark.quick(3)
@pytest.mark.sampled(16)
@pytest.mark.parametrize("method", METHODS.values())
def test_a_node_that_comes_late_is_let_in(method, federate, split, logged):
    federation = federate(method, (12,) * 5, rounds=4)
    coordinator, link = split(federation, SHARES, patience=Patience(0.2, 1, 0.01, enough=4))
    link.absent = lambda node, round: node == 1 and round < 2
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [4, 4, 5, 5]
    assert mentions(logged(), "4 of 5", "connected")
    assert mentions(logged(), "round 3: node 1", "2 to 2) joins")
    assert all(t.isfinite().all() for t in coordinator.server.state.server.values())


def test_clients_that_never_come_are_named(federate, split):
    federation = federate(FedAvg, SIZES)
    coordinator, link = split(federation, SHARES)
    link.absent = lambda node, round: node == 1
    with pytest.raises(InputError, match=r"4 of 5 clients .*0.2 s .*2\)"):
        coordinator.run()


def test_no_answers_at_all_end_the_run(federate, split):
    coordinator, link = split(federate(FedAvg, SIZES), SHARES)
    link.spoil = lambda node, round, answer: "broken" if round >= 1 else answer
    with pytest.raises(InputError, match=r"usable .*3 times"):
        coordinator.run()
    assert len(coordinator.server.reports) == 1


def test_two_nodes_cannot_have_the_same_clients(federate, split, logged):
    coordinator, link = split(federate(FedAvg, SIZES), SHARES)
    link.factories[9] = link.factories[1]
    coordinator.run()
    assert mentions(logged(), "node 9", "2 to 2", "another")
    assert all(r.participants == 5 for r in coordinator.server.reports)


def test_a_server_without_nodes_says_so(federate):
    class Nobody(Link):
        def nodes(self):
            return set()

        def ask(self, messages, timeout):
            return {}

    lonely = Coordinator(federate(FedAvg).method, Nobody(), 2, patience=Patience(0.0, 1, 0.01))
    with pytest.raises(InputError, match="0 of 2 clients"):
        lonely.run()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("score", [(0.0, 1e12), (1e-300, 5.0)])
def test_one_node_decides_neither_the_best_round_nor_the_losses(score, federate, split):
    """A node changes nothing by praise of round 1 where all others improve: each trains alone."""
    found = []

    def spoil(node, round, answer):
        if node != 4 or round < 1 or not isinstance(answer, Message):
            return answer
        return Message({**answer.about, "score": score if round == 1 else (1e300, 1.0)},
                       answer.payload)  # fmt: skip

    for change in (lambda node, round, answer: answer, spoil):
        coordinator, link = split(federate(Solo, (12,) * 5, rounds=4), (1,) * 5)
        link.spoil = change
        coordinator.run()
        found.append((coordinator.server.best_round, coordinator.server.reports))
        for make in link.factories.values():
            shutil.rmtree(make().folder)
    assert found[0][0] == found[1][0] == 4
    for honest, spoilt in zip(*(reports for _, reports in found), strict=True):
        assert spoilt.train_loss == pytest.approx(honest.train_loss)
        assert math.isfinite(spoilt.validation_loss)
        assert spoilt.validation_loss <= 11 * max(r.validation_loss for r in found[0][1])


@pytest.mark.repeats
def test_a_later_round_may_be_the_best_when_the_nodes_of_the_best_are_gone(federate, split):
    """Those that came later are compared with their own first score: each trains alone."""
    patience = Patience(0.2, 1, 0.01, enough=3)
    coordinator, link = split(federate(Solo, (12,) * 6, rounds=6), (1,) * 6, patience=patience)
    link.absent = lambda node, round: (node < 3) == (round >= 3)
    coordinator.run()
    assert coordinator.server.best_round == 6


def test_a_node_that_exaggerates_its_samples_counts_little_more(federate, split, logged):
    coordinator, link = split(federate(FedAvg, (12,) * 5, rounds=1), SHARES)
    link.spoil = lambda node, round, a: (
        Message({**a.about, "sizes": [2**30]}) if node == 1 and "sizes" in a.about else a
    )
    coordinator.run()
    assert coordinator.membership.sizes.tolist() == [12, 12, 120, 12, 12]
    assert mentions(logged(), "client 2", f"{2**30}", "120")


def test_only_its_owner_has_a_client(federate, split, logged):
    """Node -1, which comes first, claims the clients of node 1, and node 0 is not known."""
    coordinator, link = split(federate(FedAvg, SIZES), SHARES, patience=Patience(0.1, 1, 0.01, 3))
    link.factories[-1] = link.factories[1]
    coordinator.membership.owners = {1: range(2, 3), 2: range(3, 5), -1: range(0, 2)}
    coordinator.run()
    assert coordinator.membership.numbers == {1: range(2, 3), 2: range(3, 5)}
    assert mentions(logged(), "node -1", "2 to 2;", "0 to 1")
    assert mentions(logged(), "node 0", "0 to 1;", "none")


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", [FedAvg, Ditto])
def test_a_run_that_went_back_is_as_if_nothing_had_happened(method, federate, split, tmp_path):
    """After eight rounds it goes back to the fourth: nodes and server keep what they need."""
    found = []
    for stop in (None, 8, None):
        coordinator, link = split(
            federate(method, SIZES, rounds=9), SHARES, folder=tmp_path / "server"
        )
        if stop:
            with pytest.raises(Killed):
                coordinator.run(lambda report, stop=stop: killed_at(report, stop))
            assert go_back(tmp_path / "server", 4) == [8, 7, 6]
            with pytest.raises(InputError, match=r"checkpoint.*round 5.* 4"):
                go_back(tmp_path / "server", 5)
            continue
        assert coordinator.server.state.round == (4 if found else 0)
        coordinator.run()
        clients = [make().trainer.state.clients.flat() for make in link.factories.values()]
        found.append((coordinator.server.state.server, *clients))
        if len(found) == 1:
            shutil.rmtree(tmp_path / "server")
            for make in link.factories.values():
                shutil.rmtree(make().folder)
    for whole, again in zip(*found, strict=True):
        assert all(torch.equal(t, again[name]) for name, t in whole.items())


def killed_at(report, round):
    if report.round == round - 1:  # Reports are one round late.
        raise Killed


class Killed(Exception):
    """The server's process is killed."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("method", "moment"), [(FedAvg, "before"), (Fuels, "after"), (Ditto, "after")]
)
def test_a_server_that_is_killed_goes_on_as_if_nothing_had_happened(
    method, moment, federate, split, tmp_path
):
    """In each round once, before or after the nodes have trained."""
    whole, link = split(federate(method, SIZES, rounds=4), SHARES)
    whole.run()
    wanted = [make().trainer.state.clients.flat() for make in link.factories.values()]
    for make in link.factories.values():
        shutil.rmtree(make().folder)
    tokens, killed = set(), set()
    for _ in range(6):
        coordinator, link = split(
            federate(method, SIZES, rounds=4), SHARES, folder=tmp_path / "server"
        )
        tokens.add(coordinator.token)
        ask = link.ask

        def killing(messages, timeout, ask=ask):
            about = next(iter(messages.values())).about
            dies = about["task"] == "round" and about["round"] not in killed
            if dies and moment == "before":
                killed.add(about["round"])
                raise Killed
            answers = ask(messages, timeout)
            if dies:
                killed.add(about["round"])
                raise Killed
            return answers

        link.ask = killing
        try:
            coordinator.run()
            break
        except Killed:
            continue
    assert killed == {0, 1, 2, 3, 4}
    assert len(tokens) == (2 if 0 in killed else 1)  # Before the first round there is no state.
    same = [dataclasses.replace(r, seconds=0.0) for r in coordinator.server.reports]
    assert same == [dataclasses.replace(r, seconds=0.0) for r in whole.server.reports]
    assert coordinator.server.best_round == whole.server.best_round
    for name, t in whole.server.state.server.items():
        assert torch.equal(coordinator.server.state.server[name], t)
    for make, clients in zip(link.factories.values(), wanted, strict=True):
        own = make().trainer.state.clients.flat()
        assert all(torch.equal(own[name], t) for name, t in clients.items())


def test_a_folder_with_another_run_is_refused(federate, split, tmp_path):
    coordinator, link = split(federate(FedAvg, SIZES), SHARES)
    Coordinator(coordinator.method, link, 5, folder=tmp_path, run={"clients": 5}).run()
    with pytest.raises(InputError, match="other clients"):
        Coordinator(coordinator.method, link, 5, folder=tmp_path, run={"clients": 6})
