"""FedAGHN against clients trained one by one, and loops over layers and pairs of models."""

from functools import partial

import pytest
import torch

from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedaghn import OWN, SEEN, SHARPNESS, FedAghn, FedAghnOptions
from stforecast.federated.methods.solo import Solo

SIZES = (8, 13, 5, 8)
LAYERS = {
    "encoder.0": ("encoder.0.weight", "encoder.0.bias"),
    "head": ("head.weight", "head.bias"),
}


def aghn(**options):
    return partial(FedAghn, options=FedAghnOptions(**options))


def mixed(i, models, changes, p, q):
    """θ̄_i and the weights in it, layer by layer and model by model."""
    mixture, weights = {}, {}
    for layer, (names, p_of, q_of) in enumerate(zip(LAYERS.values(), p, q, strict=True)):
        flat = [torch.cat([change[n].flatten() for n in names]) for change in changes]
        cosine = [flat[i] @ other / (flat[i].norm() * other.norm()) for other in flat]
        others = [j for j in range(len(models)) if j != i]
        total = sum(torch.exp(q_of * cosine[j]) for j in others)
        of = {j: torch.exp(q_of * cosine[j]) / total for j in others}
        of[i] = p_of if p_of >= 0 else 0 * p_of
        weights[layer] = {j: a / sum(of.values()) for j, a in of.items()}
        for n in names:
            mixture[n] = sum(a * models[j][n] for j, a in weights[layer].items())
    return mixture, weights


@pytest.mark.quick(2)
@pytest.mark.parametrize("uphill", [False, True])
def test_rounds_are_those_of_single_clients_and_of_loops_over_pairs(
    federate, alone, optimizers, double, uphill
):
    rate, sign = 0.4, -1 if uphill else 1
    method = aghn(own_weight=0.05, sharpness=0.7, weight_lr=rate, uphill=uphill)
    federation = federate(method, SIZES, optimizer="sgd", lr=0.2)
    clients, everyone = alone(federation), range(len(SIZES))
    models, changes = [c.values() for c in clients], None
    p = [torch.full((2,), 0.05) for _ in clients]
    q = [torch.full((2,), 0.7) for _ in clients]
    lowest = 0.0
    for _ in range(4):
        federation.run_round()
        leaves = [(p[i].requires_grad_(), q[i].requires_grad_()) for i in everyone]
        if changes is None:
            began = [{n: t.clone() for n, t in model.items()} for model in models]
        else:
            began = [mixed(i, models, changes, p[i], q[i])[0] for i in everyone]
        for client, own in zip(clients, began, strict=True):
            client.receive(own)
            optimizer = optimizers(client.params.values(), "sgd", lr=0.2)
            for batch in client.batches(epochs=2):
                optimizer.zero_grad()
                client.loss(batch).backward()
                optimizer.step()
        trained = [c.values() for c in clients]
        if changes is not None:
            for i, (of_p, of_q) in enumerate(leaves):
                up = [(trained[i][n] - began[i][n]).detach() for n in began[i]]
                steps = torch.autograd.grad(list(began[i].values()), (of_p, of_q), up)
                p[i] = of_p.detach().clamp(min=0) + sign * rate * steps[0]
                q[i] = of_q.detach() + sign * rate * steps[1]
        changes = [
            {n: (after[n] - own[n]).detach() for n in own}
            for after, own in zip(trained, began, strict=True)
        ]
        models = trained
        server = federation.state.server
        found = [{n: server[n][i] for n in models[i]} for i in everyone]
        torch.testing.assert_close(found, models, **double)
        torch.testing.assert_close(server[OWN], torch.stack(p).detach(), **double)
        torch.testing.assert_close(server[SHARPNESS], torch.stack(q).detach(), **double)
        lowest = min(lowest, float(server[OWN].min()))
    assert (lowest < 0) == uphill
    ids = torch.arange(len(SIZES))
    weights = federation.method.weights(server, ids, server[OWN], server[SHARPNESS])
    for i in everyone:
        _, of_client = mixed(i, models, changes, p[i], q[i])
        expected = torch.stack([torch.stack([of_client[k][j] for j in everyone]) for k in range(2)])
        torch.testing.assert_close(weights[:, i], expected.detach(), **double)


def test_without_sharpness_the_others_count_alike(federate):
    federation = federate(aghn(own_weight=0.25, sharpness=0, weight_lr=0), SIZES)
    federation.run_round()
    server = federation.state.server
    of = Participants(torch.arange(4), torch.tensor(SIZES), 1)
    sent, models = federation.method.broadcast(server, of)["head.weight"], server["head.weight"]
    expected = (0.25 * models + (models.sum(0) - models) / 3) / 1.25
    torch.testing.assert_close(sent, expected)


def test_a_client_alone_trains_as_without_a_federation(federate):
    params = []
    for method in (aghn(), Solo):
        federation = federate(method, (8,))
        federation.run()
        params.append(federation.state.clients.params)
    torch.testing.assert_close(*params, rtol=0, atol=0)


def test_those_who_never_took_part_weigh_nothing_and_new_clients_get_the_mean(federate):
    federation = federate(aghn(), (8, 8, 8, 8), participation=0.5, full_start=False)
    ids = federation.participants().ids
    federation.run_round()
    method, server = federation.method, federation.state.server
    assert server[SEEN].nonzero().flatten().tolist() == ids.tolist()
    weights = method.weights(server, ids, server[OWN][ids], server[SHARPNESS][ids])
    absent = [i for i in range(4) if i not in ids]
    assert not weights[..., absent].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    other = method.server_for(server, torch.tensor([int(ids[0]), -1]))
    torch.testing.assert_close(other["head.weight"][1], server["head.weight"][ids].mean(0))
    torch.testing.assert_close(other["head.weight"][0], server["head.weight"][ids[0]])
    assert other[OWN][1].unique().tolist() == [method.options.own_weight]
    assert other.keys() == server.keys()
