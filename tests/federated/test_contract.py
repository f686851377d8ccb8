"""What every federated method must do, whatever it is; a new method is tested by existing."""

import dataclasses
import math
from contextlib import suppress
from functools import partial
from typing import get_args

import pytest
import torch
from waiting import Killed, killed_after

from data_prep.base.errors import InputError
from stforecast.federated.core.declared import Disclosure
from stforecast.federated.core.method import predictions
from stforecast.federated.core.state import Participants, State
from stforecast.federated.nodes.summing import summand_weights
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.federated.uploads.robust import RULES, Robust
from stforecast.methods import METHODS as ALL

METHODS = {n: m for n, m in ALL.items() if not m.__module__.startswith("stforecast.methods.")}
SIZES = (4, 8, 4, 9, 12)


CASES = [(name, build) for name in METHODS for build in ("stacked", "module")]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    """Name of a method, and of a model: stacked layers, or modules with running statistics."""
    return request.param


@pytest.fixture
def method(case):
    return METHODS[case[0]]


@pytest.fixture
def build(case, request):
    return request.getfixturevalue(case[1])


def assert_equal(state, other, tolerance=0.0):
    torch.testing.assert_close(state.flat(), other.flat(), rtol=tolerance, atol=tolerance)


def copied(state):
    return State.from_flat(
        {name: t.clone() for name, t in state.flat().items()}, state.round, state.seed
    )


def run(federation):
    federation.run()
    return federation.state


def client_rows(state, i):
    groups = state.clients.groups()
    return {f"{group}/{name}": t[i].clone() for group, ts in groups for name, t in ts.items()}


@pytest.mark.parametrize("name", METHODS)
def test_it_describes_itself(name):
    method = METHODS[name]
    assert method.summary
    assert method.paper
    assert set(method.views) <= {"personal", "global"}
    assert dataclasses.is_dataclass(method.Options)
    assert method.Options.__dataclass_params__.frozen
    assert method.Options() == method.Options()
    assert method.sends.sums in ("none", "samples", "clients")
    assert method.sends.sums == "none" or not method.sends.apart
    assert method.sends.sums != "none" or method.sends.needs_each
    assert method.attacked.discloses in get_args(Disclosure)
    assert set(method.attacked.guards) <= set(RULES)
    assert method.attacked.unguarded


@pytest.mark.quick(4)
@pytest.mark.parametrize("sizes", [SIZES, (12,)], ids=["unequal clients", "one client"])
def test_rounds_leave_finite_tensors_and_reports(federate, method, build, sizes):
    federation = federate(method, sizes, build=build)
    initial = copied(federation.state)
    state = run(federation)
    assert state.round == len(federation.reports) == 3
    assert all(t.isfinite().all() for t in state.flat().values())
    odd = {n: v for row in federation.history() for n, v in row.items() if not math.isfinite(v)}
    assert not odd
    for group, tensors in state.clients.groups():
        assert {name for name, t in tensors.items() if len(t) != len(sizes)} == set(), group
    for i in range(len(sizes)):
        before, after = client_rows(initial, i), client_rows(state, i)
        assert any(not torch.equal(before[n], after[n]) for n in before if n.startswith("params/"))


@pytest.mark.quick(2)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_refused_or_leaves_finite_tensors(federate, method, build, rule):
    settings = {"sizes": SIZES, "build": build, "rounds": 2, "robust": Robust(rule)}
    if rule not in method.attacked.guards:
        with pytest.raises(InputError, match=f"robust='{rule}' cannot protect {method.name}"):
            federate(method, **settings)
        return
    assert all(t.isfinite().all() for t in run(federate(method, **settings)).flat().values())


@pytest.mark.quick(4)
@pytest.mark.sampled(6)
def test_messages_have_a_client_axis_and_their_bytes_are_counted(
    federate, method, build, monkeypatch
):
    federation = federate(method, SIZES, build=build, cohort_size=2)
    down, up, seen = [], [], []
    local_update = federation.method.local_update

    def note(cohort, message):
        # Not asserted here: an error of a cohort makes the core try its clients one by one.
        seen.extend((len(t) == len(cohort), t.requires_grad) for t in message.values())

    def watched(cohort, payload):
        note(cohort, payload)
        upload = local_update(cohort, payload)
        note(cohort, upload)
        for sent, message in ((down, payload), (up, upload)):
            sent.append(sum(t.contiguous().numpy().nbytes for t in message.values()))
        return upload

    monkeypatch.setattr(federation.method, "local_update", watched)
    for _ in range(2):
        report = federation.run_round()
        assert (report.bytes_down, report.bytes_up) == (sum(down), sum(up))
        assert set(seen) <= {(True, False)}
        down.clear()
        up.clear()


