from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedgh import FedGH, FedGHOptions

SIZES = (8, 13, 5)
N_KEYS, D, N_OUTPUTS = 4, 5, 2


def gh(**options):
    return partial(FedGH, options=FedGHOptions(**options))


def train(client, optimizer, epochs):
    """Train a client; features, targets and their masks of each key in the last epoch."""
    last = len(list(client.batches(1))) * (epochs - 1)
    seen = {}
    for step, batch in enumerate(client.batches(epochs)):
        if step >= last:
            features = client.encode(batch["x"]).detach()
            for row in zip(features, batch["y"], batch["mask"], batch["slot"], strict=True):
                seen.setdefault(int(row[-1]), []).append(row[:-1])
        optimizer.zero_grad()
        client.loss(batch).backward()
        optimizer.step()
    return seen


def means_of(rows):
    """The mean feature of a key, and the mean of each target where it is observed, else None."""
    feature = sum(f for f, _, _ in rows) / len(rows)
    targets = []
    for j in range(N_OUTPUTS):
        known = [float(y[j]) for _, y, mask in rows if mask[j]]
        targets.append(sum(known) / len(known) if known else None)
    return feature, targets


def descend(weight, bias, samples, steps, lr):
    """Gradient descent on the mean squared error of all observed targets, number by number."""
    weight, bias = weight.clone(), bias.clone()
    n = sum(y is not None for _, targets in samples for y in targets)
    for _ in range(steps):
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for feature, targets in samples:
            for j, y in enumerate(targets):
                if y is not None:
                    error = float(feature @ weight[:, j] + bias[j]) - y
                    d_weight[:, j] += 2 * error / n * feature
                    d_bias[j] += 2 * error / n
        weight, bias = weight - lr * d_weight, bias - lr * d_bias
    return weight, bias


def test_rounds_are_those_of_clients_trained_one_by_one(double, federate, alone):
    federation = federate(gh(server_epochs=3, server_lr=0.2), SIZES, lr=0.05)
    federation.train.tensors["slot"][2] = 1  # The last client has one key.
    federation.train.tensors["mask"][0, ::N_KEYS, 1] = False  # Key 0 lacks a target there.
    clients = alone(federation)
    optimizers = [torch.optim.Adam(c.params.values(), lr=0.05) for c in clients]
    header = clients[0].values("head.")
    for _ in range(2):
        samples = []
        for client, optimizer in zip(clients, optimizers, strict=True):
            client.receive(header)
            seen = train(client, optimizer, epochs=2)
            samples += [means_of(seen[key]) for key in sorted(seen)]
        found = descend(header["head.weight"], header["head.bias"], samples, 3, 0.2)
        header = dict(zip(("head.weight", "head.bias"), found, strict=True))
        federation.run_round()
        assert federation.state.server.keys() == header.keys()
        torch.testing.assert_close(federation.state.server, header, **double)
        own = {n: torch.stack([c.params[n].detach() for c in clients]) for n in clients[0].params}
        torch.testing.assert_close(federation.state.clients.params, own, **double)


def test_one_mean_by_hand(double, federate, linear):
    """R = (1, 2, 0) with targets 3 and nothing: the error is -3, so W grows by .1 · 6 R."""
    method = federate(gh(server_epochs=1, server_lr=0.1), build=linear).method
    server = {"head.weight": torch.zeros(3, 2), "head.bias": torch.zeros(2)}
    sent = {
        "prototypes": torch.tensor([[[1.0, 2.0, 0.0], [9.0, 9.0, 9.0]]]),
        "known": torch.tensor([[True, False]]),
        "targets": torch.tensor([[[3.0, 0.0], [7.0, 7.0]]]),
        "observed": torch.tensor([[[True, False], [True, True]]]),
    }
    after = method.aggregate(server, Participants(torch.tensor([0]), torch.tensor([8]), 0), sent)
    expected = torch.tensor([[0.6, 0.0], [1.2, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(after["head.weight"], expected, **double)
    torch.testing.assert_close(after["head.bias"], torch.tensor([0.6, 0.0]), **double)
    sent["known"][:] = False
    assert method.aggregate(server, None, sent)["head.weight"].tolist() == [[0, 0]] * 3


def test_a_client_predicts_with_its_encoder_and_the_servers_header(federate):
    federation = federate(FedGH, SIZES)
    federation.run()
    method, state, x = federation.method, federation.state, federation.train.tensors["x"][:, :4]
    own = state.clients.params
    payload = method.broadcast(state.server, state.participants())
    features = method.population.encode(own, x)
    expected = features @ state.server["head.weight"] + state.server["head.bias"]
    torch.testing.assert_close(method.predict(own, payload, x, "personal"), expected)
    assert not torch.equal(own["head.weight"][0], state.server["head.weight"])


def test_it_sends_means_and_no_parameters(federate):
    federation = federate(FedGH, SIZES)
    federation.run()
    up = N_KEYS * (4 * D + 1 + N_OUTPUTS * (4 + 1))
    down = 4 * (D * N_OUTPUTS + N_OUTPUTS)
    assert [r.bytes_up for r in federation.reports] == [3 * up] * 3
    assert [r.bytes_down for r in federation.reports] == [3 * down] * 3


@pytest.mark.parametrize("options", [{"server_epochs": 0}, {"server_lr": 0.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        FedGHOptions(**options)
