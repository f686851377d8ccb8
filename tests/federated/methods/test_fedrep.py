from functools import partial

import pytest
import torch
from reference_client import mean_by_size

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedrep import FedRep, FedRepOptions
from stforecast.methods import METHODS

SIZES = (8, 13, 5)
OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, lr=0.05, weight_decay=0.1),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, weight_decay=0.1, momentum=0.5),
}
ENCODER = {"encoder.0.weight", "encoder.0.bias"}


def rep(**options):
    return partial(FedRep, options=FedRepOptions(**options))


def fit(client, optimizer, epochs):
    """Train one part; gradients of the other are computed and thrown away."""
    for batch in client.batches(epochs):
        for p in client.params.values():
            p.grad = None
        client.loss(batch).backward()
        optimizer.step()


def heads(state):
    return {name: t for name, t in state.clients.params.items() if name.startswith("head.")}


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, optimizer):
    settings = {"optimizer": optimizer, "lr": 0.05, "weight_decay": 0.1, "momentum": 0.5}
    federation = federate(rep(head_epochs=3), SIZES, epochs=2, **settings)
    clients = alone(federation)
    parts = [
        [OPTIMIZERS[optimizer](c.part(prefix)) for prefix in ("head.", "encoder.")] for c in clients
    ]
    server = clients[0].values("encoder.")
    for _ in range(3):
        federation.run_round()
        for client, (head, encoder) in zip(clients, parts, strict=True):
            client.receive(server)
            fit(client, head, epochs=3)
            fit(client, encoder, epochs=2)
        server = mean_by_size([c.values("encoder.") for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)
        own = {n: torch.stack([c.params[n].detach() for c in clients]) for n in clients[0].params}
        torch.testing.assert_close(federation.state.clients.params, own, rtol=1e-4, atol=1e-5)


@pytest.mark.repeats
def test_the_head_is_trained_as_long_as_the_representation_by_default(federate):
    states = []
    for options in ({}, {"head_epochs": 2}, {"head_epochs": 1}):
        federation = federate(rep(**options), SIZES, epochs=2)
        federation.run()
        states.append(federation.state.flat())
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not torch.equal(
        states[0]["server/encoder.0.weight"], states[2]["server/encoder.0.weight"]
    )


def test_the_encoder_alone_is_sent(federate):
    federation = federate(FedRep, SIZES)
    federation.run()
    assert federation.state.server.keys() == ENCODER
    n_bytes = 3 * 4 * (3 * 5 + 5)
    assert {(r.bytes_down, r.bytes_up) for r in federation.reports} == {(n_bytes, n_bytes)}


def test_running_statistics_move_in_both_phases_and_are_averaged(federate, module):
    federation = federate(rep(head_epochs=3), (8, 8), build=module, epochs=1, rounds=1)
    federation.run()
    own, shared = federation.state.clients.buffers, federation.state.server
    torch.testing.assert_close(
        shared["encoder.module.2.running_mean"], own["encoder.module.2.running_mean"].mean(0)
    )
    assert shared["encoder.module.2.num_batches_tracked"] == (3 + 1) * 2


def test_a_client_predicts_with_the_shared_encoder_and_its_own_head(federate, make_data):
    federation = federate(FedRep, (8, 8, 8))
    federation.run()
    x = make_data((5,)).tensors["x"].expand(3, -1, -1)
    data = ClientData({"x": x}, torch.tensor([5, 5, 5]))
    ((_, y_hat),) = predictions(federation.method, federation.state, data)
    server, own = federation.state.server, federation.state.clients.params
    features = torch.tanh(x[0] @ server["encoder.0.weight"] + server["encoder.0.bias"])
    for i in range(3):
        expected = features @ own["head.weight"][i] + own["head.bias"][i]
        torch.testing.assert_close(y_hat[i], expected)
    assert not torch.allclose(y_hat[0], y_hat[1])


def test_heads_may_be_fitted_before_they_predict(federate, alone):
    settings = {"optimizer": "sgd", "lr": 0.05}
    federation = federate(rep(personal_epochs=4), SIZES, **settings)
    federation.run()
    before = {name: t.clone() for name, t in federation.state.flat().items()}
    ready = federation.ready()
    torch.testing.assert_close(federation.state.flat(), before, rtol=0, atol=0)
    for i, client in enumerate(alone(federation)):
        client.receive({name: t[i] for name, t in heads(federation.state).items()})
        client.receive(federation.state.server)
        fit(client, torch.optim.SGD(client.part("head."), lr=0.05), epochs=4)
        fitted = {name: t[i] for name, t in ready.clients.params.items()}
        torch.testing.assert_close(fitted, client.values())


def test_without_personal_epochs_the_clients_predict_as_they_are(federate):
    federation = federate(FedRep, SIZES)
    assert federation.ready() is federation.state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_epochs": 0}, "head_epochs is 0.*positive"),
        ({"personal_epochs": -1}, "personal_epochs is -1.* 0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedRepOptions(**options)


def test_it_is_registered():
    assert METHODS["fedrep"] is FedRep
