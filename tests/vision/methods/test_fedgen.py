import math
from functools import partial

import numpy as np
import pytest
import torch
from reference_client import mean_by_size
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.core.population import PerClient, SplitModel, feature_width
from stforecast.federated.core.state import Participants, generator
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods import METHODS
from vision.methods.fedgen import FedGen, FedGenOptions, diversity_loss
from vision.methods.generator import draw_labels

SIZES = (8, 13, 5)
N_CLASSES, WIDTH, NOISE, HIDDEN = 4, 5, 3, 7
SMALL = {"noise_width": NOISE, "hidden": HIDDEN, "server_steps": 3, "server_batch_size": 6}


def fedgen(**options):
    return partial(FedGen, options=FedGenOptions(**{**SMALL, **options}))


def ordinary_generator(server):
    """The generator as ordinary modules."""
    net = nn.Sequential(
        nn.Linear(NOISE + N_CLASSES, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, WIDTH),
    )
    values = {n.removeprefix("generator."): t for n, t in server.items() if "generator." in n}
    with torch.no_grad():
        net[0].weight.copy_(values["0.weight"].T)
        net[3].weight.copy_(values["2.weight"].T)
        net[3].bias.copy_(values["2.bias"])
    return net


def labels_of(uniform, counts):
    """One of all samples at random, by its place in the list of them."""
    samples = np.repeat(np.arange(N_CLASSES), counts)
    return torch.from_numpy(samples[(uniform.numpy().astype(float) * len(samples)).astype(int)])


def features_of(net, labels, random):
    noise = torch.randn(len(labels), NOISE, generator=random)
    return net(torch.cat([noise, F.one_hot(labels, N_CLASSES)], 1)), noise


def train(client, optimizer, net, counts, random, weights):
    net.eval()
    for batch in client.batches(2):
        z = client.encode(batch["x"])
        loss = F.cross_entropy(client.decode(z), batch["y"])
        if counts is not None:
            y = labels_of(torch.rand(len(z), generator=random), counts)
            made = features_of(net, y, random)[0].detach()
            loss = loss + weights[0] * F.cross_entropy(client.decode(made), y)
            like = features_of(net, batch["y"], random)[0].detach()
            p = client.decode(like).detach().softmax(1)
            q = client.decode(z).softmax(1)
            loss = loss + weights[1] * (p * (p / q).log()).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_generator(net, optimizer, clients, held, random):
    net.train()
    total = sum(held)
    for _ in range(3):
        y = labels_of(torch.rand(1, 6, generator=random)[0], total)
        z, noise = features_of(net, y, random)
        loss = 0
        for client, own in zip(clients, held, strict=True):
            head = {n: p.detach() for n, p in client.params.items()}
            each = F.cross_entropy(client.decode(z, head), y, reduction="none")
            loss = loss + (torch.from_numpy(own / np.maximum(total, 1))[y] * each).mean()
        apart = torch.cdist(noise, noise).square() / NOISE
        between = torch.stack([(a - z).abs().mean(1) for a in z])
        optimizer.zero_grad()
        (loss + 0.5 * (-(apart * between).mean()).exp()).backward()
        optimizer.step()


