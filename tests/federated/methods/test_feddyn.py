from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.tensors import plain_mean
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.feddyn import FedDyn, FedDynOptions, gradients
from stforecast.federated.methods.fedprox import FedProx, FedProxOptions

SIZES = (8, 13, 4, 20)


def dyn(alpha):
    return partial(FedDyn, options=FedDynOptions(alpha=alpha))


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_algorithm_1(double, federate, alone, optimizers, optimizer):
    """Clients of unequal size, of which half take part."""
    alpha = 0.3
    settings = {"optimizer": optimizer, "lr": 0.05, "participation": 0.5, "full_start": False}
    federation = federate(dyn(alpha), SIZES, **settings)
    clients = alone(federation)
    own = [optimizers(list(c.params.values()), optimizer) for c in clients]
    theta = clients[0].values()
    h = {n: torch.zeros_like(t) for n, t in theta.items()}
    g = [{n: torch.zeros_like(t) for n, t in theta.items()} for _ in clients]
    for _ in range(3):
        present = federation.participants().ids.tolist()
        assert len(present) == 2
        federation.run_round()
        for i in present:
            client = clients[i]
            client.receive(theta)
            for batch in client.batches(epochs=2):
                own[i].zero_grad()
                loss = client.loss(batch)
                for n, p in client.params.items():
                    loss = loss - (g[i][n] * p).sum() + alpha / 2 * (p - theta[n]).square().sum()
                loss.backward()
                own[i].step()
            g[i] = {n: g[i][n] - alpha * (t - theta[n]) for n, t in client.values().items()}
        for n in theta:
            of_present = [clients[i].values()[n] for i in present]
            h[n] = h[n] - alpha / len(clients) * sum(t - theta[n] for t in of_present)
            theta[n] = sum(of_present) / len(present) - h[n] / alpha
        state = federation.state
        torch.testing.assert_close({n: state.server[n] for n in theta}, theta, **double)
        torch.testing.assert_close(gradients(state.server), h, **double)
        for i, of_client in enumerate(g):
            found = {n: t[i] for n, t in gradients(state.clients.memory).items()}
            torch.testing.assert_close(found, of_client, **double)


def test_h_is_the_mean_of_the_clients_gradients(double, federate):
    """Whoever takes part, and whoever diverges."""
    federation = federate(FedDyn, (8,) * 5, participation=0.4, optimizer="sgd")
    local_update = federation.method.local_update

    def diverging(cohort, payload):
        upload = local_update(cohort, payload)
        if cohort.round == 1:
            upload["head.bias"][0] = torch.nan
        return upload

    federation.method.local_update = diverging
    federation.run()
    assert federation.reports[1].failed
    of_clients = gradients(federation.state.clients.memory)
    for name, h in gradients(federation.state.server).items():
        torch.testing.assert_close(h, of_clients[name].mean(0), **double)
        assert h.abs().max() > 0


@pytest.mark.repeats
def test_it_finds_the_optimum_that_fedavg_misses(double, quadratics):
    """That of the plain mean of the losses, where each g_k is the client's gradient."""
    settings = {"lr": 0.3, "rounds": 60}
    federation, centres = quadratics(dyn(1.0), **settings)
    state, optimum = federation.state, centres.mean(0)
    torch.testing.assert_close(state.server["head.bias"], optimum, **double)
    found = gradients(state.clients.memory)["head.bias"]
    torch.testing.assert_close(found, optimum - centres, **double)
    missed, _ = quadratics(FedAvg, **settings)
    assert (missed.state.server["head.bias"] - optimum).norm() > 0.5


def test_the_first_round_is_fedprox_and_a_step_of_the_server(double, federate):
    """With g = 0 a client minimises L_k + α/2 ‖θ - θ⁰‖², and the server goes twice as far."""
    prox = partial(FedProx, options=FedProxOptions(mu=0.3))
    runs = [federate(m, (8, 8, 8), optimizer="sgd", rounds=1) for m in (dyn(0.3), prox)]
    start = {n: t[0] for n, t in runs[0].method.population.initial().items()}
    for federation in runs:
        federation.run()
    for name, before in start.items():
        mine, theirs = (f.state.server[name] for f in runs)
        torch.testing.assert_close(mine - before, 2 * (theirs - before), **double)


def test_running_statistics_are_averaged(federate, module):
    federation = federate(FedDyn, (8, 12), build=module, rounds=1)
    federation.run()
    server, own = federation.state.server, federation.state.clients.buffers
    name = "encoder.module.2.running_mean"
    torch.testing.assert_close(server[name], plain_mean(own[name]))
    assert not [n for n in gradients(server) if n in own]


def test_as_much_is_sent_as_in_fedavg(federate):
    runs = [federate(m, SIZES) for m in (FedDyn, FedAvg)]
    for federation in runs:
        federation.run()
    for mine, avg in zip(runs[0].reports, runs[1].reports, strict=True):
        assert (mine.bytes_down, mine.bytes_up) == (avg.bytes_down, avg.bytes_up)


def test_impossible_weights_are_refused():
    with pytest.raises(InputError, match="alpha is 0"):
        FedDynOptions(alpha=0)
