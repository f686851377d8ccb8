"""Clients spread over actors: the same numbers, also when actors are lost."""

import copy
import dataclasses
import logging
from functools import partial

import pytest
import torch
from mentions import mentions
from torch import nn
from waiting import Killed, killed_after

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import SplitModel
from stforecast.federated.engine.actors import MOST_LOST, Lost, split_clients, spread_trainer
from stforecast.federated.engine.faults import DIVERGED
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.federated.uploads.uplink import Uplink
from stforecast.methods import METHODS as ALL

METHODS = {
    n: m
    for n, m in ALL.items()
    if m.__module__.startswith("stforecast.federated.") and not m.pooled
}
FEDAVG, TUNED = METHODS["fedavg"], METHODS["fedavg_ft"]
SIZES = (8,) * 8
ROUNDING = 1e-5


class Inside:
    """Actors in this process; what they are sent and answer is copied as between processes.

    Args:
        n: number of actors.
        losses: how often an actor is lost before it answers a call, by the call's name, round and
            actor.
    """

    def __init__(self, n, losses=None):
        self.n, self.losses = n, dict(losses or {})
        self.parts, self.calls, self.started = {}, [], []

    def __len__(self):
        return self.n

    def start(self, i, make):
        assert i not in self.parts
        self.parts[i] = make()
        self.started.append(i)

    def ask(self, calls):
        return {i: self._answer(i, *call) for i, call in calls.items()}

    def _answer(self, i, name, *args):
        call = (name, args[0].round, i)
        self.calls.append(call)
        lost = self.losses.get(call, 0)
        result = copy.deepcopy(getattr(self.parts[i], name)(*copy.deepcopy(args)))
        if not lost:
            return result
        self.losses[call] -= 1
        del self.parts[i]
        return Lost("killed")


@pytest.fixture
def spread(federate):
    """Makes a federation as `federate`, with its clients in some actors."""

    def make(actors, method, *args, **settings):
        settings = {
            "cohort_size": 4,
            "make_trainer": partial(spread_trainer, actors=actors),
        } | settings
        return federate(method, *args, **settings)

    return make


def assert_equal(federation, other, tolerance=0.0):
    """The states and all numbers of the reports are the same."""
    states = [(federation.state, other.state), (federation.ready(), other.ready())]
    if other.best:
        states.append((federation.best, other.best))
    for state, expected in states:
        torch.testing.assert_close(state.flat(), expected.flat(), rtol=tolerance, atol=tolerance)
        assert state.round == expected.round
    for report, expected in zip(federation.reports, other.reports, strict=True):
        found, wanted = (dataclasses.asdict(r) | {"seconds": 0} for r in (report, expected))
        assert found == pytest.approx(wanted, rel=tolerance, abs=0, nan_ok=True)


@pytest.mark.quick(4)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("build", ["stacked", "module"])
def test_numbers_are_those_of_one_process(method, build, federate, spread, request):
    settings = {"sizes": SIZES, "build": request.getfixturevalue(build)}
    alone = federate(method, cohort_size=4, **settings)
    others = spread(Inside(2), method, **settings)
    alone.run()
    others.run()
    assert_equal(others, alone)


@pytest.mark.quick(4)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_refits_are_those_of_one_process(method, federate, spread, stacked):
    def cut(data):
        """Return data that are cut from a series when they are taken."""
        return ClientData({}, data.sizes, cut=lambda ids: data.take(ids).tensors)

    def refit(make):
        """Return a federation that goes on with what an earlier one has trained."""
        first, again = (make(method, sizes=SIZES, build=stacked) for _ in range(2))
        first.run()
        again.trainer.stream = Stream([cut(again.train)])
        again.state = again.trainer.with_new_samples(first.ready())
        again.run_round()
        return again

    alone = refit(partial(federate, cohort_size=4))
    assert_equal(refit(lambda *args, **of: spread(Inside(2), *args, **of)), alone)


def test_dropout_draws_the_same(federate, spread):
    def build():
        encoder = nn.Sequential(ClientLinear(3, 5), nn.Dropout(0.5))
        return SplitModel(encoder, ClientLinear(5, 2))

    alone = federate(FEDAVG, SIZES, build=build, cohort_size=4)
    others = spread(Inside(2), FEDAVG, SIZES, build=build)
    alone.run()
    others.run()
    assert_equal(others, alone)


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"participation": 0.3, "rounds": 6, "full_start": False},
        {"sizes": (8, 4, 12, 8, 9, 4, 8)},
        {"uplink": Uplink(bits=8, delta_coding=True), "participation": 0.5},
        {"patience": 1, "lr": 1.0, "rounds": 8},
        {"memory": 2_000_000_000, "validated": False},
        {"cohort_size": 100},
    ],
    ids=["participation", "sizes", "delta-coding", "early-stop", "memory", "large-cohorts"],
)
def test_where_cohorts_are_cut_numbers_differ_by_rounding(settings, federate, spread):
    settings = {"sizes": SIZES, "cohort_size": 3, **settings}
    alone, others = federate(TUNED, **settings), spread(Inside(3), TUNED, **settings)
    alone.run()
    others.run()
    assert_equal(others, alone, tolerance=ROUNDING)