def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone):
    method = fedgen(alpha=2.0, beta=1.5, decay=0.5, diversity=0.5, server_lr=0.01)
    federation = federate(method, SIZES, lr=0.05)
    clients = alone(federation)
    optimizers = [torch.optim.Adam(c.params.values(), lr=0.05) for c in clients]
    net = ordinary_generator(federation.state.server)
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    held = [np.bincount(c.data["y"], minlength=N_CLASSES) for c in clients]
    server = clients[0].values()
    for r in range(3):
        federation.run_round()
        for i, (client, optimizer) in enumerate(zip(clients, optimizers, strict=True)):
            client.receive(server)
            weights = 2.0 * 0.5**r, 1.5 * 0.5**r
            train(client, optimizer, net, sum(held) if r else None, generator(1, r, i), weights)
        train_generator(net, adam, clients, held, generator(1, r, 0, 4))
        server = mean_by_size([c.values() for c in clients], SIZES)
        found = federation.state.server
        model = {n: found[n] for n in server}
        torch.testing.assert_close(model, server, rtol=1e-4, atol=1e-5)
        for name, t in {
            "0.weight": net[0].weight.T,
            "0.scale": net[1].weight,
            "0.shift": net[1].bias,
            "0.running_mean": net[1].running_mean,
            "0.running_var": net[1].running_var,
            "2.weight": net[3].weight.T,
            "2.bias": net[3].bias,
        }.items():
            torch.testing.assert_close(found[f"generator.{name}"], t.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("build", ["stacked", "module"])
def test_without_weight_on_generated_features_it_is_fedavg(federate, build):
    runs = [federate(m, SIZES, build=build) for m in (fedgen(alpha=0.0), FedAvg)]
    for federation in runs:
        federation.run()
    model = {n: runs[0].state.server[n] for n in runs[1].state.server}
    torch.testing.assert_close(model, runs[1].state.server, rtol=0, atol=0)


@pytest.mark.repeats
def test_the_heads_come_to_recognise_what_the_generator_makes(federate):
    federation = federate(fedgen(server_steps=40, server_batch_size=32, server_lr=0.02), rounds=4)
    method, losses = federation.method, []
    for _ in range(4):
        federation.run_round()
        net = {n: t[None] for n, t in federation.state.server.items() if n.startswith("generator.")}
        y = torch.arange(64)[None] % 4
        z = torch.cat([torch.randn(1, 64, NOISE), F.one_hot(y, 4)], -1)
        heads = federation.state.clients.params
        z = method.generator(net, z, training=False).expand(3, -1, -1)
        logits = method.population.decode(heads, z)
        losses.append(F.cross_entropy(logits.flatten(0, 1), y.expand(3, -1).flatten()).item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_generator_is_sent_once_it_is_trained(federate):
    federation = federate(fedgen(), SIZES)
    federation.run()
    model = 6 * WIDTH + WIDTH + WIDTH * N_CLASSES + N_CLASSES
    net = (NOISE + N_CLASSES) * HIDDEN + 4 * HIDDEN + HIDDEN * WIDTH + WIDTH
    first, *rest = [r.bytes_down for r in federation.reports]
    assert first == 3 * 4 * model
    assert rest == [3 * 4 * (model + net + N_CLASSES)] * 2
    assert [r.bytes_up for r in federation.reports] == [3 * 4 * (model + N_CLASSES)] * 3


def test_clients_send_how_many_samples_of_each_class_they_have(federate):
    federation = federate(fedgen(), SIZES)
    federation.run_round()
    y = federation.train.tensors["y"]
    expected = sum(np.bincount(y[i, :n], minlength=N_CLASSES) for i, n in enumerate(SIZES))
    assert federation.state.server["label_counts"].tolist() == expected.tolist()


def test_the_global_model_predicts(federate, make_data):
    federation = federate(fedgen(), SIZES)
    federation.run()
    method, state, data = federation.method, federation.state, make_data((5, 5, 5))
    ((batch, y_hat),) = predictions(method, state, data)
    model = {n: t.expand(3, *t.shape) for n, t in state.server.items() if n in method.shared}
    expected = method.population.decode(model, method.population.encode(model, batch["x"]))
    torch.testing.assert_close(y_hat, expected)


def test_a_participant_without_a_class_does_not_count_for_it(federate):
    method = federate(fedgen(diversity=0.0)).method
    server = federate(fedgen()).state.server
    heads = {n: torch.cat([server[n][None]] * 2) for n in ("head.weight", "head.bias")}
    heads["head.bias"][1] = torch.tensor([0.0, 90.0, 0.0, 0.0])  # Never sees class 0.
    net = {n: t[None] for n, t in server.items() if n.startswith("generator.")}
    counts = torch.tensor([[4, 0, 0, 0], [0, 0, 0, 0]])
    loss = method.server_loss(net, heads, counts, torch.Generator())
    assert 0 < loss.item() < 10


def test_diversity_loss_by_hand():
    noise = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]])
    features = torch.tensor([[[1.0], [4.0]]])
    # Half of the four pairs are apart by (4 + 0) / 2, their features by 3.
    torch.testing.assert_close(diversity_loss(noise, features), torch.tensor([math.exp(-3)]))


def test_labels_are_drawn_by_their_counts():
    counts = torch.tensor([[0, 2, 0, 1], [5, 0, 0, 0]])
    drawn = draw_labels(counts, torch.tensor([[0.0, 0.66, 0.67, 0.9999999]] * 2))
    assert drawn.tolist() == [[1, 1, 3, 3], [0, 0, 0, 0]]


def test_a_head_that_tells_no_width_is_refused(federate):
    population = federate(FedAvg).method.population
    assert feature_width(population) == WIDTH
    population.model = SplitModel(nn.Identity(), PerClient(nn.Linear(9, 2)))
    assert feature_width(population) == 9
    population.model = SplitModel(nn.Identity(), PerClient(nn.Conv1d(1, 1, 1)))
    with pytest.raises(InputError, match="a linear head"):
        feature_width(population)


def test_the_first_message_has_no_generator(federate):
    federation = federate(fedgen())
    ids = torch.arange(3)
    for round, known in ((0, False), (1, True)):
        sent = federation.method.broadcast(federation.state.server, Participants(ids, ids, round))
        assert ("generator.0.weight" in sent) == known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha is -1.0.* 0"),
        ({"decay": 1.5}, "decay is 1.5"),
        ({"server_steps": 0}, "server_steps is 0.*positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedGenOptions(**options)


def test_it_is_registered():
    assert METHODS["fedgen"] is FedGen
