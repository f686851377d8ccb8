import copy
from functools import partial

import pytest
import torch
from mentions import mentions
from reference_client import mean_by_size
from torch import nn

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedbn import FedBN, FedBNOptions
from stforecast.methods import METHODS

SIZES = (8, 13, 5)
NORM = "encoder.module.2."


class Ordinary(nn.Module):
    """The model of one client under the names of the population, which wraps its parts."""

    def __init__(self, build, federation):
        super().__init__()
        model = build()
        self.encoder, self.head = model.encoder, model.head
        initial = federation.method.population.initial()
        self.load_state_dict({name: t[0] for name, t in initial.items()})

    def forward(self, x):
        return self.head.module(self.encoder.module(x))


def batches(federation, client, epochs):
    b = federation.method.training.batch_size
    for _ in range(epochs):
        for start in range(0, int(federation.train.sizes[client]) - b + 1, b):
            yield {n: t[client, start : start + b] for n, t in federation.train.tensors.items()}


def shared(model):
    return {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(NORM)}


def test_rounds_are_those_of_clients_trained_one_by_one(federate, module):
    federation = federate(FedBN, SIZES, build=module, lr=0.05)
    clients = [Ordinary(module, federation) for _ in SIZES]
    optimizers = [torch.optim.Adam(c.parameters(), lr=0.05) for c in clients]
    server = shared(clients[0])
    for _ in range(3):
        federation.run_round()
        for i, (client, optimizer) in enumerate(zip(clients, optimizers, strict=True)):
            client.load_state_dict(server, strict=False)
            for batch in batches(federation, i, epochs=2):
                optimizer.zero_grad()
                (client(batch["x"]) - batch["y"])[batch["mask"]].square().mean().backward()
                optimizer.step()
        server = mean_by_size([shared(c) for c in clients], SIZES)
        torch.testing.assert_close(federation.state.server, server, rtol=1e-4, atol=1e-5)
    trained = {**federation.state.clients.params, **federation.state.clients.buffers}
    for i, client in enumerate(clients):
        own = {name: t[i] for name, t in trained.items()}
        torch.testing.assert_close(own, dict(client.state_dict()), rtol=1e-4, atol=1e-5)


def test_batch_normalisation_is_never_sent(federate, module):
    runs = {m.name: federate(m, SIZES, build=module) for m in (FedBN, FedAvg)}
    for federation in runs.values():
        federation.run()
    kept = {f"{NORM}{n}" for n in ("weight", "bias", "running_mean", "running_var")}
    kept |= {f"{NORM}num_batches_tracked"}
    assert runs["fedavg"].state.server.keys() - runs["fedbn"].state.server.keys() == kept
    saved = 3 * (4 * 2 * 4 + 8)  # Four vectors of two floats and a long counter.
    for bn, avg in zip(runs["fedbn"].reports, runs["fedavg"].reports, strict=True):
        assert bn.bytes_up == avg.bytes_up - saved
        assert bn.bytes_down == avg.bytes_down - saved


def test_a_client_predicts_with_its_own_normalisation(federate, module, make_data):
    federation = federate(FedBN, (8, 8), build=module)
    federation.run()
    data = make_data((5, 5))
    data.tensors["x"][:] = data.tensors["x"][0].clone()
    ((_, y_hat),) = predictions(federation.method, federation.state, data)
    for i in range(2):
        client = Ordinary(module, federation).eval()
        own = {**federation.state.clients.params, **federation.state.clients.buffers}
        client.load_state_dict({name: t[i] for name, t in own.items()})
        client.load_state_dict(federation.state.server, strict=False)
        torch.testing.assert_close(y_hat[i], client(data.tensors["x"][i]).detach())
    assert not torch.allclose(y_hat[0], y_hat[1])


def test_without_normalisation_it_is_fedavg_and_says_so(federate, caplog):
    runs = [federate(m, SIZES, participation=0.5) for m in (FedBN, FedAvg)]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.flat(), runs[1].state.flat(), rtol=0, atol=0)
    assert mentions(caplog.text, "normalisation", "FedAvg")


def test_with_normalisation_there_is_no_warning(federate, module, caplog):
    federate(FedBN, build=module)
    assert not caplog.text


LAYERS = {
    "batch": nn.BatchNorm1d(4),
    "layer": nn.LayerNorm(4),
    "group": nn.GroupNorm(2, 4),
    "instance": nn.InstanceNorm1d(4, affine=True),
}


@pytest.mark.parametrize(("norms", "kept"), [("batch", {"batch"}), ("all", set(LAYERS))])
def test_other_normalisation_layers_stay_if_asked_for(federate, norms, kept):
    def build():
        layers = copy.deepcopy(LAYERS)
        return SplitModel(PerClient(nn.ModuleDict(layers)), PerClient(nn.Linear(4, 2)))

    federation = federate(partial(FedBN, options=FedBNOptions(norms=norms)), build=build)
    parts = {name.split(".")[2] for name in federation.state.server}
    assert parts == {"weight", "bias"} | (set(LAYERS) - kept)


def test_unknown_layers_are_refused():
    with pytest.raises(InputError, match="norms is 'layer'"):
        FedBNOptions(norms="layer")


def test_it_is_registered():
    assert METHODS["fedbn"] is FedBN
