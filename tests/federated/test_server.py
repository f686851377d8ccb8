"""The server's side alone: scores that come late, and decoding."""

import math

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.core.method import Method
from stforecast.federated.core.tensors import like_of
from stforecast.federated.engine.rounds import RoundReport, Server
from stforecast.federated.uploads.uplink import Uplink


@pytest.fixture
def server(federate):
    """Makes a server whose rounds do nothing: `server(patience=1, lag=1)`."""

    def make(lag=0, rounds=9, **settings):
        made = federate(Method, **settings)
        return Server(made.method, made.state, rounds, lag=lag)

    return make


def end_round(server, loss=math.nan):
    server.aggregate(torch.arange(3), {})
    server.report(RoundReport(server.state.round, 0.5, 0.5, loss, 3, 0, 0, 1.0))


@pytest.mark.parametrize(("patience", "done"), [(1, 3), (2, 4), (0, 9)])
def test_patience_counts_from_the_best_round(server, patience, done):
    one = server(patience=patience)
    while not one.finished:
        end_round(one, loss=1 + abs(one.state.round - 1))
    assert (one.best_round, one.state.round) == (2, done)


def test_nobody_is_left_out_where_nothing_is_sent(server, caplog):
    end_round(server())
    assert not caplog.records


def test_scores_may_come_a_round_late(server):
    one = server(patience=1, lag=1)
    losses = iter([2.0, 1.0, 3.0, 4.0])
    while not one.finished:
        if one.reports:
            one.record_score(next(losses))
        end_round(one)
    assert one.best_round == 2
    assert one.state.round == 4
    assert [r.validation_loss for r in one.reports[:3]] == [2.0, 1.0, 3.0]
    assert math.isnan(one.reports[3].validation_loss)


def test_a_loss_that_is_not_finite_is_warned_of(server, caplog):
    one = server()
    one.aggregate(torch.arange(3), {})
    one.report(RoundReport(1, math.inf, 0.5, math.nan, 3, 0, 0, 1.0))
    assert mentions(caplog.text, "round 1:", "inf;", "lr")
    assert one.best_round is None


def test_what_travelled_is_decoded_and_remembered(server):
    one = server()
    one.uplink = Uplink(bits=8, delta_coding=True)
    one.method.aggregate = lambda state, of, uploads: state
    upload, ids = {"w": torch.tensor([[1.0, -2.0], [0.5, 0.25]])}, torch.tensor([0, 2])
    for factor in (1.0, 1.01):
        sent = {"w": factor * upload["w"]}
        known = {name: t[ids] for name, t in one.state.received.items()}
        wire = one.uplink.encode(sent, known, [])
        found = one.decode(ids, wire, like_of(sent))
        torch.testing.assert_close(found, sent, rtol=0, atol=0.02 / factor)
        one.aggregate(ids, found)
    assert torch.equal(one.state.received["w"][ids], found["w"])
    assert not one.state.received["w"][1].any()


def test_an_aggregate_that_returns_no_state_is_named(server):
    one = server()
    one.method.aggregate = lambda state, of, uploads: None
    with pytest.raises(InputError, match=r"aggregate: .*NoneType"):
        end_round(one)