@pytest.mark.slow
def test_it_learns(federate, method, build):
    federation = federate(method, (8, 12, 8, 13, 20), build=build, rounds=12, lr=0.05)
    untrained = federation.evaluate(federation.validation)
    federation.run()
    assert federation.best.round > 1
    assert federation.evaluate(federation.validation) < untrained


@pytest.mark.quick(4)
@pytest.mark.sampled(8)
def test_numbers_do_not_depend_on_the_cohort_size(federate, method, build):
    alone, pairs, together = (
        run(federate(method, SIZES, build=build, cohort_size=size, rounds=2))
        for size in (1, 2, len(SIZES))
    )
    assert_equal(alone, together, tolerance=1e-5)
    assert_equal(pairs, together, tolerance=1e-5)


@pytest.mark.quick(2)
@pytest.mark.sampled(12)
def test_the_seed_decides_every_number(federate, method, build):
    torch.manual_seed(1)
    first = run(federate(method, SIZES, build=build, participation=0.5))
    torch.manual_seed(2)
    second = run(federate(method, SIZES, build=build, participation=0.5))
    assert_equal(first, second)
    other = run(federate(method, SIZES, build=build, participation=0.5, seed=2))
    assert any(
        not torch.equal(t, other.clients.params[name]) for name, t in first.clients.params.items()
    )


@pytest.mark.quick(5)
@pytest.mark.sampled(3)
def test_no_number_comes_from_the_global_generators(federate, method, build):
    before = torch.get_rng_state()
    run(federate(method, SIZES, build=build))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.quick(3)
@pytest.mark.sampled(9)
@pytest.mark.attack("kills")
def test_a_killed_run_goes_on_as_if_it_never_was(federate, method, build, tmp_path):
    settings = {"sizes": SIZES, "build": build, "participation": 0.6, "rounds": 4}
    whole = federate(method, **settings)
    whole.run()
    for round in (3, 3, None):  # Round 3 is done again: it ended before its checkpoint.
        last = federate(method, **settings)
        with Checkpointer(tmp_path, {"settings": {}}, every=1) as checkpointer, suppress(Killed):
            checkpointer.run(last, killed_after(round))
    assert_equal(last.state, whole.state)
    assert_equal(last.best, whole.best)
    rows = [[{**row, "seconds": 0} for row in f.history()] for f in (last, whole)]
    assert rows[0] == rows[1]


@pytest.mark.quick(3)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("round", [0, 1])
def test_a_client_that_diverges_is_left_out_and_comes_back(
    federate, method, build, round, monkeypatch
):
    federation = federate(method, SIZES, build=build)
    before = client_rows(federation.state, 1)
    local_update = federation.method.local_update

    def diverging(cohort, payload):
        upload = local_update(cohort, payload)
        if cohort.round == round and 1 in cohort.ids:
            with torch.no_grad():
                for t in (*cohort.params.values(), *upload.values()):
                    if t.is_floating_point():
                        t[cohort.ids.tolist().index(1)] = math.nan
        return upload

    monkeypatch.setattr(federation.method, "local_update", diverging)
    reports = []
    for _ in range(3):
        reports.append(federation.run_round())
        assert all(t.isfinite().all() for t in federation.state.flat().values())
        if reports[-1].round == 1 and round == 0:
            assert all(
                torch.equal(t, before[n]) for n, t in client_rows(federation.state, 1).items()
            )
    assert [r.failed for r in reports] == [int(i == round) for i in range(3)]
    assert all(math.isfinite(r.train_loss) for r in reports)
    after = client_rows(federation.state, 1)
    assert any(not torch.equal(t, before[name]) for name, t in after.items())


