"""FedPer and its opposite, LG-FedAvg, against clients trained one by one."""

import pytest
import torch
from reference_client import mean_by_size

from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedper import FedPer
from stforecast.federated.methods.fedrep import FedRep
from stforecast.federated.methods.lg_fedavg import LGFedAvg

SIZES = (8, 13, 5)
SETTINGS = {
    "adam": {"optimizer": "adam", "lr": 0.05, "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5},
}
SHARED = {FedPer: "encoder.", LGFedAvg: "head."}
FLOATS = {FedPer: 3 * 5 + 5, LGFedAvg: 5 * 2 + 2}


@pytest.mark.parametrize("method", SHARED)
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    double, federate, alone, optimizers, method, optimizer
):
    settings, shared = SETTINGS[optimizer], SHARED[method]
    federation = federate(method, SIZES, **settings)
    clients = alone(federation)
    own = [optimizers(list(c.params.values()), **settings) for c in clients]
    server = clients[0].values(shared)
    for _ in range(3):
        federation.run_round()
        for client, optimiser in zip(clients, own, strict=True):
            client.receive(server)
            for batch in client.batches(epochs=2):
                optimiser.zero_grad()
                client.loss(batch).backward()
                optimiser.step()
        server = mean_by_size([c.values(shared) for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, **double)
        kept = {n: torch.stack([c.params[n].detach() for c in clients]) for n in clients[0].params}
        torch.testing.assert_close(federation.state.clients.params, kept, **double)


@pytest.mark.parametrize("method", SHARED)
def test_one_part_alone_is_sent(federate, method):
    federation = federate(method, SIZES)
    federation.run()
    assert all(name.startswith(SHARED[method]) for name in federation.state.server)
    n_bytes = len(SIZES) * 4 * FLOATS[method]
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


@pytest.mark.parametrize("method", SHARED)
def test_a_client_predicts_with_the_shared_part_and_its_own(federate, make_data, method):
    federation = federate(method, (8, 8, 8))
    federation.run()
    state = federation.state
    ((batch, y_hat),) = predictions(federation.method, state, make_data((5, 5, 5)))
    for i, x in enumerate(batch["x"]):
        model = {n: t[i] for n, t in state.clients.params.items()} | state.server
        features = torch.tanh(x @ model["encoder.0.weight"] + model["encoder.0.bias"])
        expected = features @ model["head.weight"] + model["head.bias"]
        torch.testing.assert_close(y_hat[i], expected)


def test_running_statistics_of_the_encoder_stay_where_the_encoder_is(federate, module):
    name = "encoder.module.2.running_mean"
    shared = federate(FedPer, (8, 12), build=module, rounds=1)
    shared.run()
    own = shared.state.clients.buffers[name]
    torch.testing.assert_close(shared.state.server[name], 0.4 * own[0] + 0.6 * own[1])
    apart = federate(LGFedAvg, (8, 12), build=module)
    apart.run()
    assert name not in apart.state.server
    assert not torch.allclose(*apart.state.clients.buffers[name])


def test_fedrep_shares_what_fedper_shares(federate):
    assert federate(FedRep).method.shared == federate(FedPer).method.shared
