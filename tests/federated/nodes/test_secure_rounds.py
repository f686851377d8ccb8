"""A federation under secure aggregation computes what one without it does, and tells less."""

import dataclasses
import math
import shutil

import pytest
import torch
from mentions import mentions
from scipy.stats import kstest, norm

from data_prep.base.errors import InputError
from stforecast.federated.core.tensors import with_axes
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.nodes import masker
from stforecast.federated.nodes.masker import SUM
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import FEW_CELLS, Message
from stforecast.federated.nodes.node_sums import check_sums, check_uploads
from stforecast.federated.uploads.masking import FRACTION, SecureSums
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.methods import METHODS

SECURE = SecureSums()
SIZES, SHARES = (8, 12, 8, 16, 8), (2, 1, 2)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def forget(link):
    """Remove the nodes' state of an earlier run."""
    for make in link.factories.values():
        shutil.rmtree(make().folder)


def assert_equal_rounds(reports, expected):
    for name in ("round", "train_loss", "train_task_loss", "validation_loss", "participants"):
        for report, other in zip(reports, expected, strict=True):
            found, wanted = getattr(report, name), getattr(other, name)
            assert found == pytest.approx(wanted, rel=1e-4, nan_ok=True), (name, report)


@pytest.mark.quick(2)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["fedavg", "fedlean", "fedtrees", "scaffold", "fednova", "fedrep"])
def test_numbers_are_those_of_one_process(name, federate, split, stacked, module):
    """Of methods that weigh by samples, equally, and add up; the contract has all others."""
    federation = federate(METHODS[name], SIZES, build=module if name == "fedavg" else stacked)
    coordinator, link = split(federation, SHARES, secure=SECURE)
    finished = coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    server = federation.state.server
    close({n: t for n, t in coordinator.server.state.server.items() if n != "members"},
          {n: t for n, t in server.items() if n != "members"})  # fmt: skip
    for make in link.factories.values():
        node = make()
        own = node.trainer.state.clients.flat()
        for n, t in federation.state.clients.flat().items():
            close(own[n], t[node.trainer.numbers.start : node.trainer.numbers.stop])
    assert coordinator.test_errors == {"mse": 1.0, "mae": 0.25}  # 12 / 12 and 3 / 12.
    assert all(not f.errors for f in finished.values())


def test_the_mean_is_that_of_plain_averaging_within_the_quantisation(double, federate, split):
    """In double precision, where the quantisation is all that differs."""
    models = []
    for secure in (None, SECURE):
        federation = federate(FedAvg, SIZES, rounds=1)
        coordinator, _ = split(federation, SHARES, secure=secure)
        coordinator.run()
        models.append(coordinator.server.state.server)
        forget(coordinator.link)
    bound = len(SHARES) / 2 ** (FRACTION + 1) / sum(SIZES)
    for name, t in models[0].items():
        assert ((t - models[1][name]).abs() <= bound + 1e-15 * t.abs()).all()
    assert any(not torch.equal(t, models[1][name]) for name, t in models[0].items())


@pytest.mark.repeats
@pytest.mark.parametrize(
    "settings", [{"participation": 0.4, "rounds": 4}, {"lr": 1.0, "rounds": 6}]
)
def test_settings_mean_the_same(settings, federate, split):
    """Some nodes have no client that trains; without a vote, the pooled loss decides."""
    federation = federate(FedAvg, SIZES, **settings)
    coordinator, _ = split(federation, SHARES, secure=SECURE)
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    assert coordinator.server.best_round == federation.best.round


def test_noise_is_added_before_the_sum(federate, split, monkeypatch):
    federation = federate(FedAvg, SIZES, uplink=Uplink("gaussian", noise_std=0.1, clip=1.0))
    monkeypatch.setattr(Trainer, "secret_noise", property(lambda _: False, lambda *_: None))
    coordinator, _ = split(federation, SHARES, secure=SECURE)
    coordinator.run()
    federation.run()
    assert_equal_rounds(coordinator.server.reports, federation.reports)


@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_nodes_share_noise_that_as_many_as_have_to_stay_add_up_to(
    participation, federate, split, monkeypatch
):
    """Each adds σ/√2 of three to its sum, also without a client that trains; clients add none."""
    models, uplink = [], Uplink("gaussian", noise_std=0.5, clip=2.0)
    for drawn in (torch.zeros, torch.ones):
        monkeypatch.setattr(masker, "secret_draws", lambda law, shape, drawn=drawn: drawn(shape))
        federation = federate(
            FedAvg, SIZES, rounds=1, uplink=uplink, participation=participation, full_start=False
        )
        coordinator, link = split(federation, SHARES, secure=SecureSums(share_noise=True))
        coordinator.run()
        models.append(coordinator.server.state.server)
        n = coordinator.server.reports[0].participants
        forget(link)
    for name, t in models[1].items():
        shift = 3 * 0.5 / math.sqrt(2) / n
        torch.testing.assert_close(t - models[0][name], torch.full_like(t, shift))


