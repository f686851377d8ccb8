"""Clients of two architectures, against a plain loop over ordinary modules of torch.

The order of a round is HtFLlib's (Apache 2.0; facts only): clients take turns at the architectures,
receive the global prototypes, train by the task's loss and λ times the squared error to them, and
send the mean features of each key. It averages the clients' means (FedProto), or trains the
server's vectors on them (FedTGP).
"""

import pytest
import torch
from reference_tgp import reference_server
from torch import nn

from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.mixed_models import MixedModel
from stforecast.federated.core.population import SplitModel
from stforecast.federated.core.state import KIND
from stforecast.federated.methods.fedproto import FedProto, FedProtoOptions
from stforecast.federated.methods.fedtgp import FedTGP, FedTGPOptions

SIZES, LAM, LR = (8, 13, 8, 5), 2.0, 0.05
KINDS = torch.tensor([0, 1, 0, 1])
N_INPUTS, WIDTH, N_OUTPUTS, N_KEYS = 3, 5, 2, 4


def build(kind):
    """A narrow encoder, or a deeper one whose features are wider and are mapped."""
    if kind == "narrow":
        encoder = nn.Sequential(ClientLinear(N_INPUTS, WIDTH), nn.Tanh())
        return SplitModel(encoder, ClientLinear(WIDTH, N_OUTPUTS))
    layers = ClientLinear(N_INPUTS, 7), nn.ReLU(), ClientLinear(7, 6), nn.Tanh()
    return SplitModel(nn.Sequential(*layers), ClientLinear(6, N_OUTPUTS))


def mixed_model():
    return MixedModel(["narrow", "deep"], build, WIDTH, N_OUTPUTS)


def of_two(method, options):
    """Builds the method for a population whose clients have these kinds."""

    def make(population, task, training):
        population.own = {KIND: KINDS}
        return method(population, task, training, options)

    return make


class Client:
    """A client as one would write it without a federation: two modules and an optimiser."""

    def __init__(self, federation, i):
        initial, p = federation.method.population.initial(), f"encoder.encoders.{KINDS[i]}."
        if KINDS[i] == 0:
            self.names = [f"{p}0"]
            self.encoder = nn.Sequential(nn.Linear(N_INPUTS, WIDTH), nn.Tanh())
        else:
            self.names = [f"{p}0.0", f"{p}0.2", f"{p}1"]
            layers = nn.Linear(N_INPUTS, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh()
            self.encoder = nn.Sequential(*layers, nn.Linear(6, WIDTH))
        self.head, self.names = nn.Linear(WIDTH, N_OUTPUTS), [*self.names, "head"]
        self.linear = [m for m in [*self.encoder, self.head] if isinstance(m, nn.Linear)]
        for name, layer in zip(self.names, self.linear, strict=True):
            layer.weight.data = initial[f"{name}.weight"][0].T.clone()
            layer.bias.data = initial[f"{name}.bias"][0].clone()
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9)
        size = int(federation.train.sizes[i])
        self.data = {n: t[i, :size] for n, t in federation.train.tensors.items()}
        self.starts = range(0, size - N_KEYS + 1, N_KEYS)

    def train(self, prototypes):
        """Two epochs; the mean feature of each key in the last."""
        for _ in range(2):
            seen = {}
            for start in self.starts:
                batch = {n: t[start : start + N_KEYS] for n, t in self.data.items()}
                features = self.encoder(batch["x"])
                error = (self.head(features) - batch["y"])[batch["mask"]]
                keys = batch["slot"].tolist()
                pulls = [
                    (f - prototypes[k]).square().mean() if k in prototypes else torch.zeros(())
                    for f, k in zip(features, keys, strict=True)
                ]
                self.optimizer.zero_grad()
                (error.square().mean() + LAM * torch.stack(pulls).mean()).backward()
                self.optimizer.step()
                for f, k in zip(features.detach(), keys, strict=True):
                    seen.setdefault(k, []).append(f)
        return {k: torch.stack(fs).mean(0) for k, fs in seen.items()}


def averaged(state, sent):
    """FedProto's server: the plain mean over the clients that have the key."""
    keys = {k for own in sent for k in own}
    return {k: torch.stack([own[k] for own in sent if k in own]).mean(0) for k in keys}


def learnt(state, sent):
    """FedTGP's server, prototype by prototype, from its `state` before the round."""
    held = torch.tensor([[k in own for k in range(N_KEYS)] for own in sent])
    rows = [[own.get(k, torch.zeros(WIDTH)) for k in range(N_KEYS)] for own in sent]
    prototypes = torch.stack([torch.stack(row) for row in rows])
    made = reference_server(state, prototypes, held, 100.0, 7, 0.2)
    return {k: made[k] for k in range(N_KEYS) if held[:, k].any()}


@pytest.mark.parametrize(
    ("method", "options", "server"),
    [
        (FedProto, FedProtoOptions(lam=LAM, average="clients"), averaged),
        (FedTGP, FedTGPOptions(lam=LAM, server_epochs=7, server_lr=0.2), learnt),
    ],
)
def test_rounds_are_those_of_a_plain_loop(double, federate, method, options, server):
    settings = {"optimizer": "sgd", "momentum": 0.9, "lr": LR}
    federation = federate(of_two(method, options), SIZES, build=mixed_model, **settings)
    federation.train.tensors["slot"][1] = federation.train.tensors["slot"][1] % 2
    clients, prototypes = [Client(federation, i) for i in range(4)], {}
    for _ in range(3):
        state = {name: t.clone() for name, t in federation.state.server.items()}
        sent = [client.train(prototypes) for client in clients]
        prototypes = server(state, sent)
        federation.run_round()
        for k, expected in prototypes.items():
            torch.testing.assert_close(federation.state.server["prototypes"][k], expected, **double)
        own = federation.state.clients.params
        for i, client in enumerate(clients):
            for name, layer in zip(client.names, client.linear, strict=True):
                found = own[f"{name}.weight"][i], own[f"{name}.bias"][i]
                expected = layer.weight.detach().T, layer.bias.detach()
                torch.testing.assert_close(found, expected, **double)
