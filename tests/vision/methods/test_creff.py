"""CReFF: its gradients, matching and classifier against plain PyTorch, and its federation."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.creff import CReFF, CReFFOptions

WIDTH = 5


@pytest.fixture
def creff(federate):
    def make(*args, **options):
        options = {"features": 3, "match_steps": 4, "retrain_steps": 5, **options}
        return federate(partial(CReFF, options=CReFFOptions(**options)), (8, 12, 10), rounds=2)

    return make


def linear(weight, bias):
    """`nn.Linear` with a classifier's tensors, inputs × outputs."""
    layer = nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    return layer


def gradient(layer, features, c, create_graph=False):
    loss = F.cross_entropy(layer(features), torch.full((len(features),), c))
    return torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=create_graph)


def real_gradients(client, retrained, n_classes):
    layer = linear(*retrained)
    with torch.no_grad():
        features = client.encode(client.data["x"])
    y = client.data["y"]
    return {c: gradient(layer, features[y == c], c) for c in range(n_classes) if (y == c).any()}


def matched(features, retrained, real, steps, lr):
    """The released code's loop: row by row cosines, one SGD over all features."""
    layer = linear(*retrained)
    v = features.clone().requires_grad_()
    optimizer = torch.optim.SGD([v], lr=lr)
    for _ in range(steps):
        loss = 0.0
        for c, (weight, bias) in real.items():
            made_weight, made_bias = gradient(layer, v[c], c, create_graph=True)
            loss = loss + (1 - F.cosine_similarity(made_weight, weight, dim=1)).sum()
            loss = loss + 1 - F.cosine_similarity(made_bias, bias, dim=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return v.detach()


def test_a_round_equals_plain_pytorch(creff, alone, n_classes):
    f = creff()
    before = {name: t.clone() for name, t in f.state.server.items()}
    retrained = before["retrained/head.weight"], before["retrained/head.bias"]
    clients = alone(f)
    found = [real_gradients(client, retrained, n_classes) for client in clients]
    real = {}
    for c in range(n_classes):
        held = [g[c] for g in found if c in g]
        real[c] = [torch.stack(parts).mean(0) for parts in zip(*held, strict=True)]
    features = matched(before["features"], retrained, real, 4, 0.1)

    f.run_round()
    torch.testing.assert_close(f.state.server["features"], features, rtol=1e-3, atol=1e-4)

    initial = f.method.population.initial()
    layer = linear(initial["head.weight"][0], initial["head.bias"][0])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    made = f.state.server["features"]
    for _ in range(5):
        optimizer.zero_grad()
        y = torch.arange(n_classes).repeat_interleave(3)
        F.cross_entropy(layer(made.flatten(0, 1)), y).backward()
        optimizer.step()
    torch.testing.assert_close(f.state.server["retrained/head.weight"], layer.weight.detach().T)
    torch.testing.assert_close(f.state.server["retrained/head.bias"], layer.bias.detach())


@pytest.mark.quick(2)
@pytest.mark.parametrize("features", [8, 80])
def test_the_classifier_moves_as_far_as_in_small_batches(creff, n_classes, features):
    # As the released code has it: epochs of batches of 32, with a learning rate of 0.01.
    f = creff(features=features, retrain_steps=50)
    made, initial = f.state.server["features"], f.method.population.initial()
    found = f.method.retrained(made)["head.weight"]
    first = initial["head.weight"][0]
    layer = linear(first, initial["head.bias"][0])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x, y = made.flatten(0, 1), torch.arange(n_classes).repeat_interleave(features)
    for _ in range(50):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[rows]), y[rows]).backward()
            optimizer.step()
    expected = layer.weight.detach().T
    assert (found - expected).norm() < 0.05 * (expected - first).norm()


@pytest.mark.repeats
def test_matching_brings_gradients_together(creff):
    def distance(steps):
        f = creff(match_steps=steps)
        f.run_round()
        moved = f.state.server["features"]
        f = creff(match_steps=0)
        uploads = {}
        aggregate = f.method.aggregate
        f.method.aggregate = lambda s, of, u: uploads.update(u) or aggregate(s, of, u)
        old = {n: t.clone() for n, t in f.state.server.items()}
        f.run_round()
        layer = linear(old["retrained/head.weight"], old["retrained/head.bias"])
        holders = uploads["held"].sum(0)
        total = 0.0
        for c in holders.nonzero().flatten().tolist():
            real = uploads["gradient/head.weight"].sum(0)[c] / holders[c]
            made, _ = gradient(layer, moved[c], c)
            total += float((1 - F.cosine_similarity(made.T, real, dim=0)).sum())
        return total

    assert distance(40) < distance(5) < distance(0)


def test_clients_train_as_in_fedavg(creff, federate):
    f, fedavg = creff(), federate(FedAvg, (8, 12, 10), rounds=2)
    f.run()
    fedavg.run()
    for name, t in fedavg.state.server.items():
        assert torch.equal(f.state.server[name], t)


def test_the_retrained_classifier_predicts(creff, n_classes):
    f = creff()
    f.run()
    server = f.state.server
    body = {n: t[None] for n, t in server.items() if n.startswith("encoder.")}
    x = f.train.tensors["x"][:1, :4]
    features = f.method.population.encode(body, x)[0]
    layer = linear(server["retrained/head.weight"], server["retrained/head.bias"])
    (_, logits), *_ = predictions(f.method, f.state, f.train)
    torch.testing.assert_close(logits[0, :4], layer(features))


def test_what_is_sent(creff, n_classes):
    f = creff()
    f.run()
    head = n_classes * (WIDTH + 1)
    model = 6 * WIDTH + WIDTH + head
    down = 3 * 4 * (model + head)
    up = 3 * (4 * (model + n_classes * head) + n_classes)
    assert [(r.bytes_down, r.bytes_up) for r in f.reports] == [(down, up)] * 2


def test_statistics_rest_while_gradients_are_taken(federate):
    f = federate(CReFF, build="module", epochs=1)
    fedavg = federate(FedAvg, build="module", epochs=1)
    f.run_round()
    fedavg.run_round()
    name = "encoder.module.1.running_mean"
    assert torch.equal(f.state.server[name], fedavg.state.server[name])


def test_no_features_are_refused():
    with pytest.raises(InputError, match="features"):
        CReFFOptions(features=0)