def test_with_shared_noise_each_client_counts_equally_up_to_the_clipping_norm(
    federate, split, monkeypatch
):
    """A node's own bound would change with its other clients, and so would what noise hides."""
    monkeypatch.setattr(masker, "secret_draws", lambda law, shape: torch.zeros(shape))
    federation = federate(FedAvg, SIZES, rounds=1, uplink=Uplink("gaussian", clip=2.0))
    sizes = torch.tensor(SIZES)
    values = torch.where(sizes == 12, 1e6, sizes / 1000)

    def upload(cohort):
        of = torch.where(cohort.data.sizes == 12, 1e6, cohort.data.sizes / 1000)
        found = FedAvg.upload(federation.method, cohort)
        return {n: torch.ones_like(t) * with_axes(of, t.ndim) for n, t in found.items()}

    federation.method.upload = upload
    coordinator, _ = split(federation, (3, 1, 1), secure=SecureSums(share_noise=True))
    coordinator.run()
    n_values = sum(t.numel() for t in coordinator.server.state.server.values())
    mean = values.clamp(max=2 / math.sqrt(n_values)).mean()
    for t in coordinator.server.state.server.values():
        torch.testing.assert_close(t, mean.expand_as(t))


def test_shared_noise_has_the_stated_law():
    """Kolmogorov-Smirnov of the sum over as many nodes as have to stay; fails once in 10¹⁰ runs."""
    settings, shapes = SecureSums(), {masker.UPLOAD + "w": [4000], masker.NUMBERS: [6]}
    stay = settings.threshold(10)
    parts = [masker.noisy({}, shapes, 3 / math.sqrt(stay)) for _ in range(stay)]
    assert all(set(part) == {masker.UPLOAD + "w"} for part in parts)
    total = torch.stack([part[masker.UPLOAD + "w"] for part in parts]).sum(0)
    assert kstest(total.numpy(), norm(scale=3).cdf).pvalue > 1e-10


@pytest.mark.parametrize("uplink", [Uplink(), Uplink("gaussian"), Uplink("laplace", clip=1.0)])
def test_noise_that_protects_nobody_is_not_shared(uplink):
    with pytest.raises(InputError, match="share_noise needs clip and noise"):
        check_uploads(FedAvg, uplink, Robust(), SecureSums(share_noise=True))


def test_the_server_learns_neither_samples_nor_losses_nor_uploads_of_a_node(federate, split):
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES, secure=SECURE)
    coordinator.run()
    assert coordinator.membership.sizes.tolist() == [1] * 5
    answers = [m for m in link.messages if "task" not in m.about]
    for message in answers:
        assert set(message.payload) <= {SUM}
        assert set(message.about) <= {
            "first", "sizes", "ids", "like", "keys", "sealed", "checks", "own", "unusable",
            "shares", "has_best", "cells", "fewest_cells",
        }  # fmt: skip
        assert message.about.get("sizes", [1]) == [1] * len(message.about.get("sizes", [1]))
    masked = [m.payload[SUM] for m in answers if m.payload]
    assert len(masked) == 3 * (2 + 1 + 1)  # Two rounds, the last score, the finish.
    assert all((t.double().abs() > 2**40).any() for t in masked)


def losing(node, task, round, link):
    """Lose a node's answer to a task of a round."""

    def spoil(of, now, answer):
        if of == node and now == round and link.task == task:
            return "gone"
        return answer

    return spoil


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("stage", "left"), [("round", 3), ("share", 3), ("mask", 3), ("unmask", 5)]
)
def test_a_node_that_is_lost_within_a_round(stage, left, federate, split, caplog):
    """Before its masked values arrived they are missing, later they are part of the mean."""
    plain, link = split(federate(FedAvg, SIZES, rounds=1), SHARES)
    if left == 3:
        link.spoil = losing(2, "round", 0, link)
    plain.run()
    forget(link)
    coordinator, link = split(federate(FedAvg, SIZES, rounds=1), SHARES, secure=SECURE)
    link.spoil = losing(2, stage, 0, link)
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [left]
    close(coordinator.server.state.server, plain.server.state.server)
    said = [r.fields for r in caplog.records if "sum" in getattr(r, "fields", {}).get("event", "")]
    expected = [
        {"event": "left_sum", "node": 2, "task": stage, "reason": "gone"},
        {"event": "sum_recovered", "round": 1, "nodes": 3 if left == 5 else 2, "left": 1},
    ]
    assert said == (expected if stage != "round" else [])


def test_who_is_missing_in_the_sum_of_test_errors_is_named(federate, split, logged):
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES, secure=SECURE)
    tasks = []

    def spoil(node, round, answer):
        tasks.append(link.task)
        return "gone" if "finish" in tasks and (node, link.task) == (2, "mask") else answer

    link.spoil = spoil
    coordinator.run()
    assert coordinator.test_errors == pytest.approx({"mse": 0.75, "mae": 0.25})
    assert coordinator.left_out == {2: "the sum of the errors is without it"}
    assert mentions(logged(), "node 2", "errors: the sum")
    assert mentions(logged(), "2 nodes", "complete,", "1")
    assert "round 3" not in logged()