@pytest.mark.quick(4)
@pytest.mark.sampled(4)
def test_clients_that_sit_a_round_out_are_left_as_they_are(federate, method, build):
    federation = federate(method, SIZES, build=build, participation=0.4)
    assert federation.run_round().participants == 5
    first = copied(federation.state)
    present = federation.participants().ids.tolist()
    assert federation.run_round().participants == len(present) == 2
    for i in range(5):
        before, after = client_rows(first, i), client_rows(federation.state, i)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert any(n.startswith("params/") for n in changed) == (i in present), i
        assert i in present or not changed
    server = federation.state.server
    assert {n: t.shape for n, t in server.items()} == {n: t.shape for n, t in first.server.items()}
    assert all(t.isfinite().all() for t in server.values())


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
def test_the_server_shares_no_memory_with_the_clients(federate, method, build):
    federation = federate(method, build=build)
    for _ in range(2):
        federation.run_round()
        sides = {"clients": set(), "server": set()}
        for name, t in federation.state.flat().items():
            sides[name.partition("/")[0]].add(t.untyped_storage().data_ptr())
        assert not sides["clients"] & sides["server"]


@pytest.mark.quick(4)
@pytest.mark.sampled(6)
def test_predicting_gives_every_output_and_changes_nothing(federate, method, build, make_data):
    federation = federate(method, SIZES, build=build)
    run(federation)
    before = copied(federation.state)
    data = make_data((5,) * len(SIZES), seed=2)
    ready = federation.ready()
    assert_equal(federation.state, before)
    for view in federation.method.views:
        predict = partial(predictions, federation.method, ready, data, view=view)
        (_, first), (_, rest) = predict(cohort_size=3)
        assert first.shape == (3, 5, 2)
        assert rest.shape == (2, 5, 2)
        assert first.isfinite().all()
        assert not first.requires_grad
        assert_equal(federation.state, before)
        torch.testing.assert_close(torch.cat([first, rest]), torch.cat([p for _, p in predict()]))


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
def test_a_global_model_is_the_same_for_all_clients(federate, method, build, make_data):
    if "global" not in method.views:
        pytest.skip(f"{method.name} has no global model")
    federation = federate(method, SIZES, build=build)
    run(federation)
    data = make_data((5,) * len(SIZES))
    data.tensors["x"][:] = data.tensors["x"][0].clone()
    # Where clients predict with the bodies that they trained, the server's average is global.
    averaged = partial(predictions, view="global", way="averaged")
    ((_, y_hat),) = averaged(federation.method, federation.ready(), data)
    torch.testing.assert_close(y_hat, y_hat[:1].expand_as(y_hat))


@pytest.mark.quick(3)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("absent", [-1, 1])
def test_a_server_that_needs_sums_learns_the_same_from_them(federate, method, build, absent):
    """In double precision. The sizes, which a secure sum hides, are 1; one client is left out."""
    if method.sends.sums == "none":
        pytest.skip(f"{method.name}: {method.sends.needs_each}")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        pairs = states_by_uploads_and_by_sums(federate(method, SIZES, build=build), absent)
    finally:
        torch.set_default_dtype(before)
    assert len(pairs) == 3
    for single, summed in pairs:
        assert single.keys() == summed.keys()
        for name in single.keys() - {"members"}:  # Clients and their sizes, not what they sent.
            torch.testing.assert_close(single[name], summed[name], rtol=1e-9, atol=1e-11)


def states_by_uploads_and_by_sums(federation, absent):
    """The server's states after each round, from uploads and from their mean alone."""
    aggregate, pairs = federation.method.aggregate, []

    def both(state, of, uploads):
        some = of.ids != absent
        uploads = {n: t[some] for n, t in uploads.items()}
        uploads = {n: t.double() if t.is_floating_point() else t for n, t in uploads.items()}
        assert not any(t.dtype == torch.bool for t in uploads.values()), "flags have no mean"
        of = Participants(of.ids[some], of.sizes[some], of.round, of.stage)
        weights = summand_weights(federation.method.sends.sums, of.sizes)
        means = {n: torch.tensordot(weights, t.double(), 1) / weights.sum()
                 for n, t in uploads.items()}  # fmt: skip
        means = {n: t if uploads[n].is_floating_point() else t.round() for n, t in means.items()}
        same = {n: t.to(uploads[n]).expand_as(uploads[n]) for n, t in means.items()}
        unknown = Participants(of.ids, torch.ones_like(of.sizes), of.round, of.stage)
        pairs.append((aggregate(state, of, uploads), aggregate(state, unknown, same)))
        return pairs[-1][0]

    federation.method.aggregate = both
    federation.run()
    return pairs
