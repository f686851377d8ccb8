from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.tensors import squared_distance
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedprox import FedProx, FedProxOptions
from stforecast.methods import METHODS

SIZES = (8, 13, 5)
OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.5),
}


def prox(mu):
    return partial(FedProx, options=FedProxOptions(mu=mu))


def distance(params, anchor):
    return sum(((p - anchor[name]) ** 2).sum() for name, p in params.items())


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, optimizer):
    federation = federate(prox(0.7), SIZES, optimizer=optimizer, lr=0.05, momentum=0.5)
    clients = alone(federation)
    optimizers = [OPTIMIZERS[optimizer](list(c.params.values())) for c in clients]
    server = clients[0].values()
    for _ in range(3):
        federation.run_round()
        for client, own in zip(clients, optimizers, strict=True):
            client.receive(server)
            for batch in client.batches(epochs=2):
                own.zero_grad()
                (client.loss(batch) + 0.7 / 2 * distance(client.params, server)).backward()
                own.step()
        server = mean_by_size([c.values() for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)


@pytest.mark.repeats
def test_without_the_term_it_is_fedavg(federate, module):
    runs = [federate(m, SIZES, build=module, participation=0.5) for m in (prox(0), FedAvg)]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.flat(), runs[1].state.flat(), rtol=0, atol=0)


@pytest.mark.repeats
def test_the_term_holds_clients_near_the_global_model(federate):
    moved = []
    for mu in (0.0, 1.0, 10.0):
        federation = federate(prox(mu), SIZES, rounds=1, epochs=20, optimizer="sgd")
        before = {name: t.clone() for name, t in federation.state.clients.params.items()}
        federation.run()
        moved.append(squared_distance(federation.state.clients.params, before))
    assert (moved[0] > moved[1]).all()
    assert (moved[1] > moved[2]).all()


def test_the_report_tells_the_tasks_loss_from_the_whole(federate):
    federation = federate(prox(5.0), SIZES)
    report = federation.run_round()
    assert report.train_loss > report.train_task_loss > 0


def test_the_whole_model_is_sent_and_nothing_else(federate, module):
    runs = [federate(m, SIZES, build=module) for m in (FedProx, FedAvg)]
    for federation in runs:
        federation.run()
    sent = [[(r.bytes_down, r.bytes_up) for r in f.reports] for f in runs]
    assert sent[0] == sent[1]
    assert runs[0].state.server.keys() == set(runs[0].method.population.names)


def test_the_distance_is_over_all_axes_but_the_clients():
    w = {"a": torch.ones(2, 3, 2, requires_grad=True), "b": torch.full((2,), 2.0)}
    anchor = {"a": torch.zeros(2, 3, 2), "b": torch.tensor([2.0, 5.0]), "counter": torch.ones(2)}
    assert squared_distance(w, anchor).tolist() == [6, 6 + 9]


@pytest.mark.parametrize("mu", [-0.1, float("inf"), float("nan")])
def test_impossible_weights_are_refused(mu):
    with pytest.raises(InputError, match=rf"mu is {mu}.* 0"):
        FedProxOptions(mu=mu)


def test_it_is_registered():
    assert METHODS["fedprox"] is FedProx
