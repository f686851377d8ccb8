import math
from functools import partial

import numpy as np
import pytest
import torch
from reference_client import mean_by_size
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.core.state import generator
from stforecast.federated.core.tensors import mmd
from stforecast.federated.methods.fedbn import FedBN
from vision.methods import METHODS
from vision.methods.fraug import FRAug, FRAugOptions

SIZES = (8, 13, 5)
N_CLASSES, WIDTH, NOISE = 4, 5, 3


def fraug(**options):
    return partial(FRAug, options=FRAugOptions(**{"noise_width": NOISE, **options}))


class Normed(nn.Sequential):
    """A linear map without bias and batch normalisation, with the values of a client's tensors."""

    def __init__(self, values, prefix):
        w = values[f"{prefix}.weight"]
        super().__init__(nn.Linear(*w.shape, bias=False), nn.BatchNorm1d(w.shape[1]))
        self[0].weight.data.copy_(w.T)

    def named(self, prefix):
        linear, norm = self
        return {
            f"{prefix}.weight": linear.weight.T,
            f"{prefix}.scale": norm.weight,
            f"{prefix}.shift": norm.bias,
            f"{prefix}.running_mean": norm.running_mean,
            f"{prefix}.running_var": norm.running_var,
        }


class Networks:
    """Generator and RTNet of one client as ordinary modules."""

    def __init__(self, federation, client):
        state = {**federation.state.clients.params, **federation.state.clients.buffers}
        own = {n: t[client] for n, t in state.items()}
        self.generator = nn.Sequential(
            Normed(own, "generator.0"), nn.ReLU(), Normed(own, "generator.2"), nn.ReLU()
        )
        self.transform = nn.Sequential(
            Normed(own, "transform.0"), nn.ReLU(), Normed(own, "transform.2")
        )
        self.random = None
        self.means, self.met = torch.zeros(N_CLASSES, WIDTH), [False] * N_CLASSES

    def parameters(self):
        return [*self.generator.parameters(), *self.transform.parameters()]

    def values(self, prefix):
        net = getattr(self, prefix)
        named = {**net[0].named(f"{prefix}.0"), **net[2].named(f"{prefix}.2")}
        return {n: t.detach().clone() for n, t in named.items()}

    def receive(self, values):
        with torch.no_grad():
            for i in (0, 2):
                for name, t in self.generator[i].named(f"generator.{i}").items():
                    t.copy_(values[name])

    def note(self, embeddings, y):
        for k in set(y.tolist()):
            mean = embeddings[y == k].mean(0)
            self.means[k] = 0.7 * self.means[k] + 0.3 * mean if self.met[k] else mean
            self.met[k] = True

    def drawn(self, n):
        classes = np.flatnonzero(self.met)
        uniform = torch.rand(n, generator=self.random).numpy().astype(float)
        return torch.from_numpy(classes[(uniform * len(classes)).astype(int)])

    def agnostic(self, y, training):
        self.generator.train(training)
        noise = torch.randn(len(y), NOISE, generator=self.random)
        return self.generator(torch.cat([noise, F.one_hot(y, N_CLASSES)], 1))

    def synthetic(self, embeddings, y, training):
        drawn = self.drawn(len(y))
        made = []
        for anchors, labels in ((embeddings, y), (self.means[drawn], drawn)):
            v = self.agnostic(labels, training=False).detach()
            self.transform.train(training)
            residual = self.transform(torch.cat([v, F.one_hot(labels, N_CLASSES)], 1))
            made.append((anchors + residual, anchors, labels))
        return made


def reference_mmd(x, y):
    """Five Gaussian kernels, pair by pair."""
    points = torch.cat([x, y])
    squares = torch.stack([(p - points).square().sum(1) for p in points])
    width = squares.detach().sum() / (len(points) * (len(points) - 1))
    sign = torch.cat([torch.ones(len(x)), -torch.ones(len(y))])
    kernel = sum((-squares / (width * 2.0**i)).exp() for i in range(-2, 3))
    return (sign[:, None] * sign * kernel).sum() / len(x) ** 2


