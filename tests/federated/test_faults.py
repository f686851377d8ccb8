"""Clients that fail are left out of the round, counted and told; they poison nobody."""

import math
import re

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.core.method import Method
from stforecast.federated.engine.faults import sound_clients
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.uplink import Uplink
from stforecast.methods import METHODS as ALL

# Others are in test_contract.
METHODS = {n: m for n, m in ALL.items() if m.__module__.startswith("stforecast.methods.")}
SIZES = (8, 8, 8, 8)
BAD = 1


@pytest.fixture
def breaking(monkeypatch):
    """Makes one client's local update fail in some rounds."""

    def make(federation, rounds, how):
        local_update = federation.method.local_update

        def broken(cohort, payload):
            upload = local_update(cohort, payload)
            if cohort.round in rounds and BAD in cohort.ids:
                how(cohort, upload, cohort.ids.tolist().index(BAD))
            return upload

        monkeypatch.setattr(federation.method, "local_update", broken)
        return federation

    return make


def nan(cohort, upload, row):
    for t in upload.values():
        if t.is_floating_point():
            t[row] = math.nan


def diverge(cohort, upload, row):
    with torch.no_grad():
        for t in cohort.params.values():
            t[row] = math.inf
    nan(cohort, upload, row)


def fail(cohort, upload, row):
    raise RuntimeError("no such luck")


def rows(state, i):
    groups = state.clients.groups()
    return {f"{group}/{name}": t[i].clone() for group, ts in groups for name, t in ts.items()}


def assert_equal(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.quick(4)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("rounds", [(0,), (1,)], ids=["first round", "second round"])
@pytest.mark.parametrize("how", [diverge, fail])
@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_fails_is_left_out_and_comes_back(
    federate, breaking, name, how, rounds, caplog
):
    federation = breaking(federate(METHODS[name], SIZES, cohort_size=2), rounds, how)
    before = rows(federation.state, BAD)
    failed = []
    for index in range(3):
        report = federation.run_round()
        failed.append(report.failed)
        assert math.isfinite(report.train_loss)
        validated = federation.method.validates(federation.state.round)
        assert math.isfinite(report.validation_loss) == validated
        assert all(t.isfinite().all() for t in federation.state.flat().values())
        if index == rounds[0] == 0:
            assert_equal(rows(federation.state, BAD), before)
    assert failed == [int(i in rounds) for i in range(3)]
    assert report.participants == len(SIZES)
    reason = "its values are not finite" if how is diverge else "RuntimeError: no such luck"
    assert mentions(caplog.text, f"round {rounds[0] + 1}:", f"client 1 ({reason})")
    # FedDA's first round trains nobody, and clients of protoridge keep nothing of a round.
    if name not in ("fedda", "protoridge"):
        assert any(not torch.equal(t, before[n]) for n, t in rows(federation.state, BAD).items())


def test_others_are_as_if_it_had_not_taken_part(federate, breaking, monkeypatch):
    federation = breaking(federate(FedAvg, SIZES), (0,), diverge)
    federation.run_round()
    absent = federate(FedAvg, SIZES)
    present = absent.trainer.participants(torch.tensor([0, 2, 3]))
    monkeypatch.setattr(absent, "participants", lambda: present)
    absent.run_round()
    torch.testing.assert_close(federation.state.server, absent.state.server)


def test_failures_are_told_once(federate, breaking, caplog):
    federation = breaking(federate(FedAvg, SIZES), (0, 1, 2), diverge)
    federation.run()
    assert [r.failed for r in federation.reports] == [1, 1, 1]
    assert caplog.text.count("left out") == 1


def test_what_a_diverged_client_sent_is_not_remembered(federate, breaking):
    federation = federate(FedAvg, SIZES, uplink=Uplink(bits=8, delta_coding=True))
    breaking(federation, (1,), diverge).run()
    assert all(t.isfinite().all() for t in federation.state.flat().values())


def test_settings_are_nobodys_fault(federate, monkeypatch):
    def refuse(cohort, payload):
        raise InputError("batch_size is too small")

    federation = federate(FedAvg, SIZES)
    monkeypatch.setattr(federation.method, "local_update", refuse)
    with pytest.raises(InputError, match=r"^batch_size .*small$"):
        federation.run_round()


@pytest.mark.parametrize("error", [KeyError("prototypes"), ZeroDivisionError("by zero")])
def test_an_error_in_all_clients_is_internal_and_says_why(federate, monkeypatch, error):
    def refuse(cohort, payload):
        raise error

    federation = federate(Method, SIZES)
    monkeypatch.setattr(federation.method, "local_update", refuse)
    why = re.escape(f"({type(error).__name__}: {error})")
    with pytest.raises(RuntimeError, match=rf"round 1: .*participants.*{why}$"):
        federation.run_round()


@pytest.mark.parametrize("error", [KeyError("w"), IndexError(3), TypeError("not a tensor")])
def test_a_mistake_in_a_method_is_no_matter_of_the_learning_rate(federate, monkeypatch, error):
    def diverge_or_raise(cohort, payload):
        with torch.no_grad():
            cohort.params["head.bias"].fill_(math.nan)
        if BAD in cohort.ids:
            raise error
        return {}

    federation = federate(Method, SIZES, cohort_size=1)
    monkeypatch.setattr(federation.method, "local_update", diverge_or_raise)
    with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
        federation.run_round()
    assert "--lr" not in str(raised.value)


def test_a_decomposition_of_what_is_not_finite_diverged(federate, monkeypatch):
    def decompose(cohort, payload):
        with torch.no_grad():
            cohort.params["head.weight"].fill_(math.nan)
        torch.linalg.svd(cohort.params["head.weight"])

    federation = federate(Method, SIZES)
    monkeypatch.setattr(federation.method, "local_update", decompose)
    with pytest.raises(InputError, match="smaller lr"):
        federation.run_round()


def test_sound_clients():
    big = torch.full((3, 4), 1e38)  # Finite, though its sum is not in single precision.
    bad = {"w": torch.zeros(3, 2, 2), "half": torch.zeros(3, dtype=torch.float16)}
    bad["w"][2, 0, 1] = -math.inf
    counts = {"n": torch.ones(3, dtype=torch.int32)}
    assert sound_clients({"big": big}, counts, n=3).tolist() == [True] * 3
    assert sound_clients(bad, counts, n=3).tolist() == [True, True, False]
    assert sound_clients(n=2).tolist() == [True, True]
