"""One of five nodes sends anything: the run goes on, names it, and is hardly worse for it."""

import math

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.core.tensors import like_of
from stforecast.federated.engine.rounds import Server
from stforecast.federated.nodes import masker
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Finished, Message
from stforecast.federated.nodes.node import Node
from stforecast.federated.nodes.reported import FARTHEST, MOVED
from stforecast.federated.runs.checkpoint import newest_sound
from stforecast.federated.uploads.masking import SecureSums
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.flower.server_app import mean_test_errors
from stforecast.methods import METHODS as ALL

METHODS = {n: m for n, m in ALL.items() if not m.pooled}
LIAR, N = 4, 5
NOISE = torch.Generator().manual_seed(3)
pytestmark = pytest.mark.attack("hostile answers")


def signs(t):
    return torch.where(torch.rand(t.shape, generator=NOISE) < 0.5, -1.0, 1.0)


CONTENTS = {
    "3e38": lambda t: torch.full_like(t, 3e38),
    "-3e38": lambda t: torch.full_like(t, -3e38),
    "3e38 of random signs": lambda t: 3e38 * signs(t),
    "1e18 of random signs": lambda t: 1e18 * signs(t),
    "1e10": lambda t: torch.full_like(t, 1e10),
    "a thousandfold": lambda t: -1e3 * (t.abs() + 1),
    "NaN": lambda t: torch.full_like(t, math.nan),
    "infinity": lambda t: torch.full_like(t, math.inf),
    "-infinity": lambda t: torch.full_like(t, -math.inf),
    "subnormal": lambda t: torch.full_like(t, 1e-45),
    "zero": torch.zeros_like,
    "random signs": lambda t: t * signs(t),
}
HARMLESS = ("subnormal", "zero", "random signs")
"""Contents that are in bounds, so that no check of single uploads can find them."""


def everywhere(t):
    return torch.ones_like(t, dtype=torch.bool)


