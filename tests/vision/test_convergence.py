"""Corollary 1's constants against gradients and features taken by hand."""

import copy

import pytest
import torch
from torch.nn import functional as F

from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.core.state import Clients, State
from stforecast.federated.core.training import Training, zero_moments
from vision.convergence import corollary_1
from vision.methods.pfpl import PFPL, PFPLOptions
from vision.task import Classification


@pytest.fixture
def parts():
    from torch import nn

    from stforecast.federated.core.data import ClientData
    from stforecast.federated.core.layers import ClientLinear

    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 8, 1, 1, 3, generator=g), torch.randint(3, (2, 8), generator=g)
    train = ClientData({"x": x, "y": y}, torch.tensor([8, 8]))
    model = lambda: SplitModel(  # noqa: E731  a model's builder
        nn.Sequential(nn.Flatten(2), ClientLinear(3, 4), nn.Tanh()), ClientLinear(4, 3)
    )
    population, training = Population(model), Training(batch_size=4, lr=0.1, optimizer="sgd")
    params = population.parameters(2)
    clients = Clients(params, {}, zero_moments(params, training), train.sizes)
    return (
        population,
        training,
        State(clients, {"known": torch.zeros(2, 3, dtype=torch.bool)}, 0, 0),
        train,
    )


def pfpl(population, training, lam=0.0):
    return PFPL(population, Classification(3), training, PFPLOptions(lam=lam))


def test_constants_by_hand(parts):
    population, training, state, train = parts
    before = copy.deepcopy(state.flat())
    table = corollary_1(pfpl(population, training), state, train)
    assert all(torch.equal(before[name], t) for name, t in state.flat().items())
    x, y = train.tensors["x"][1], train.tensors["y"][1]
    start = {n: p[1:].clone().requires_grad_() for n, p in state.clients.params.items()}
    whole = F.cross_entropy(population.decode(start, population.encode(start, x[None]))[0], y)
    full = sum(float(g.square().sum()) for g in torch.autograd.grad(whole, list(start.values())))
    w = {n: p[1:].clone().requires_grad_() for n, p in state.clients.params.items()}
    norms, ratios = [], []
    for part in (slice(0, 4), slice(4, 8)):
        old = population.encode(w, x[None])[0].detach()
        loss = F.cross_entropy(
            population.decode(w, population.encode(w, x[None, part]))[0], y[part]
        )
        gradients = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))
        norms.append(sum(float(g.square().sum()) for g in gradients.values()))
        w = {n: (p - 0.1 * gradients[n]).detach().requires_grad_() for n, p in w.items()}
        moved = (
            0.1
            * torch.cat(
                [g.flatten() for n, g in gradients.items() if n.startswith("encoder")]
            ).norm()
        )
        change = (population.encode(w, x[None])[0] - old).norm(dim=-1).max()
        ratios.append(float((change / moved).detach()))
    row = table.iloc[1]
    assert row["steps"] == 2
    assert row["gradient"] == pytest.approx(full, rel=1e-4)
    assert row["G"] == pytest.approx(sum(n**0.5 for n in norms) / 2, rel=1e-4)
    assert row["L2"] == pytest.approx(max(ratios), rel=1e-3)
    product = row["L2"] * 2 * row["G"]
    assert row["most_lam"] == pytest.approx(full / product, rel=1e-3)
    assert row["most_lr"] == pytest.approx(2 * full / product, rel=1e-3)
    assert (row["lam"], row["lr"]) == (0, 0.1)


def test_a_larger_weight_leaves_less_room(parts):
    population, training, state, train = parts
    rooms = [
        corollary_1(pfpl(population, training, lam), state, train)["most_lr"].mean()
        for lam in (0.0, 1.0)
    ]
    assert rooms[0] - rooms[1] == pytest.approx(2, rel=1e-4)  # 2 λ, by Eq. 15.
