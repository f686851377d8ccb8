"""PFPL against a plain loop over clients, and its mixtures by hand."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants
from stforecast.federated.core.tensors import total_bytes
from vision.methods.pfpl import PFPL, PFPLOptions, mixtures

ALL = torch.arange(3)
ONE = torch.ones(3, 1, dtype=torch.bool)


def mix(points, known=ONE, of=ALL, **options):
    prototypes = torch.tensor(points)[:, None, None]  # One class, one dimension.
    return mixtures(prototypes, known, of, PFPLOptions(**options)).flatten().tolist()


def test_close_prototypes_weigh_more():
    # Squared distances: 0-1: 1, 0-2: 9, 1-2: 4.
    mean = [
        (1 / 1 * 1 + 1 / 9 * 3) / (1 + 1 / 9),
        (1 / 1 * 0 + 1 / 4 * 3) / (1 + 1 / 4),
        (1 / 9 * 0 + 1 / 4 * 1) / (1 / 9 + 1 / 4),
    ]
    assert mix([0.0, 1.0, 3.0], alpha=0) == pytest.approx(mean)
    half = [0.5 * own + 0.5 * m for own, m in zip([0, 1, 3], mean, strict=True)]
    assert mix([0.0, 1.0, 3.0]) == pytest.approx(half)


def test_as_printed_far_prototypes_weigh_more():
    mean = [(1 * 1 + 9 * 3) / 10, (1 * 0 + 4 * 3) / 5, (9 * 0 + 4 * 1) / 13]
    assert mix([0.0, 1.0, 3.0], alpha=0, weights="as_printed") == pytest.approx(mean)


def test_softmax_of_distances():
    w = np.exp([-1 / 2, -9 / 2])
    expected = (w @ [1, 3]) / w.sum()
    mixed = mix([0.0, 1.0, 3.0], alpha=0, weights="softmax", temperature=2)
    assert mixed[0] == pytest.approx(expected)


@pytest.mark.parametrize("weights", ["inverse", "softmax", "as_printed"])
def test_who_else_holds_the_class(weights):
    only_me = torch.tensor([[True], [False], [False]])
    assert mix([2.0, 7.0, 7.0], only_me, weights=weights) == [2, 0, 0]
    two = torch.tensor([[True], [False], [True]])
    assert mix([2.0, 50.0, 6.0], two, weights=weights) == [4, 0, 4]
    assert mix([5.0, 5.0, 5.0], weights=weights) == pytest.approx([5, 5, 5])
    assert mix([2.0, 50.0, 6.0], two, of=torch.tensor([2]), weights=weights) == [4]


@pytest.mark.parametrize("align", ["instance", "batch"])
def test_the_loss_by_hand(align):
    """Eq. 5: λ = 3; samples at (1, 1) and (3, 1) of a class with mixture (0, 1), one without."""
    method = object.__new__(PFPL)
    method.options = PFPLOptions(lam=3, align=align)
    method.task = SimpleNamespace(keys=lambda batch: batch["y"], n_keys=2)
    method.population = SimpleNamespace(encode=lambda state, x: x)
    method.task_loss = lambda *_: torch.tensor([7.0])
    batch = {
        "x": torch.tensor([[[1.0, 1.0], [3.0, 1.0], [9.0, 9.0]]]),
        "y": torch.tensor([[0, 0, 1]]),
    }
    mixtures = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])
    payload = {"mixtures": mixtures, "held": torch.tensor([[True, False]])}
    cohort = SimpleNamespace(last_epoch=False, state={})
    # Means over two features: of samples 1/2 and 9/2, over three; of the mean (2, 1) 2, over two.
    pull = {"instance": (0.5 + 4.5) / 3, "batch": 2 / 2}[align]
    loss = method.local_loss(cohort, batch, payload)
    torch.testing.assert_close(loss, torch.tensor([7 + 3 * pull]))


def reference(federation, n_rounds, alpha, lam):
    """Each client alone in a plain loop, with an optimiser of its own."""
    f, training = federation, federation.method.training
    n, classes = len(f.train), f.method.task.n_keys
    params = f.state.clients.params
    models = [
        {name: p[i : i + 1].clone().requires_grad_() for name, p in params.items()}
        for i in range(n)
    ]
    optimizers = [torch.optim.SGD(m.values(), lr=training.lr, momentum=0.9) for m in models]
    mixed = [{} for _ in range(n)]
    for _ in range(n_rounds):
        prototypes = []
        for i in range(n):
            size = int(f.train.sizes[i])
            x, y = f.train.tensors["x"][i, :size], f.train.tensors["y"][i, :size]
            for _ in range(training.epochs):
                seen = {}
                for start in range(0, size - training.batch_size + 1, training.batch_size):
                    xs, ys = (t[start : start + training.batch_size] for t in (x, y))
                    features = f.method.population.encode(models[i], xs[None])[0]
                    logits = f.method.population.decode(models[i], features[None])[0]
                    loss = F.cross_entropy(logits, ys)
                    pulls = [
                        ((h - mixed[i][c]) ** 2).mean() if c in mixed[i] else torch.zeros(())
                        for h, c in zip(features, ys.tolist(), strict=True)
                    ]
                    optimizers[i].zero_grad()
                    (loss + lam * torch.stack(pulls).mean()).backward()
                    for h, c in zip(features.detach(), ys.tolist(), strict=True):
                        seen.setdefault(c, []).append(h)
                    optimizers[i].step()
            prototypes.append({c: torch.stack(hs).mean(0) for c, hs in seen.items()})
        for i in range(n):
            mixed[i] = {}
            for c, own in prototypes[i].items():
                others = [prototypes[m][c] for m in range(n) if m != i and c in prototypes[m]]
                w = torch.tensor([1 / float(((own - o) ** 2).sum()) for o in others])
                mean = sum(wi * o for wi, o in zip(w / w.sum(), others, strict=True))
                mixed[i][c] = alpha * own + (1 - alpha) * mean if others else own
    return models, mixed, classes


def test_equals_a_plain_loop_over_clients(federate):
    settings = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "rounds": 3}
    f = federate(partial(PFPL, options=PFPLOptions(alpha=0.3, lam=2.0)), [8, 12, 8], **settings)
    models, mixed, classes = reference(f, 3, 0.3, 2.0)
    f.run()
    for i, model in enumerate(models):
        for name, p in model.items():
            torch.testing.assert_close(f.state.clients.params[name][i], p[0].detach())
    payload = f.method.broadcast(f.state.server, Participants(ALL, f.train.sizes, 3))
    for i in range(3):
        held = [c for c in range(classes) if payload["held"][i, c]]
        assert held == sorted(mixed[i])
        for c in held:
            torch.testing.assert_close(payload["mixtures"][i, c], mixed[i][c])


def test_only_prototypes_travel(federate, n_classes):
    f = federate(PFPL, rounds=2)
    f.run()
    table = 3 * n_classes * (4 * 5 + 1)  # Floats of width 5, and a truth value each.
    assert [(r.bytes_down, r.bytes_up) for r in f.reports] == [(0, table), (table, table)]
    sent = {"prototypes": torch.zeros(3, n_classes, 5), "known": torch.zeros(3, n_classes).bool()}
    assert total_bytes(sent) == table


def test_without_alignment_clients_train_alone(federate):
    from stforecast.federated.methods.solo import Solo

    f = federate(partial(PFPL, options=PFPLOptions(lam=0)))
    alone = federate(Solo)
    f.run()
    alone.run()
    for name, p in alone.state.clients.params.items():
        assert torch.equal(p, f.state.clients.params[name])


def test_absent_clients_keep_their_prototypes(federate):
    f = federate(PFPL, rounds=2, participation=0.34)
    f.run_round()
    before = f.state.server["prototypes"].clone()
    f.run_round()
    changed = (f.state.server["prototypes"] != before).flatten(1).any(1)
    f.state.round = 1
    assert changed.nonzero().flatten().tolist() == f.participants().ids.tolist()


def test_the_nearest_mixture_predicts(federate):
    f = federate(PFPL, rounds=1)
    f.run()
    method, clients = f.method, f.state.clients
    payload = method.broadcast(f.state.server, Participants(ALL, f.train.sizes, 1))
    x = f.train.tensors["x"][:, :4]
    scores = method.predict({**clients.params}, payload, x, "nearest")
    features = method.population.encode(clients.params, x)
    for i in range(3):
        for h, found in zip(features[i], scores[i].argmax(-1), strict=True):
            held = payload["held"][i].nonzero().flatten().tolist()
            far = [float((h - payload["mixtures"][i, c]).norm()) for c in held]
            assert held[int(np.argmin(far))] == int(found)
    payload["held"][1] = False  # As of a client that has sent no prototypes yet.
    logits = method.population.decode(clients.params, features)
    found = method.predict({**clients.params}, payload, x, "nearest")
    assert torch.equal(found[1], logits[1])
    assert torch.equal(found[[0, 2]], scores[[0, 2]])


@pytest.mark.parametrize(
    "wrong", [{"alpha": 1.5}, {"lam": -1}, {"temperature": 0}, {"weights": "far"}]
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PFPLOptions(**wrong)
