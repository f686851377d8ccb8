from functools import partial
from types import SimpleNamespace

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Cohort
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fednova import FedNova, FedNovaOptions
from stforecast.methods import METHODS

SIZES = (4, 13, 20)
SGD = {"optimizer": "sgd", "lr": 0.05}


def nova(mu):
    return partial(FedNova, options=FedNovaOptions(mu=mu))


@pytest.fixture
def norm_after(federate):
    """Makes ‖a‖₁ of a client's first round of τ steps, as the method counts it."""

    def make(tau, mu=0.0, **settings):
        federation = federate(nova(mu), (4,), **settings)
        clients, training = federation.state.clients, federation.method.training
        cohort = Cohort(clients, torch.tensor([0]), federation.train, training, seed=0, round=0)
        cohort.records["loss"] = [torch.zeros(1)] * tau
        return federation.method.norm(cohort).item()

    return make


@pytest.mark.parametrize("tau", [1, 2, 7])
def test_the_norms_are_those_of_the_paper(norm_after, tau):
    rho, eta, mu = 0.9, 0.05, 2.0
    momentum = sum((1 - rho ** (tau - k)) / (1 - rho) for k in range(tau))
    proximal = sum((1 - eta * mu) ** (tau - 1 - k) for k in range(tau))
    assert norm_after(tau, **SGD) == tau
    assert norm_after(tau, **SGD, momentum=rho) == pytest.approx(momentum)
    assert norm_after(tau, mu=mu, **SGD) == pytest.approx(proximal)
    assert norm_after(tau, mu=mu, optimizer="adam", momentum=rho) == tau


@pytest.mark.slow
def test_fedavg_misses_the_optimum_and_fednova_does_not(quadratics):
    """A round of τ steps takes client i from b to c_i + (1-η)^τ (b - c_i), so limits are means."""
    p, tau = torch.tensor([0.2, 0.8]), torch.tensor([1.0, 4.0])
    pull = 1 - (1 - SGD["lr"]) ** tau
    error = {}
    for method, weights in ((FedAvg, p * pull), (FedNova, p * pull / tau)):
        federation, centres = quadratics(method, lr=SGD["lr"], rounds=150)
        limit = federation.state.server["head.bias"]
        torch.testing.assert_close(limit, weights @ centres / weights.sum(), rtol=1e-4, atol=1e-4)
        error[method] = (limit - p @ centres).norm()
    assert error[FedAvg] > 0.8
    assert error[FedNova] < error[FedAvg] / 10  # What is left is of the order of η.


class Slope:
    """A loss whose gradient is one for every parameter of the linear model where x = 1."""

    n_keys = 4

    def loss(self, prediction, batch):
        return prediction.sum(-1).mean(1)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("momentum", "state"), [(0.0, "keep"), (0.7, "keep"), (0.7, "round"), (0.7, "stage")]
)
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_on_a_slope_all_clients_send_the_gradient(
    federate, linear, monkeypatch, momentum, state, mu
):
    """However many steps, and whatever gradients of earlier rounds a momentum buffer holds."""
    settings = {"build": linear, "participation": 0.5, "momentum": momentum, **SGD}
    settings["optimizer_state"] = state
    federation = federate(nova(mu), (4, 8, 13, 20), rounds=4, validated=False, **settings)
    federation.train.tensors["x"].fill_(1)
    federation.method.task = Slope()
    uploads = []
    aggregate = federation.method.aggregate

    def watched(server, of, upload):
        uploads.append(upload)
        return aggregate(server, of, upload)

    monkeypatch.setattr(federation.method, "aggregate", watched)
    federation.run()
    assert len(uploads[0]["norm"].unique()) == 4
    for upload in uploads:
        for name in ("direction.head.weight", "direction.head.bias"):
            expected = torch.full_like(upload[name], SGD["lr"])
            torch.testing.assert_close(upload[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, rho):
    federation = federate(FedNova, SIZES, momentum=rho, **SGD)
    clients = alone(federation)
    optimizers = [torch.optim.SGD(c.params.values(), lr=0.05, momentum=rho) for c in clients]
    server, shares = clients[0].values(), [n / sum(SIZES) for n in SIZES]
    for done in range(3):
        federation.run_round()
        norms, directions = [], []
        for client, optimizer in zip(clients, optimizers, strict=True):
            client.receive(server)
            for batch in client.batches(epochs=2):
                optimizer.zero_grad()
                client.loss(batch).backward()
                optimizer.step()
            tau = client.size // 4 * 2
            steps = range(done * tau, (done + 1) * tau)
            norms.append(sum(rho ** (k - j) for k in steps for j in range(k + 1)))
            directions.append({n: (server[n] - p) / norms[-1] for n, p in client.values().items()})
        tau_eff = sum(p * a for p, a in zip(shares, norms, strict=True))
        server = {
            n: w - tau_eff * sum(p * d[n] for p, d in zip(shares, directions, strict=True))
            for n, w in server.items()
        }
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)


@pytest.mark.repeats
@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {**SGD, "momentum": 0.9}])
def test_clients_of_equal_work_give_fedavg(federate, module, settings):
    runs = [federate(m, (8, 8, 8), build=module, **settings) for m in (FedNova, FedAvg)]
    for federation in runs:
        federation.run()
    servers = [f.state.server for f in runs]
    torch.testing.assert_close(*servers, rtol=1e-4, atol=1e-5)
    name = "encoder.module.2.num_batches_tracked"
    assert servers[0][name] == servers[1][name] == 12


def test_running_statistics_are_averaged(federate, module):
    federation = federate(FedNova, (8, 12), build=module, rounds=1)
    federation.run()
    name = "encoder.module.2.running_mean"
    own = federation.state.clients.buffers[name]
    torch.testing.assert_close(federation.state.server[name], 0.4 * own[0] + 0.6 * own[1])


def test_a_direction_for_each_parameter_and_one_norm_are_sent(federate, module):
    runs = [federate(m, SIZES, build=module) for m in (FedNova, FedAvg)]
    for federation in runs:
        federation.run()
    for mine, avg in zip(runs[0].reports, runs[1].reports, strict=True):
        assert mine.bytes_down == avg.bytes_down
        assert mine.bytes_up == avg.bytes_up + 3 * 4
    assert runs[0].state.server.keys() == set(runs[0].method.population.names)


def test_impossible_weights_are_refused():
    with pytest.raises(InputError, match=r"mu is -1.* 0"):
        FedNovaOptions(mu=-1)


def test_the_default_is_without_the_proximal_term():
    assert FedNovaOptions().mu == 0


def test_it_is_registered():
    assert METHODS["fednova"] is FedNova


def test_the_norm_follows_the_schedule(federate):
    """With a proximal term the pull of a step is that of the round's own learning rate."""
    settings = {"optimizer": "sgd", "lr": 0.1, "rounds": 4, "schedule": "cosine", "epochs": 1}
    made = federate(FedAvg, (8,), **settings)
    method = FedNova(made.method.population, made.method.task, made.method.training,
                     FedNovaOptions(mu=2.0))  # fmt: skip
    cohort = SimpleNamespace(
        round=2, records={"loss": [None] * 3}, memory={"momentum": torch.zeros(1)}
    )
    pull = 0.05 * 2.0
    assert method.norm(cohort).item() == pytest.approx(sum((1 - pull) ** k for k in range(3)))
