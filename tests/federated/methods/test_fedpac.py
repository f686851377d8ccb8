"""FedPAC against clients trained one by one, and its mixtures against a solver for constraints."""

from functools import partial

import numpy as np
import pytest
import torch
from reference_client import mean_by_size
from scipy.optimize import minimize

from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedpac import FedPac, FedPacOptions, mixing_weights

SIZES = (8, 13, 5)
N_KEYS = 4
ENCODER, HEAD = ("encoder.0.weight", "encoder.0.bias"), ("head.weight", "head.bias")


def pac(**options):
    return partial(FedPac, options=FedPacOptions(**options))


def statistics(client):
    """Prototypes, h and V of a client, key by key."""
    features = client.encode(client.data["x"]).detach()
    n, keys = len(features), client.data["slot"]
    prototypes = {k: features[keys == k].mean(0) for k in set(keys.tolist())}
    h = torch.zeros(N_KEYS, features.shape[1])
    v = 0.0
    for k, mean in prototypes.items():
        of_key = features[keys == k]
        share = len(of_key) / n
        h[k] = share * mean
        v += share * torch.trace(of_key.T @ of_key / len(of_key)) - share**2 * mean.square().sum()
    return prototypes, h, v / n


def solved(i, hs, vs):
    """Weights of client i by a general solver."""
    n = len(hs)
    apart = torch.stack([hs[i] - h for h in hs]).flatten(1)
    p = (torch.diag(torch.stack(vs)) + apart @ apart.T).double().numpy()
    p = p / np.trace(p)
    found = minimize(
        lambda a: a @ p @ a,
        np.full(n, 1 / n),
        jac=lambda a: 2 * p @ a,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x


def train(client, received, lr, lam):
    """The head for an epoch, then the encoder for two, near the prototypes."""
    optimizer = torch.optim.SGD(list(client.params.values()), lr=lr)
    for names, epochs in ((HEAD, 1), (ENCODER, 2)):
        for name, p in client.params.items():
            p.requires_grad_(name in names)
        for batch in client.batches(epochs):
            loss = client.loss(batch)
            if names == ENCODER and received:
                features = client.encode(batch["x"])
                aims = [
                    received.get(k, f.detach())
                    for k, f in zip(batch["slot"].tolist(), features, strict=True)
                ]
                loss = loss + lam * (features - torch.stack(aims)).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def test_rounds_are_those_of_clients_trained_one_by_one(double, federate, alone):
    federation = federate(pac(lam=0.6), SIZES, optimizer="sgd", lr=0.1)
    clients, prototypes = alone(federation), {}
    for _ in range(3):
        federation.run_round()
        before = [statistics(client) for client in clients]
        for client in clients:
            train(client, prototypes, 0.1, 0.6)
        after = [statistics(client)[0] for client in clients]
        held = [[own[k] for own in after if k in own] for k in range(N_KEYS)]
        prototypes = {k: torch.stack(of_key).mean(0) for k, of_key in enumerate(held) if of_key}
        encoder = mean_by_size([c.values("encoder.") for c in clients], SIZES)
        heads = [c.values("head.") for c in clients]
        _, hs, vs = zip(*before, strict=True)
        server = federation.state.server
        for i, client in enumerate(clients):
            weights = solved(i, hs, list(vs))
            mixed = {n: sum(w * h[n] for w, h in zip(weights, heads, strict=True)) for n in HEAD}
            for name in HEAD:
                torch.testing.assert_close(server[name][i], mixed[name], rtol=0, atol=1e-5)
            client.receive({**encoder, **{name: server[name][i] for name in HEAD}})
        for name in ENCODER:
            torch.testing.assert_close(server[name], encoder[name], **double)
        for k, prototype in prototypes.items():
            torch.testing.assert_close(server["prototypes"][k], prototype, **double)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_mixtures_are_the_least_on_the_simplex(double, scale):
    g = torch.manual_seed(3)
    hs, vs = torch.randn(6, 3, 4, generator=g) * scale, torch.rand(6, generator=g) * scale**2
    weights = mixing_weights(hs, vs).numpy()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1)
    for i in range(6):
        p = np.diag(vs.numpy()) + ((hs[i] - hs).flatten(1) @ (hs[i] - hs).flatten(1).T).numpy()
        gradient = p @ weights[i]
        least = weights[i] @ gradient  # Optimal: no coordinate's slope lies below the mean.
        assert (gradient >= least * (1 - 1e-8)).all()
        np.testing.assert_allclose(gradient[weights[i] > 1e-12], least, rtol=1e-8)


def test_equal_features_weigh_heads_by_their_precision():
    weights = mixing_weights(torch.ones(3, 2, 2), torch.tensor([1.0, 2.0, 4.0]))
    expected = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64) / 7
    torch.testing.assert_close(weights, expected.expand(3, 3))


def test_features_that_are_far_apart_leave_each_client_its_head():
    weights = mixing_weights(1e3 * torch.eye(3).view(3, 3, 1), torch.ones(3))
    torch.testing.assert_close(weights, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-5)


def test_clients_predict_with_the_mean_encoder_and_their_mixed_head(federate):
    federation = federate(pac(), (8, 8, 8))
    federation.run_round()
    (batch, found), *_ = predictions(federation.method, federation.state, federation.validation)
    server = federation.state.server
    hidden = torch.tanh(batch["x"] @ server["encoder.0.weight"] + server["encoder.0.bias"])
    expected = torch.baddbmm(server["head.bias"][:, None], hidden, server["head.weight"])
    torch.testing.assert_close(found, expected)


def test_the_absent_keep_their_heads_and_new_clients_get_the_mean(federate):
    federation = federate(pac(), (8, 8, 8, 8), participation=0.5, full_start=False)
    before = {name: federation.state.server[name].clone() for name in HEAD}
    ids = federation.participants().ids.tolist()
    federation.run_round()
    server = federation.state.server
    for i in range(4):
        same = torch.equal(server["head.weight"][i], before["head.weight"][i])
        assert same == (i not in ids)
    other = federation.method.server_for(server, torch.tensor([1, -1]))
    torch.testing.assert_close(other["head.weight"][1], server["head.weight"].mean(0))
    assert torch.equal(other["head.bias"][0], server["head.bias"][1])
