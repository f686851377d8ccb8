import pytest
import torch
from reference_client import mean_by_size
from torch.nn import functional as F

from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods import METHODS
from vision.methods.fedrod import FedRoD

SIZES = (8, 13, 5)


def train(client, head, optimizer, epochs):
    """Balanced softmax for model and generic head, then the personal head, sample by sample."""
    counts = client.data["y"].bincount(minlength=4)
    for batch in client.batches(epochs):
        features = client.encode(batch["x"])
        generic = client.decode(features)
        balanced = [
            -torch.log(counts[y] * g[y].exp() / (counts * g.exp()).sum())
            for g, y in zip(generic, batch["y"], strict=True)
        ]
        logits = generic.detach() + client.decode(features.detach(), head)
        optimizer.zero_grad()
        (torch.stack(balanced).mean() + F.cross_entropy(logits, batch["y"])).backward()
        optimizer.step()


def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone):
    federation = federate(FedRoD, SIZES, lr=0.05)
    clients = alone(federation)
    heads = [
        {n: p.detach().clone().requires_grad_() for n, p in c.params.items() if "head" in n}
        for c in clients
    ]
    optimizers = [
        torch.optim.Adam([*c.params.values(), *h.values()], lr=0.05)
        for c, h in zip(clients, heads, strict=True)
    ]
    server = clients[0].values()
    for _ in range(3):
        federation.run_round()
        for client, head, optimizer in zip(clients, heads, optimizers, strict=True):
            client.receive(server)
            train(client, head, optimizer, epochs=2)
        server = mean_by_size([c.values() for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)
        for i, head in enumerate(heads):
            own = {n: federation.state.clients.params[f"personal.{n}"][i] for n in head}
            expected = {n: p.detach() for n, p in head.items()}
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("build", ["stacked", "module"])
def test_with_equally_many_samples_of_each_class_the_global_model_is_fedavgs(federate, build):
    runs = [federate(m, (8, 12, 8), build=build) for m in (FedRoD, FedAvg)]
    for federation in runs:
        federation.train.tensors["y"][:] = torch.arange(12) % 4
        federation.run()
    torch.testing.assert_close(runs[0].state.server, runs[1].state.server)


def test_a_class_that_a_client_lacks_does_not_move_the_heads_row(federate):
    federation = federate(FedRoD, (8,), optimizer="sgd", lr=0.5)
    federation.train.tensors["y"][:] = torch.arange(8) % 3
    federation.run()
    initial = federation.method.population.initial()["head.weight"][0]
    trained = federation.state.server["head.weight"]
    assert torch.equal(trained[:, 3], initial[:, 3])
    assert (trained[:, :3] != initial[:, :3]).all()
    assert all(t.isfinite().all() for t in federation.state.server.values())


def test_body_and_generic_head_are_sent_and_nothing_else(federate):
    federation = federate(FedRoD, SIZES)
    federation.run()
    n_bytes = len(SIZES) * 4 * (6 * 5 + 5 + 5 * 4 + 4)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


@pytest.mark.parametrize("build", ["stacked", "module"])
def test_the_personal_view_adds_both_heads_logits(federate, make_data, build):
    federation = federate(FedRoD, SIZES, build=build)
    federation.run()
    method, state, data = federation.method, federation.state, make_data((5, 5, 5))
    ((batch, personal),) = predictions(method, state, data)
    ((_, generic),) = predictions(method, state, data, view="global")
    model = {n: t.expand(3, *t.shape) for n, t in state.server.items()}
    features = method.population.encode(model, batch["x"])
    torch.testing.assert_close(generic, method.population.decode(model, features))
    w, b = (state.clients.params[f"personal.head.{n}"] for n in ("weight", "bias"))
    torch.testing.assert_close(personal - generic, features @ w + b[:, None])
    assert not torch.allclose(personal, generic)


def test_it_is_registered():
    assert METHODS["fedrod"] is FedRoD