def train(client, nets, model_optimizer, nets_optimizer, share):
    for batch in client.batches(2):
        x, y = batch["x"], batch["y"]
        u = client.encode(x)
        nets.note(u.detach(), y)
        synthetic = [
            F.cross_entropy(client.decode(z.detach()), labels)
            for z, _, labels in nets.synthetic(u.detach(), y, training=False)
        ]
        real = F.cross_entropy(client.decode(u), y)
        model_optimizer.zero_grad()
        ((1 - share) * real + share * sum(synthetic) / 2).backward()
        model_optimizer.step()
        u = client.encode(x).detach()
        labels = nets.drawn(len(y))
        v = nets.agnostic(labels, training=True)
        loss = F.cross_entropy(client.decode(v), labels) - 2.0 * reference_mmd(v, u)
        for z, anchors, _ in nets.synthetic(u, y, training=True):
            p = client.decode(z).softmax(1)
            unsure = -(p * p.log()).sum(1).mean()
            loss = loss + (3.0 * reference_mmd(z, anchors) - unsure) / 2
        nets_optimizer.zero_grad()
        loss.backward()
        nets_optimizer.step()


def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, double):
    method = fraug(lam_generator=2.0, lam_transform=3.0, gamma=0.5)
    federation = federate(method, SIZES, lr=0.05, optimizer="sgd", momentum=0.5)
    clients = alone(federation)
    nets = [Networks(federation, i) for i in range(len(SIZES))]
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.5)
    optimizers = [
        (sgd(c.params.values()), sgd(n.parameters())) for c, n in zip(clients, nets, strict=True)
    ]
    server, shared = clients[0].values(), nets[0].values("generator")
    for r in range(3):
        federation.run_round()
        share = min(0.5, math.exp(0.5 * (r - 3)))
        for i, (client, own, both) in enumerate(zip(clients, nets, optimizers, strict=True)):
            client.receive(server)
            own.receive(shared)
            own.random = generator(1, r, i)
            train(client, own, *both, share)
        server = mean_by_size([c.values() for c in clients], SIZES)
        shared = mean_by_size([n.values("generator") for n in nets], SIZES)
        torch.testing.assert_close(
            federation.state.server, {**server, **shared}, rtol=1e-9, atol=1e-9
        )
        state = federation.state.clients
        for i, own in enumerate(nets):
            torch.testing.assert_close(
                state.memory["class_means"][i], own.means, rtol=1e-9, atol=1e-9
            )
            assert state.memory["class_met"][i].tolist() == own.met
            local = {**state.params, **state.buffers}
            for name, t in own.values("transform").items():
                torch.testing.assert_close(local[name][i], t, rtol=1e-9, atol=1e-9)
    assert not all(nets[0].met)


@pytest.mark.repeats
def test_without_synthetic_embeddings_the_model_is_fedbns(federate):
    runs = [federate(m, SIZES, build="module") for m in (fraug(lam_syn=0.0), FedBN)]
    for federation in runs:
        federation.run()
    for group in ("params", "buffers"):
        found, expected = (getattr(f.state.clients, group) for f in runs)
        own = {n: t for n, t in found.items() if n in expected}
        torch.testing.assert_close(own, expected, rtol=0, atol=0)


@pytest.mark.repeats
def test_synthetic_embeddings_train_the_head_alone(federate):
    """With λ = 1 the encoder has no gradient."""
    federation = federate(fraug(lam_syn=1.0, gamma=0.0), SIZES, optimizer="sgd")
    federation.run()
    initial = federation.method.population.initial()
    trained = federation.state.clients.params
    for name, moved in (("encoder.1.weight", False), ("head.weight", True)):
        same = torch.allclose(trained[name], initial[name].expand(3, -1, -1), rtol=1e-6, atol=1e-7)
        assert same != moved, name


