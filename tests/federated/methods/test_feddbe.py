from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.feddbe import FedDBE, FedDBEOptions

SIZES = (8, 13, 5)
D = 5


def dbe(**options):
    return partial(FedDBE, options=FedDBEOptions(**options))


def loss_with(client, batch, bias):
    y = (client.encode(batch["x"]) + bias) @ client.params["head.weight"] + client.params[
        "head.bias"
    ]
    return (y - batch["y"])[batch["mask"]].square().mean()


def local_round(client, optimizer, bias, common, kappa, share):
    """A client's batches, with the moving mean written out; returns it."""
    mean = torch.zeros(D)
    for batch in client.batches(epochs=2):
        mean = (1 - share) * mean.detach() + share * client.encode(batch["x"]).mean(0)
        if common is None:
            loss = client.loss(batch)
        else:
            loss = loss_with(client, batch, bias) + kappa * (mean - common).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return mean.detach()


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    double, federate, alone, optimizers, optimizer, share
):
    options = {"kappa": 3.0, "moving_share": share}
    federation = federate(dbe(**options), SIZES, optimizer=optimizer, lr=0.05)
    clients = alone(federation)
    biases = [torch.zeros(D, requires_grad=True) for _ in clients]
    own = [
        optimizers([*c.params.values(), bias], optimizer)
        for c, bias in zip(clients, biases, strict=True)
    ]
    server, common = clients[0].values(), None
    for _ in range(3):
        federation.run_round()
        means = []
        for client, bias, steps in zip(clients, biases, own, strict=True):
            client.receive(server)
            means.append(local_round(client, steps, bias, common, 3.0, share))
        server = mean_by_size([c.values() for c in clients], SIZES)
        if common is None:
            common = sum(n * m for n, m in zip(SIZES, means, strict=True)) / sum(SIZES)
        expected = {**server, "feature_mean": common}
        torch.testing.assert_close(federation.state.server, expected, **double)
        kept = federation.state.clients.params["bias_memory"].detach()
        torch.testing.assert_close(kept, torch.stack(biases).detach(), **double)


def test_a_client_predicts_with_its_own_vector(double, federate, make_data):
    federation = federate(FedDBE, SIZES)
    federation.run()
    state, population = federation.state, federation.method.population
    ((batch, y_hat),) = predictions(federation.method, state, make_data((5, 5, 5)))
    model = {name: t.expand(3, *t.shape) for name, t in state.server.items()}
    bias = state.clients.params["bias_memory"]
    assert bias.any(1).all()
    expected = population.decode(model, population.encode(model, batch["x"]) + bias[:, None])
    torch.testing.assert_close(y_hat, expected, **double)


@pytest.mark.repeats
def test_the_penalty_holds_the_means_together(federate):
    apart = []
    for kappa in (0.0, 5.0):
        federation = federate(dbe(kappa=kappa), (16, 16, 16), rounds=30, optimizer="sgd", lr=0.05)
        federation.run()
        own = federation.state.clients.params
        x = federation.train.tensors["x"]
        means = federation.method.population.encode(own, x).mean(1)
        apart.append(float((means - federation.state.server["feature_mean"]).norm()))
    assert apart[1] < apart[0] / 2


def test_the_mean_travels_once_up_and_then_down(federate):
    runs = [federate(m, SIZES) for m in (FedDBE, FedAvg)]
    for federation in runs:
        federation.run()
    more = [
        (dbe.bytes_up - avg.bytes_up, dbe.bytes_down - avg.bytes_down)
        for dbe, avg in zip(*(f.reports for f in runs), strict=True)
    ]
    assert more == [(3 * D * 4, 0), (0, 3 * D * 4), (0, 3 * D * 4)]


def test_a_client_that_comes_later_gets_the_mean(federate):
    federation = federate(FedDBE, SIZES, participation=0.4, full_start=False, rounds=6)
    federation.run()
    assert federation.state.clients.params["bias_memory"].any(1).all()


@pytest.mark.parametrize("options", [{"kappa": -1.0}, {"moving_share": 0.0}, {"moving_share": 2.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        FedDBEOptions(**options)