def in_one_entry(t):
    chosen = torch.zeros_like(t, dtype=torch.bool)
    chosen.view(-1)[t.numel() // 2 : t.numel() // 2 + 1] = True
    return chosen


def sparsely(t):
    return (torch.arange(t.numel()) % 7 == 0).view(t.shape)


PLACES = {"everywhere": everywhere, "in one entry": in_one_entry, "sparsely": sparsely}


def with_content(content, place):
    """A lie about the values of floating-point tensors; -1 stands for a huge value in others."""

    def lie(about, payload):
        changed = {
            n: torch.where(place(t), content(t), t) if t.is_floating_point() else t
            for n, t in payload.items()
        }
        return about, changed

    return lie


def told(change):
    """A lie that announces the tensors that it sends."""

    def lie(about, payload):
        payload = change(payload)
        return {**about, "like": like_of(payload)}, payload

    return lie


def silently(change):
    return lambda about, payload: (about, change(payload))


def saying(**forged):
    return lambda about, payload: ({**about, **forged}, payload)


def each(change):
    return lambda payload: {n: change(t) for n, t in payload.items()}


TYPES = (torch.int32, torch.int64, torch.bool, torch.uint8, torch.float16, torch.complex64,
         torch.float64)  # fmt: skip
SHAPES = {
    "one row more": lambda t: torch.cat([t, t[:1]]),
    "no row": lambda t: t[:0],
    "an axis more": lambda t: t[..., None],
    "no axis": lambda t: t.sum(),
    "no values": lambda t: t.new_zeros(len(t), 0),
    "many values": lambda t: t.reshape(len(t), -1).repeat(1, 100),
}
NAMES = {
    "renamed": lambda p: {f"{n}'": t for n, t in p.items()},
    "one missing": lambda p: dict(list(p.items())[1:]),
    "one more": lambda p: {**p, "more": torch.zeros(1, 1)},
    "ten thousand more": lambda p: {**p, **{f"more{i}": torch.zeros(1, 1) for i in range(10_000)}},
    "none": lambda p: {},
}
ABOUT = {
    "client of another": {"ids": [0]}, "client twice": {"ids": [LIAR, LIAR]},
    "negative client": {"ids": [-1]}, "huge client": {"ids": [10**30]},
    "clients as text": {"ids": "all"}, "client as a half": {"ids": [None]},
    "loss NaN": {"loss": math.nan}, "infinite loss": {"loss": math.inf},
    "negative loss of the task": {"task_loss": -1e9}, "negative score": {"score": [-1e300, 1e3]},
    "score NaN": {"score": [math.nan, 1.0]}, "negative count": {"score": [1.0, -5.0]},
    "score of one part": {"score": [1.0]}, "huge integer": {"loss": 10**400},
    "like as text": {"like": "w"}, "huge header": {"like": {"w" * 10**6: ["float32", 3]}},
    "negative shape": {"like": {"w": ["float32", -1]}}, "no such type": {"like": {"w": ["f", 1]}},
}  # fmt: skip
BOUNDED = {
    "loss -1e9": {"loss": -1e9}, "loss 1e300": {"loss": 1e300},
    "task's loss 1e300": {"task_loss": 1e300}, "task's loss NaN": {"task_loss": math.nan},
    "score 1e300": {"score": [1e300, 1e3]}, "score of 1e12": {"score": [0.0, 1e12]},
}  # fmt: skip
"""Numbers that are accepted, but bounded, and the node is named."""

REFUSED = {
    **{f"{c} {p}": with_content(CONTENTS[c], PLACES[p]) for c in CONTENTS for p in PLACES
       if c not in HARMLESS},
    **{f"{kind} as announced": told(each(lambda t, kind=kind: t.to(kind))) for kind in TYPES},
    **{f"{kind} unannounced": silently(each(lambda t, kind=kind: t.to(kind))) for kind in TYPES},
    **{f"{shape} as announced": told(each(SHAPES[shape])) for shape in SHAPES},
    **{f"{shape} unannounced": silently(each(SHAPES[shape])) for shape in SHAPES},
    **{f"names: {name}, announced": told(NAMES[name]) for name in NAMES},
    **{f"names: {name}": silently(NAMES[name]) for name in NAMES},
    **{f"about: {name}": saying(**ABOUT[name]) for name in ABOUT},
    "nothing about": lambda about, payload: ({}, payload),
}  # fmt: skip
ACCEPTED = {
    **{f"{c} {p}": with_content(CONTENTS[c], PLACES[p]) for c in HARMLESS for p in PLACES},
    **{f"bounded: {name}": saying(**BOUNDED[name]) for name in BOUNDED},
    "no score": saying(score=[0.0, 0.0]),
    "no clients": lambda about, payload: ({**about, "ids": [], "like": {}}, {}),
}
LIES = REFUSED | ACCEPTED
SILENCE = lambda about, payload: "no answer"  # noqa: E731


@pytest.fixture
def run(federate, split, monkeypatch, logged, caplog):
    """Runs a method with a lie, on nodes that stay in memory; returns coordinator and log."""

    def go(name, lie, rounds=3, folder=None, **options):
        monkeypatch.setattr(Node, "_save", lambda self: None)
        caplog.clear()
        torch.manual_seed(0)
        NOISE.manual_seed(3)
        federation = federate(METHODS[name], (12,) * N, rounds=rounds, epochs=1, **options)
        coordinator, link = split(federation, (1,) * N, folder=folder)
        kept = {node: make() for node, make in link.factories.items()}
        link.factories = {node: lambda before=None, k=k: k for node, k in kept.items()}

        coordinator.means = []

        def spoil(node, round, answer):
            if node != LIAR and link.task == "round" and answer.about["score"][1]:
                total, count = answer.about["score"]
                coordinator.means.append(total / count)
            if node != LIAR or link.task != "round" or not answer.about.get("ids"):
                return answer
            found = lie(answer.about, answer.payload)
            return found if isinstance(found, str) else Message(*found)

        link.spoil = spoil
        coordinator.run()
        return coordinator, logged()

    return go


WITHOUT = {}
"""Losses and server's state of each method when the liar sends nothing."""


@pytest.mark.quick(4)
@pytest.mark.sampled(240)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_without_a_liar(name, lie, run):
    if name not in WITHOUT:
        silent, _ = run(name, SILENCE)
        WITHOUT[name] = losses_of(silent), silent.server.state.server
    losses, state = WITHOUT[name]
    coordinator, said = run(name, LIES[lie])
    server = coordinator.server
    assert len(server.reports) == 3
    assert len(losses_of(coordinator)) == len(losses)
    assert all(map(math.isfinite, losses_of(coordinator)))
    assert all(t.isfinite().all() for t in server.state.server.values())
    if mentions(said, f"without node {LIAR}", f"{LIAR} to {LIAR})"):
        assert losses_of(coordinator) == losses
        assert all(torch.equal(t, state[n]) for n, t in server.state.server.items())
    else:
        assert lie in ACCEPTED or not coordinator._like  # Or the method sends nothing.
        bound = 3 * max(losses)
        if "bounded" in lie:  # The median of five nodes' means is at most the largest honest one.
            assert mentions(said, f"node {LIAR}", f"{LIAR} to {LIAR})", "bounded")
            bound = (1 + FARTHEST) * max(coordinator.means)
        assert max(losses_of(coordinator)) <= bound


def losses_of(coordinator):
    reports = coordinator.server.reports
    return [r.validation_loss for r in reports if coordinator.method.validates(r.round)]


@pytest.mark.parametrize("kind", ["median", "clip"])
@pytest.mark.parametrize("lie", ["3e38 of random signs everywhere", "NaN in one entry"])
def test_a_defence_does_not_meet_what_is_refused(lie, kind, run):
    coordinator, said = run("fedavg", LIES[lie], robust=Robust(kind))
    assert f"without node {LIAR}" in said
    assert all(map(math.isfinite, losses_of(coordinator)))


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_of_huge_values_are_refused_too(bits, run):
    def lie(about, payload):
        floats = {n: 3e38 * torch.ones_like(t) for n, t in payload.items() if t.dtype.itemsize > 1}
        return about, {**payload, **floats}

    coordinator, said = run("fedavg", lie, uplink=Uplink(bits=bits))
    assert f"without node {LIAR}" in said
    assert all(map(math.isfinite, losses_of(coordinator)))


def test_a_node_that_lies_in_three_rounds_in_a_row_is_not_let_in_again(run):
    coordinator, said = run("fedavg", LIES["3e38 everywhere"], rounds=5)
    assert mentions(said, f"node {LIAR}", "4 to 4)", "again: its '")
    assert [r.participants for r in coordinator.server.reports] == [5, 5, 5, 4, 4]
    assert said.count("goes on without") == 3


def test_an_upload_that_only_the_solver_cannot_use_is_found(run, monkeypatch):
    """Its norm is the smallest, so the others are tried first."""

    def merged(server, ids, upload):
        if any((t == 0).flatten(1).all(1).any() for t in upload.values()):
            raise torch.linalg.LinAlgError("singular")
        return true(server, ids, upload)

    true = Server.merged
    monkeypatch.setattr(Server, "merged", merged)
    honest, _ = run("fedavg", SILENCE)
    coordinator, said = run("fedavg", LIES["zero everywhere"])
    assert mentions(said, "without node 4", "4 to 4):", "upload")
    assert losses_of(coordinator) == losses_of(honest)


def test_if_no_choice_of_nodes_helps_the_run_ends_and_its_checkpoint_is_sound(
    run, monkeypatch, tmp_path
):
    def merged(server, ids, upload):
        after = true(server, ids, upload)
        return {n: t * math.inf for n, t in after.items()} if server.state.round else after

    true = Server.merged
    monkeypatch.setattr(Server, "merged", merged)
    with pytest.raises(InputError, match="values up to inf, w"):
        run("fedavg", SILENCE, folder=tmp_path / "server")
    found = newest_sound(tmp_path / "server", {})
    assert found.state.round == 1
    assert all(t.isfinite().all() for t in found.state.server.values())


@pytest.mark.parametrize("lie", ["3e38 everywhere", "1e18 of random signs in one entry"])
def test_of_two_nodes_the_one_far_from_the_model_is_left_out(lie, federate, split, logged):
    coordinator, link = split(federate(METHODS["fedavg"], (12,) * N), (4, 1))
    link.spoil = lambda node, round, answer: (
        Message(*LIES[lie](answer.about, answer.payload)) if node and answer.payload else answer
    )
    coordinator.run()
    assert mentions(logged(), "without node 1", "4 to 4): its '")
    assert all(map(math.isfinite, losses_of(coordinator)))


def test_a_secure_sum_of_huge_values_is_repeated_and_nobody_is_named(
    federate, split, logged, monkeypatch, tmp_path
):
    """A node hides values that are a thousand million times too large, from round 2 on."""
    patience = Patience(0.2, 1, 0.01)
    coordinator, _ = split(
        federate(METHODS["fedavg"], (12,) * N), (2, 1, 2), patience=patience,
        secure=SecureSums(), folder=tmp_path / "server",
    )  # fmt: skip
    true = masker.weighted_sums

    def sums(upload, weights):
        lies = coordinator.server.state.round and len(weights) == 1
        return {n: t + 1e9 * lies for n, t in true(upload, weights).items()}

    monkeypatch.setattr(masker, "weighted_sums", sums)
    with pytest.raises(InputError, match=r"3 times.*: its '.*norm "):
        coordinator.run()
    assert mentions(logged(), "round 2:", "lost: its '")
    assert "without node" not in logged()
    found = newest_sound(tmp_path / "server", {})
    assert found.state.round == 1
    assert all(t.abs().max() < 10 for t in found.state.server.values())


JOINS = {
    "no samples": {"sizes": [0]}, "negative": {"sizes": [-5]}, "too many": {"sizes": [2**40]},
    "as text": {"sizes": "12"}, "a flag": {"sizes": [True]}, "none": {"sizes": []},
    "a fraction": {"sizes": [1.5]}, "those of another": {"first": 0}, "before all": {"first": -1},
    "beyond the last": {"first": 99}, "no place": {"first": None}, "NaN": {"first": math.nan},
}  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("forged", JOINS.values(), ids=JOINS)
def test_who_joins_with_nonsense_is_not_let_in(forged, federate, split, logged):
    patience = Patience(0.1, 1, 0.01, enough=4)
    coordinator, link = split(federate(METHODS["fedavg"], (12,) * N), (1,) * N, patience=patience)
    link.spoil = lambda node, round, answer: (
        Message({**answer.about, **forged}) if (node, link.task) == (LIAR, "join") else answer
    )
    coordinator.run()
    assert mentions(logged(), f"node {LIAR}", "let in")
    assert all(map(math.isfinite, losses_of(coordinator)))


HONEST = {"mse": 0.2, "mae": 0.3}
ENDS = {
    "-1e9": {"mse": -1e9, "mae": -1e9}, "NaN": {"mse": math.nan}, "infinity": {"mse": math.inf},
    "1e300": {"mse": 1e300, "mae": 0.3}, "11 times": {"mse": 2.2}, "nearly 0": {"mse": 1e-9},
    "0": {"mse": 0.0, "mae": 0.0}, "barely negative": {"mae": -1e-300},
}  # fmt: skip


@pytest.mark.parametrize("forged", ENDS.values(), ids=ENDS)
def test_forged_test_errors_change_nothing_and_are_named(forged, caplog):
    finished = {n: Finished(HONEST, 10) for n in range(4)}
    finished[LIAR] = Finished({**HONEST, **forged}, 2**31 - 1)
    errors, left_out, doubtful = mean_test_errors(finished, dict.fromkeys(finished, 9))
    assert errors == pytest.approx(HONEST)
    assert (left_out.keys(), doubtful) == ({LIAR}, {})
    assert mentions(caplog.text, f"node {LIAR}", "errors: its test m")


@pytest.mark.parametrize("n", [3, 4, 10])
@pytest.mark.parametrize("factor", [0.12, 0.5, 0.9, 1.2, 2.0, 8.5])
@pytest.mark.parametrize("targets", [1, 10, 20, 21, 2**31 - 1])
def test_who_moves_the_test_errors_is_named(n, factor, targets, caplog):
    """In silence, the errors move by at most a factor of `MOVED`, whatever a node claims."""
    lie = {name: factor * v for name, v in HONEST.items()}
    finished = {n: Finished(HONEST, 10) for n in range(n - 1)} | {n: Finished(lie, targets)}
    errors, left_out, doubtful = mean_test_errors(finished, dict.fromkeys(finished, 9))
    assert left_out == {}
    moved = max(errors["mse"] / HONEST["mse"], HONEST["mse"] / errors["mse"])
    assert doubtful.keys() == ({n} if moved > MOVED or targets > 20 else set())
    assert (f"node {n} counts" in caplog.text) == bool(doubtful)
    assert errors["mse"] == pytest.approx(
        HONEST["mse"]
        * (10 * (n - 1) + factor * min(targets, 20))
        / (10 * (n - 1) + min(targets, 20))
    )


def test_of_two_nodes_nobody_can_tell_who_lies():
    finished = {0: Finished(HONEST, 10), 1: Finished({"mse": 99.0, "mae": 0.3}, 10**6)}
    errors, *named = mean_test_errors(finished, {0: 9, 1: 9})
    assert errors["mse"] == pytest.approx(99, rel=1e-3)
    assert named == [{}, {}]