@pytest.mark.repeats
def test_cohorts_of_one_are_never_cut(federate, spread):
    settings = {"sizes": SIZES, "participation": 0.5, "cohort_size": 1}
    alone, others = federate(TUNED, **settings), spread(Inside(3), TUNED, **settings)
    alone.run()
    others.run()
    assert_equal(others, alone)


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", [FEDAVG, TUNED], ids=["as-received", "personalised"])
def test_a_lost_actors_work_is_repeated(method, federate, spread, caplog):
    lost = {("train", 1, 1): 1, ("train", 2, 0): 2, ("scores", 2, 1): 1, ("scores", 3, 0): 1}
    alone = federate(method, SIZES, cohort_size=4)
    others = spread(actors := Inside(2, lost), method, SIZES)
    alone.run()
    with caplog.at_level(logging.WARNING):
        others.run()
    assert_equal(others, alone)
    assert actors.started[2:] == [1, 1, 0, 0, 0]
    assert mentions(caplog.text, "round 2:", "clients 4 to 7")
    # The others are not asked again.
    assert actors.calls.count(("train", 1, 0)) == 1
    assert actors.calls.count(("train", 2, 0)) == 3


def test_actors_that_are_lost_again_and_again_end_the_run(spread):
    others = spread(Inside(2, {("train", 0, 1): 1 + MOST_LOST}), FEDAVG, SIZES)
    with pytest.raises(InputError, match=r"actors .*4 times"):
        others.run()


def test_actors_receive_their_clients_state_only_if_they_lack_it(spread, monkeypatch):
    others = spread(Inside(2, {("train", 2, 0): 1}), FEDAVG, SIZES)
    sent, send = [], others.trainer._sent

    def noted(i):
        sent.append((i, len((state := send(i)).clients)))
        return state

    monkeypatch.setattr(others.trainer, "_sent", noted)
    others.run()
    assert sent[:2] == [(0, 4), (1, 4)]
    assert [call for call in sent[2:] if call[1]] == [(0, 4)]


def test_a_run_goes_on_from_a_checkpoint(federate, spread, tmp_path):
    def checkpointed(federation, out, after_round=None):
        with Checkpointer(out, {"settings": {}}, every=1) as checkpointer:
            checkpointer.run(federation, after_round)
        return federation

    whole = checkpointed(federate(TUNED, SIZES, rounds=4, cohort_size=4), tmp_path / "whole")
    with pytest.raises(Killed):
        checkpointed(
            spread(Inside(2), TUNED, SIZES, rounds=4), tmp_path / "spread", killed_after(3)
        )
    # Where it went on, in this process or in actors, makes no difference.
    for make in (partial(spread, Inside(2)), partial(federate, cohort_size=4)):
        found = checkpointed(make(TUNED, SIZES, rounds=4), tmp_path / "spread")
        assert_equal(found, whole)


def test_a_client_that_fails_is_left_out_by_its_number(federate, spread, caplog):
    alone, others = federate(FEDAVG, SIZES, cohort_size=4), spread(Inside(2), FEDAVG, SIZES)
    for federation in (alone, others):
        federation.train.tensors["x"][6] = torch.inf
        federation.run()
        assert f"client 6 ({DIVERGED})" in caplog.text
        caplog.clear()
    assert [r.failed for r in others.reports] == [1, 1, 1]
    assert_equal(others, alone)


def test_other_samples_are_scored_here(federate, spread):
    others = spread(actors := Inside(2), TUNED, SIZES)
    others.run()
    del actors.calls[:]
    alone = federate(TUNED, SIZES, cohort_size=4)
    alone.run()
    assert others.evaluate(others.train) == alone.evaluate(alone.train)
    assert others.evaluate(others.validation, others.best) == pytest.approx(
        min(r.validation_loss for r in others.reports), rel=ROUNDING
    )
    assert {name for name, *_ in actors.calls} <= {"ready"}


@pytest.mark.parametrize("cohort", [1, 3, 8, 50])
@pytest.mark.parametrize(("clients", "n"), [(1, 1), (7, 7), (100, 2), (101, 3)])
def test_every_client_is_in_one_part(clients, n, cohort):
    parts = split_clients(clients, n, cohort)
    assert [i for part in parts for i in part] == list(range(clients))
    assert len(parts) == n
    assert min(map(len, parts)) >= max(1, clients // n - cohort)


def test_more_actors_than_clients_are_refused(spread):
    with pytest.raises(InputError, match=r"9 actors .*8 clients"):
        spread(Inside(9), FEDAVG, SIZES)
