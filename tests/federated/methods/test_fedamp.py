"""FedAMP against clients trained one by one, and its server against loops over pairs."""

import math
from functools import partial

import pytest
import torch

from stforecast.federated.core.method import predictions
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedaghn import FedAghn, FedAghnOptions
from stforecast.federated.methods.fedamp import FedAmp, FedAmpOptions, mixture
from stforecast.federated.methods.solo import Solo
from stforecast.federated.methods.two_models import MIXTURE

SIZES = (8, 13, 5)


def amp(**options):
    return partial(FedAmp, options=FedAmpOptions(**options))


def pulled(models, i, alpha, sigma):
    """u_i, model by model."""
    xi = {}
    for j, other in enumerate(models):
        if j != i:
            apart = sum(((models[i][n] - other[n]) ** 2).sum().item() for n in other)
            xi[j] = alpha * math.exp(-apart / sigma) / sigma
    total = max(1.0, sum(xi.values()))
    own = 1 - sum(xi.values()) / total
    return {
        n: own * t + sum(x / total * models[j][n] for j, x in xi.items())
        for n, t in models[i].items()
    }


@pytest.mark.quick(3)
@pytest.mark.parametrize("alpha", [0.3, 2.0])
@pytest.mark.parametrize("sigma", [0.5, 30.0])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, alpha, sigma):
    federation = federate(amp(lam=0.7, alpha=alpha, sigma=sigma), SIZES, lr=0.05)
    clients = alone(federation)
    optimizers = [torch.optim.Adam(list(c.params.values()), lr=0.05) for c in clients]
    received = [c.values() for c in clients]
    for _ in range(3):
        federation.run_round()
        for client, own, u in zip(clients, optimizers, received, strict=True):
            for batch in client.batches(epochs=2):
                own.zero_grad()
                apart = sum(((p - u[name]) ** 2).sum() for name, p in client.params.items())
                (client.loss(batch) + 0.7 / (2 * alpha) * apart).backward()
                own.step()
        models = [c.values() for c in clients]
        received = [pulled(models, i, alpha, sigma) for i in range(3)]
        of = Participants(torch.arange(3), torch.tensor(SIZES), federation.state.round)
        sent = federation.method.broadcast(federation.state.server, of)
        for i in range(3):
            found = {name: t[i] for name, t in sent.items()}
            torch.testing.assert_close(found, received[i], rtol=1e-4, atol=1e-5)


def test_a_step_of_the_server_is_down_the_gradient_of_the_papers_sum(double):
    """With a small step, u_i - w_i is α/2 times minus the gradient of Σ A(‖w_i - w_j‖²)."""
    w = torch.randn(4, 3, generator=torch.manual_seed(0), requires_grad=True)
    alpha, sigma = 0.01, 5.0
    pairs = [(i, j) for i in range(4) for j in range(i)]
    total = sum(1 - torch.exp(-(w[i] - w[j]).square().sum() / sigma) for i, j in pairs)
    (gradient,) = torch.autograd.grad(total, w)
    weights = mixture({"w": w.detach()}, torch.ones(4, dtype=torch.bool), alpha, sigma)
    torch.testing.assert_close(weights @ w.detach(), w.detach() - alpha / 2 * gradient, **double)


def test_many_equal_models_stay_what_they_are_and_weights_are_shares():
    models = {"w": torch.ones(50, 2)}
    weights = mixture(models, torch.ones(50, dtype=torch.bool), alpha=1.0, sigma=1.0)
    torch.testing.assert_close(weights @ models["w"], models["w"])
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(50))


@pytest.mark.repeats
def test_without_the_weight_clients_train_alone(federate, module):
    runs = [federate(m, SIZES, build=module) for m in (amp(lam=0.0), Solo)]
    for federation in runs:
        federation.run()
    params = [federation.state.clients.params for federation in runs]
    torch.testing.assert_close(*params, rtol=0, atol=0)


@pytest.mark.parametrize("method", [amp(), partial(FedAghn, options=FedAghnOptions())])
def test_clients_predict_with_their_own_models(federate, method):
    federation = federate(method, (8, 8, 8))
    federation.run_round()
    (batch, found), *_ = predictions(federation.method, federation.state, federation.validation)
    own, x = federation.state.clients.params, batch["x"]
    hidden = torch.tanh(torch.baddbmm(own["encoder.0.bias"][:, None], x, own["encoder.0.weight"]))
    expected = torch.baddbmm(own["head.bias"][:, None], hidden, own["head.weight"])
    torch.testing.assert_close(found, expected)


def test_those_who_never_took_part_attract_nobody_and_new_clients_get_the_mean(federate):
    federation = federate(amp(), (8, 8, 8, 8), participation=0.5, full_start=False)
    ids = federation.participants().ids.tolist()
    federation.run_round()
    server = federation.state.server
    absent = [i for i in range(4) if i not in ids]
    for i in absent:
        assert not server[MIXTURE][[j for j in range(4) if j != i], i].any()
    other = federation.method.server_for(server, torch.tensor([ids[0], -1]))
    mean = server["head.weight"][ids].mean(0)
    torch.testing.assert_close(other["head.weight"][1], mean)
    torch.testing.assert_close(other["head.weight"][0], server["head.weight"][ids[0]])
    assert other[MIXTURE].shape == (2, 2)