def test_generator_and_model_are_sent_without_batch_normalisation_and_rtnet(federate):
    federation = federate(fraug(), SIZES, build="module")
    federation.run()
    names = federation.state.server.keys()
    model = {"encoder.module.0.weight", "head.weight", "head.bias"}
    parts = ("weight", "scale", "shift", "running_mean", "running_var")
    assert names == model | {f"generator.{i}.{p}" for i in (0, 2) for p in parts}
    floats = 2 * 2 + 8 * 4 + 4 + (NOISE + 4) * 8 + 8 * 8 + 2 * 4 * 8
    sent = {(r.bytes_down, r.bytes_up) for r in federation.reports}
    assert sent == {(3 * 4 * floats, 3 * 4 * floats)}


@pytest.mark.repeats
def test_a_client_predicts_with_its_own_normalisation(federate, make_data):
    federation = federate(fraug(), SIZES, build="module")
    federation.run()
    method, state, data = federation.method, federation.state, make_data((5, 5, 5))
    ((batch, y_hat),) = predictions(method, state, data)
    own = {**state.clients.params, **state.clients.buffers}
    shared = {n: t.expand(3, *t.shape) for n, t in state.server.items()}
    features = method.population.encode({**own, **shared}, batch["x"])
    torch.testing.assert_close(y_hat, method.population.decode(shared, features))
    norm = "encoder.module.1.running_mean"
    assert norm not in shared
    assert not torch.allclose(own[norm][0], own[norm][1])


@pytest.mark.parametrize("seed", range(3))
def test_mmd_agrees_with_pairs_one_by_one(seed):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 2, 6, 3, generator=g)
    expected = torch.stack([reference_mmd(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(mmd(x, y), expected)


def test_mmd_by_hand():
    """Two samples of one point: the mean squared distance is theirs, d = 4."""
    distance = mmd(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 2.0))
    kernels = sum(math.exp(-1 / 2.0**i) for i in range(-2, 3))
    torch.testing.assert_close(distance, torch.tensor([2 * 5 - 2 * kernels]))


def test_mmd_of_equal_samples_is_0_and_can_be_differentiated():
    x = torch.randn(1, 4, 3, requires_grad=True)
    distance = mmd(x, x.detach())
    distance.sum().backward()
    torch.testing.assert_close(distance, torch.zeros(1), rtol=0, atol=1e-5)
    assert x.grad.isfinite().all()
    same = torch.ones(1, 4, 3, requires_grad=True)
    mmd(same, torch.ones(1, 4, 3)).sum().backward()
    assert same.grad.isfinite().all()


def test_the_share_of_synthetic_embeddings_grows_up_to_its_limit(federate):
    method = federate(FRAug, rounds=100).method
    shares = [method.share(r) for r in (0, 20, 31, 99)]
    assert shares == pytest.approx([math.exp(-1), math.exp(-0.8), 0.5, 0.5])


def test_labels_are_drawn_from_the_classes_met(federate, monkeypatch):
    federation, drawn = federate(fraug()), []
    federation.train.tensors["y"][0] = 2
    drawn_labels = federation.method.drawn_labels

    def watched(cohort, n):
        drawn.append(drawn_labels(cohort, n)[0])
        return drawn[-1].expand(len(cohort), -1)

    monkeypatch.setattr(federation.method, "drawn_labels", watched)
    federation.run()
    assert (torch.cat(drawn) == 2).all()


def test_a_batch_of_one_is_refused(federate):
    with pytest.raises(InputError, match="batch_size=2 "):
        federate(FRAug, batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam_syn": 1.2}, "lam_syn is 1.2"),
        ({"gamma": -1.0}, "gamma is -1.0.* 0"),
        ({"noise_width": 0}, "noise_width is 0.*positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FRAugOptions(**options)


def test_it_is_registered():
    assert METHODS["fraug"] is FRAug
