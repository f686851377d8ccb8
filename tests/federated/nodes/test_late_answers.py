"""Rounds without the slowest nodes are those of simulated slow clients, and else as before."""

import dataclasses
import math

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.engine.rounds import Server
from stforecast.federated.engine.stragglers import MIXED, slow
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fednova import FedNova
from stforecast.federated.methods.fedrep import FedRep
from stforecast.federated.methods.server_optimizers import FedAdam
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Message

SIZES, SHARES = (8, 12, 8, 12, 8), (1,) * 5
CALM = Patience(start=0.2, answer=600, poll=0.01)
HINGE = {"staleness": 1.5, "hinge": 1}
REPEATED = [
    (FedAvg, {}),
    (FedAdam, {}),
    (FedAdam, HINGE),
    (FedRep, HINGE),
    (FedRep, HINGE | {"mixing": 0.6}),
]
SLOW = {"slow_share": 0.4, "slow_rounds": 3, "rounds": 7}


def delayed(link, nodes, rounds, spoil=lambda answer: answer):
    """Let answers of some nodes to rounds arrive as late as if they took so many rounds."""
    waiting, calls = {}, 0

    def ask_some(messages, timeout, enough):
        nonlocal calls
        calls += 1
        assert enough == 3
        assert not messages.keys() & waiting.keys()
        now = link.ask(messages, timeout)
        for node in nodes & now.keys():
            waiting[node] = calls + rounds - 1, spoil(now.pop(node))
        due = [node for node, (when, _) in waiting.items() if when == calls]
        return now | {node: waiting.pop(node)[1] for node in due}

    link.ask_some = ask_some


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedAvg, HINGE),
        (FedRep, {}),
        (FedAvg, {"mixing": 0.6}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in REPEATED),
    ],
)
def test_late_nodes_count_as_slow_clients_of_one_process(method, settings, federate, split):
    federation = federate(method, SIZES, **SLOW, **settings)
    coordinator, link = split(federation, SHARES, patience=CALM)
    late = slow(federation.method.training, 1, 5).nonzero().flatten().tolist()
    assert len(late) == 2
    delayed(link, set(late), 3)
    coordinator.run()
    federation.run()
    found, expected = coordinator.server, federation.server
    torch.testing.assert_close(found.state.server, expected.state.server, rtol=1e-4, atol=1e-5)
    counts = [[(r.participants, r.failed) for r in s.reports] for s in (found, expected)]
    assert counts[0] == counts[1]


@pytest.mark.repeats
def test_rounds_in_which_nobody_is_late_are_those_that_wait(federate, split):
    servers = []
    for share in (0.0, 0.4):
        coordinator, _ = split(federate(FedAvg, SIZES, slow_share=share), SHARES, folder=None)
        coordinator.run()
        servers.append(coordinator.server)
    torch.testing.assert_close(*(s.state.server for s in servers), rtol=0, atol=0)
    first, second = ([dataclasses.replace(r, seconds=0) for r in s.reports] for s in servers)
    assert first == second


@pytest.mark.repeats
def test_the_loss_that_a_late_node_reports_is_of_another_round_and_does_not_count(
    federate, split, logged
):
    losses = []
    for score in (0.0, 1e3):
        federation = federate(FedAvg, SIZES, **SLOW)
        coordinator, link = split(federation, SHARES, patience=CALM)
        spoil = lambda a, s=score: Message({**a.about, "score": [s, 1]}, a.payload)  # noqa: E731
        delayed(link, {2, 4}, 3, spoil)
        coordinator.run()
        losses.append([r.validation_loss for r in coordinator.server.reports[:-1]])
    assert losses[0] == losses[1]
    assert mentions(logged(), "round 3: node 2", "2 to 2)", "round 1;", "0.58")


@pytest.mark.repeats
def test_a_busy_node_that_is_lost_leaves_the_rest_going(federate, split, logged):
    coordinator, link = split(federate(FedAvg, SIZES, **SLOW), SHARES, patience=CALM)
    delayed(link, {4}, 99)
    link.absent = lambda node, round: node == 4 and round >= 2
    coordinator.run()
    reports = coordinator.server.reports
    assert [(r.participants, r.failed) for r in reports[:4]] == [(5, 0), (4, 0), (4, 1), (4, 0)]
    assert "lost node 4" in logged()


@pytest.mark.repeats
def test_a_node_that_is_silent_for_too_long_is_left_out(federate, split, logged):
    impatient = dataclasses.replace(CALM, answer=1e-6, strikes=0)
    coordinator, link = split(federate(FedAvg, SIZES, **SLOW), SHARES, patience=impatient)
    link.ask_some = lambda messages, timeout, enough: {
        node: answer for node, answer in link.ask(messages, timeout).items() if node != 4
    }
    coordinator.run()
    assert [(r.participants, r.failed) for r in coordinator.server.reports] == [(5, 1)] * 7
    assert mentions(logged(), "without node 4", "4 to 4):", "1e-06 s")


def test_uploads_that_are_no_models_end_the_run(federate, split):
    coordinator, _ = split(federate(FedNova, SIZES, slow_share=0.4, slow_rounds=1), SHARES)
    with pytest.raises(InputError, match=r"fednova .*sends"):
        coordinator.run()


def test_models_that_spoil_a_round_do_not_count_as_mixed(federate, split, monkeypatch):
    def merged(server, ids, upload):
        after = true(server, ids, upload)
        return {n: t * math.inf for n, t in after.items()} if len(ids) == 5 else after

    true = Server.merged
    monkeypatch.setattr(Server, "merged", merged)
    coordinator, _ = split(federate(FedAvg, SIZES, mixing=0.6, rounds=3), SHARES, patience=CALM)
    coordinator.run()
    assert int(coordinator.server.state.received[MIXED].sum()) == 3 * 4
