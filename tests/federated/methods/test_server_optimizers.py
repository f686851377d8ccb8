"""FedAvgM, FedAdam and FedYogi against a server in plain Python, and against FedAvg."""

from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.tensors import total_bytes
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.server_optimizers import (
    FedAdam,
    FedAdamOptions,
    FedAvgM,
    FedAvgMOptions,
    FedYogi,
)

SIZES = (8, 13, 4)


def velocities(delta, v):
    """Hsu et al.: v ← 0.7 v + Δw, times η = 0.5."""
    v = 0.7 * v.get("velocity", 0) + delta
    return 0.5 * v, {"velocity": v}


def adaptive(delta, moments, yogi):
    """Reddi et al., Algorithm 2, with β = 0.8 and 0.9, τ = 0.02 and η = 0.1."""
    m = 0.8 * moments.get("mean", 0) + 0.2 * delta
    v = moments.get("square", torch.full_like(delta, 0.02**2))
    if yogi:
        v = v - 0.1 * delta**2 * torch.sign(v - delta**2)
    else:
        v = 0.9 * v + 0.1 * delta**2
    return 0.1 * m / (v**0.5 + 0.02), {"mean": m, "square": v}


OPTIONS = FedAdamOptions(server_lr=0.1, beta1=0.8, beta2=0.9, tau=0.02)
CASES = {
    "fedavgm": (
        partial(FedAvgM, options=FedAvgMOptions(beta=0.7, server_lr=0.5)),
        velocities,
    ),
    "fedadam": (partial(FedAdam, options=OPTIONS), partial(adaptive, yogi=False)),
    "fedyogi": (partial(FedYogi, options=OPTIONS), partial(adaptive, yogi=True)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_rounds_are_those_of_clients_and_a_server_one_by_one(
    double, federate, alone, optimizers, name, optimizer
):
    method, step = CASES[name]
    federation = federate(method, SIZES, optimizer=optimizer, lr=0.05)
    clients = alone(federation)
    own = [optimizers(list(c.params.values()), optimizer) for c in clients]
    server, moments = clients[0].values(), {n: {} for n in clients[0].params}
    for _ in range(4):
        federation.run_round()
        for client, optimiser in zip(clients, own, strict=True):
            client.receive(server)
            for batch in client.batches(epochs=2):
                optimiser.zero_grad()
                client.loss(batch).backward()
                optimiser.step()
        mean = mean_by_size([c.values() for c in clients], SIZES)
        for n in server:
            far, moments[n] = step(mean[n] - server[n], moments[n])
            server[n] = server[n] + far
            for moment, t in moments[n].items():
                found = federation.state.server[f"{moment}.{n}"]
                torch.testing.assert_close(found, t, **double)
        found = {n: federation.state.server[n] for n in server}
        torch.testing.assert_close(found, server, **double)


@pytest.mark.repeats
def test_without_velocity_it_is_fedavg(double, federate, module):
    at_rest = partial(FedAvgM, options=FedAvgMOptions(beta=0.0))
    runs = [federate(m, SIZES, build=module) for m in (at_rest, FedAvg)]
    for federation in runs:
        federation.run()
    mine, avg = (f.state.server for f in runs)
    torch.testing.assert_close({n: mine[n] for n in avg}, avg, **double)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_running_statistics_are_averaged_and_have_no_moments(federate, module, name):
    federation = federate(CASES[name][0], (8, 12), build=module, rounds=2)
    federation.run()
    server, own = federation.state.server, federation.state.clients.buffers
    for buffer in ("encoder.module.2.running_mean", "encoder.module.2.running_var"):
        torch.testing.assert_close(server[buffer], 0.4 * own[buffer][0] + 0.6 * own[buffer][1])
    count = "encoder.module.2.num_batches_tracked"
    assert server[count] == round(0.4 * 8 + 0.6 * 12)
    assert server[count].dtype == torch.long
    assert not [n for n in server if "running" in n and not n.startswith("encoder")]
    assert [n for n in server if n.endswith("encoder.module.2.weight") and "." in n]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_as_much_is_sent_as_in_fedavg(federate, module, name):
    runs = [federate(m, SIZES, build=module, rounds=1) for m in (CASES[name][0], FedAvg)]
    for federation in runs:
        federation.run()
    mine, avg = (f.reports[0] for f in runs)
    assert (mine.bytes_up, mine.bytes_down) == (avg.bytes_up, avg.bytes_down)
    assert total_bytes(runs[0].state.server) > total_bytes(runs[1].state.server)


def test_yogis_squares_come_down_more_slowly_than_adams(federate):
    """After a large change and many small ones, v of Adam has decayed and Yogi's hardly."""
    made = [federate(m).method for m in (FedAdam, FedYogi)]
    deltas = torch.tensor([1.0] + [0.01] * 50)
    squares = []
    for method in made:
        v = torch.tensor(0.0)
        for delta in deltas:
            v = method.next_square(v, delta.square())
        squares.append(v)
    assert squares[0] == pytest.approx(0.01 * 0.99**50, rel=0.01)
    assert squares[1] == pytest.approx(0.01 - 50 * 0.01 * 0.01**2, rel=1e-4)


def test_the_defaults_are_the_papers():
    options = FedAdamOptions()
    assert (options.beta1, options.beta2, options.tau) == (0.9, 0.99, 1e-3)
    assert FedAvgMOptions().server_lr == 1


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (FedAvgMOptions, {"beta": 1.0}, r"beta is 1.0; .*\[0, 1\)"),
        (FedAvgMOptions, {"server_lr": 0.0}, "server_lr is 0.0.*positive"),
        (FedAdamOptions, {"beta1": -0.1}, r"beta1 is -0.1; .*\[0, 1\)"),
        (FedAdamOptions, {"beta2": 1.0}, r"beta2 is 1.0; .*\[0, 1\)"),
        (FedAdamOptions, {"tau": 0.0}, "tau is 0.0"),
    ],
)
def test_impossible_options_are_refused(options, given, message):
    with pytest.raises(InputError, match=message):
        options(**given)
