"""pFedGraph against clients trained one by one, and its weights by their optimality conditions."""

import itertools
from functools import partial

import pytest
import torch
from torch.nn.functional import cosine_similarity

from stforecast.federated.core.state import Participants
from stforecast.federated.methods.pfedgraph import PFedGraph, PFedGraphOptions, projected
from stforecast.federated.methods.two_models import MIXTURE

SIZES = (8, 13, 5)


def graph(**options):
    return partial(PFedGraph, options=PFedGraphOptions(**options))


def flat(model):
    return torch.cat([t.detach().flatten() for t in model.values()]).double()


def weights_of(i, models, first, alpha):
    """argmin Σ_j w_j d_ij + α ‖w - p‖² on the simplex: the best of those with each support."""
    p = torch.tensor(SIZES, dtype=torch.double) / sum(SIZES)
    updates = [flat(m) - flat(first) for m in models]
    cosines = torch.stack([cosine_similarity(updates[i], other, dim=0) for other in updates])
    d = -torch.where(cosines > 0.9, 1.0, cosines)
    found = []
    for support in itertools.product([False, True], repeat=3):
        on = torch.tensor(support)
        if not on.any():
            continue
        free = p - d / (2 * alpha)
        w = torch.where(on, free + (1 - free[on].sum()) / on.sum(), 0.0)
        if (w >= 0).all():
            found.append((float(w @ d + alpha * (w - p).square().sum()), w))
    return min(found, key=lambda one: one[0])[1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("alpha", [0.1, 0.8, 20.0])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, alpha):
    federation = federate(graph(lam=0.7, alpha=alpha), SIZES, lr=0.05)
    clients = alone(federation)
    optimizers = [torch.optim.Adam(list(c.params.values()), lr=0.05) for c in clients]
    first = clients[0].values()
    received = [c.values() for c in clients]
    for _ in range(3):
        federation.run_round()
        for client, own, u in zip(clients, optimizers, received, strict=True):
            with torch.no_grad():
                for name, t in client.params.items():
                    t.copy_(u[name])
            for batch in client.batches(epochs=2):
                own.zero_grad()
                at = torch.cat([t.flatten() for t in client.params.values()])
                to = torch.cat([u[name].flatten() for name in client.params])
                (client.loss(batch) - 0.7 * cosine_similarity(at, to, dim=0)).backward()
                own.step()
        models = [c.values() for c in clients]
        weights = [weights_of(i, models, first, alpha) for i in range(3)]
        received = [
            {n: sum(x * m[n] for x, m in zip(w, models, strict=True)).float() for n in first}
            for w in weights
        ]
        of = Participants(torch.arange(3), torch.tensor(SIZES), federation.state.round)
        sent = federation.method.broadcast(federation.state.server, of)
        for i in range(3):
            found = {name: t[i] for name, t in sent.items()}
            torch.testing.assert_close(found, received[i], rtol=1e-4, atol=1e-4)


def test_a_projection_is_the_nearest_point_of_the_simplex():
    rows = 2 * torch.randn(50, 7, dtype=torch.double, generator=torch.manual_seed(0))
    rows[:, 3] = -torch.inf
    found = projected(rows)
    assert (found >= 0).all()
    assert not found[:, 3].any()
    torch.testing.assert_close(found.sum(1), torch.ones(50).double())
    # Its distance has the same slope along all weights above 0, and a larger one along the others.
    slope = found - rows
    level = torch.where(found > 0, slope, -torch.inf).amax(1, keepdim=True)
    torch.testing.assert_close(torch.where(found > 0, slope, level), level.expand_as(slope))
    assert (slope >= level - 1e-12).all()


def test_with_a_large_alpha_it_is_fedavg_of_shares_and_those_never_seen_have_no_weight(federate):
    federation = federate(graph(alpha=1e9), (8, 4, 4, 16), participation=0.5, full_start=False)
    ids = federation.participants().ids
    federation.run_round()
    server = federation.state.server
    sizes = torch.tensor([8.0, 4.0, 4.0, 16.0])
    share = torch.zeros(4).index_put((ids,), sizes[ids] / sizes[ids].sum())
    torch.testing.assert_close(server[MIXTURE], share.expand(4, 4))
    other = federation.method.server_for(server, torch.tensor([int(ids[0]), -1]))
    torch.testing.assert_close(other["head.weight"][1], server["head.weight"][ids].mean(0))
    torch.testing.assert_close(other[MIXTURE], torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
