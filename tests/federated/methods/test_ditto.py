from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.ditto import Ditto, DittoOptions, personal_model
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.solo import Solo

SIZES = (8, 13, 4)
OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
}


def ditto(**options):
    return partial(Ditto, options=DittoOptions(**options))


def train(client, optimizer, epochs, lam=0.0, anchor=None):
    for batch in client.batches(epochs):
        optimizer.zero_grad()
        loss = client.loss(batch)
        for name, w in (anchor or {}).items():
            loss = loss + lam / 2 * (client.params[name] - w).square().sum()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("personal_epochs", [None, 1, 3])
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    federate, alone, optimizer, personal_epochs
):
    method = ditto(lam=0.7, personal_epochs=personal_epochs)
    federation = federate(method, SIZES, optimizer=optimizer, lr=0.05)
    local, personal = alone(federation), alone(federation)
    own = [OPTIMIZERS[optimizer](list(c.params.values())) for c in (*local, *personal)]
    server = local[0].values()
    for _ in range(3):
        federation.run_round()
        for w, v, step_w, step_v in zip(local, personal, own[:3], own[3:], strict=True):
            w.receive(server)
            train(w, step_w, epochs=2)
            train(v, step_v, personal_epochs or 2, lam=0.7, anchor=server)
        server = mean_by_size([w.values() for w in local], SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)
        for i, v in enumerate(personal):
            rows = {n: t[i] for n, t in personal_model(federation.state.clients.params).items()}
            torch.testing.assert_close(rows, v.values(), rtol=1e-4, atol=1e-5)


@pytest.mark.repeats
@pytest.mark.parametrize("build", ["stacked", "module"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_global_model_is_fedavgs_whatever_lambda(federate, request, build, shuffle):
    settings = {
        "sizes": SIZES,
        "build": request.getfixturevalue(build),
        "shuffle": shuffle,
        "participation": 0.7,
    }
    federation = federate(ditto(lam=3.0, personal_epochs=3), **settings)
    fedavg = federate(FedAvg, **settings)
    federation.run()
    fedavg.run()
    assert federation.state.server.keys() == fedavg.state.server.keys()
    for name, t in fedavg.state.server.items():
        assert torch.equal(federation.state.server[name], t), name


@pytest.mark.repeats
def test_without_lambda_the_personal_models_are_solos(federate, module):
    settings = {"sizes": SIZES, "build": module, "shuffle": True}
    federation, solo = federate(ditto(lam=0.0), **settings), federate(Solo, **settings)
    federation.run()
    solo.run()
    own = federation.state.clients
    for name, t in solo.state.clients.params.items():
        torch.testing.assert_close(own.params["personal." + name], t)
    for name, t in solo.state.clients.buffers.items():
        torch.testing.assert_close(own.memory["personal." + name], t)


def test_a_large_lambda_keeps_personal_models_near_the_received_one(federate):
    federation = federate(ditto(lam=15.0), SIZES, optimizer="sgd", lr=0.05, rounds=1, epochs=5)
    federation.run()
    initial = federation.method.population.initial()
    params = federation.state.clients.params
    for name, w in initial.items():
        near = (params["personal." + name] - w).norm()
        assert near < 0.3 * (params[name] - w).norm()


@pytest.mark.repeats
def test_running_statistics_are_kept_apart(federate, module):
    federation = federate(ditto(lam=1.0), SIZES, build=module)
    federation.run()
    clients = federation.state.clients
    names = [name for name in clients.buffers if "running" in name]
    assert names
    for name in names:
        own, shared = clients.memory["personal." + name], clients.buffers[name]
        assert own.untyped_storage().data_ptr() != shared.untyped_storage().data_ptr()
        assert not torch.allclose(own, shared)
    counted = clients.memory["personal.encoder.module.2.num_batches_tracked"]
    assert counted.tolist() == [3 * 2 * (size // 4) for size in SIZES]


def test_only_the_global_model_is_sent(federate):
    federation = federate(ditto(), SIZES)
    federation.run()
    n_bytes = len(SIZES) * 4 * (3 * 5 + 5 + 5 * 2 + 2)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_each_view_predicts_with_its_model(federate, make_data):
    federation = federate(ditto(), SIZES)
    federation.run()
    population, state, data = federation.method.population, federation.state, make_data((5, 5, 5))
    ((batch, own),) = predictions(federation.method, state, data)
    ((_, shared),) = predictions(federation.method, state, data, view="global")
    v = personal_model(state.clients.params)
    w = {name: t.expand(3, *t.shape) for name, t in state.server.items()}
    for y_hat, model in ((own, v), (shared, w)):
        expected = population.decode(model, population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)
    assert not torch.allclose(own, shared)


@pytest.mark.parametrize("options", [{"lam": -1.0}, {"personal_epochs": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        DittoOptions(**options)