def test_a_lost_sum_is_repeated(federate, split, logged):
    federation = federate(FedAvg, SIZES, rounds=2)
    coordinator, link = split(federation, SHARES, secure=SECURE)
    tries = []

    def spoil(node, round, answer):
        if link.task == "unmask" and round == 1 and node:
            tries.append(node)
            return answer if len(tries) > 2 else "gone"
        return answer

    link.spoil = spoil
    coordinator.run()
    federation.run()
    assert mentions(logged(), "round 2:", "1 nodes revealed")
    assert_equal_rounds(coordinator.server.reports, federation.reports)
    close(coordinator.server.state.server, federation.state.server)


def test_a_dealer_of_false_shares_is_not_let_in_again(federate, split, logged):
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES, secure=SECURE)

    def spoil(node, round, answer):
        if link.task == "share" and node == 1:
            return Message({**answer.about, "own": "0" * 64})
        return answer

    link.spoil = spoil
    coordinator.run()
    assert mentions(logged(), "shares", "node 1", "2 to 2)")
    assert mentions(logged(), "node 1", "2 to 2)", "again")
    assert [r.participants for r in coordinator.server.reports] == [4, 4]


@pytest.mark.repeats
def test_masked_values_that_are_none_cost_the_round(federate, split, logged):
    """Nobody can know whose they were."""
    coordinator, link = split(federate(FedAvg, SIZES, rounds=2), SHARES, secure=SECURE)

    def spoil(node, round, answer):
        if link.task == "mask" and node == 1 and round == 0 and not link.lied:
            link.lied = True
            return Message(answer.about, {SUM: answer.payload[SUM] + 12345})
        return answer

    link.lied, link.spoil = False, spoil
    coordinator.run()
    assert mentions(logged(), "round 1:", "masked")
    assert len(coordinator.server.reports) == 2


def test_who_wants_more_cells_in_a_sum_sends_none_of_its_values(federate, split, logged):
    """The server says why; nobody is asked for masked values."""
    coordinator, link = split(federate(FedAvg, SIZES), SHARES, secure=SECURE, cells=FEW_CELLS)
    with pytest.raises(InputError, match=r"5 cells .* allow_"):
        coordinator.run()
    assert {m.about.get("task", "") for m in link.messages} == {"", "join", "round"}
    assert all(not m.payload for m in link.messages if "task" not in m.about)


def test_a_single_node_is_told_at_once(federate, split):
    coordinator, _ = split(federate(FedAvg, SIZES), (5,), secure=SECURE)
    with pytest.raises(InputError, match="single node"):
        coordinator.run()


@pytest.mark.repeats
def test_a_late_node_joins_the_next_sum(federate, split):
    coordinator, link = split(
        federate(FedAvg, SIZES, rounds=3), SHARES, patience=Patience(0.2, 1, 0.01, enough=4),
        secure=SECURE,
    )  # fmt: skip
    link.absent = lambda node, round: node == 1 and round < 2
    coordinator.run()
    assert [r.participants - r.failed for r in coordinator.server.reports] == [4, 4, 5]
    assert all(math.isfinite(r.validation_loss) for r in coordinator.server.reports)


def test_a_server_that_was_ended_goes_on(federate, split, tmp_path):
    whole, _ = split(federate(FedAvg, SIZES, rounds=3), SHARES, secure=SECURE)
    whole.run()
    forget(whole.link)
    for task in ("unmask", None):
        coordinator, link = split(
            federate(FedAvg, SIZES, rounds=3), SHARES, folder=tmp_path / "server", secure=SECURE
        )

        def spoil(node, round, answer, task=task, link=link):
            if task and link.task == task and round == 1:
                raise KeyboardInterrupt
            return answer

        link.spoil = spoil
        try:
            coordinator.run()
        except KeyboardInterrupt:
            assert coordinator.server.state.round == 1
    same = [dataclasses.replace(r, seconds=0, bytes_up=0, bytes_down=0)
            for r in (*coordinator.server.reports, *whole.server.reports)]  # fmt: skip
    for found, wanted in zip(same[:3], same[3:], strict=True):
        assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(wanted), rel=1e-6)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.sends.sums == "none"])
def test_other_methods_are_refused_by_name_with_the_reason(name):
    with pytest.raises(InputError, match=rf"{name}.*support") as e:
        check_sums(METHODS[name], Uplink(), Robust())
    assert ("by clip" in str(e.value)) != METHODS[name].sends.counts  # As the two exclude another.


@pytest.mark.parametrize(
    ("uplink", "robust", "said"),
    [
        (Uplink(), Robust("median"), "robust='median'"),
        (Uplink(bits=8), Robust(), "out bits"),
        (Uplink(delta_coding=True), Robust(), "delta_coding"),
    ],
)
def test_what_needs_single_uploads_is_refused(uplink, robust, said):
    with pytest.raises(InputError, match=said):
        check_sums(FedAvg, uplink, robust)
