"""A client in plain tensors and ordinary Python: the reference that methods are compared with."""

import pytest
import torch
from torch import nn

from stforecast.federated.layers import ClientLinear
from stforecast.federated.population import SplitModel


class Alone:
    """One client of a federation, with the model of the fixture `stacked` and the task's loss.

    Its `params` are leaf tensors without a client axis, under the population's names; each test
    brings its own optimiser.
    """

    def __init__(self, federation, client):
        initial = federation.method.population.initial()
        self.params = {name: t[0].clone().requires_grad_() for name, t in initial.items()}
        self.size = int(federation.train.sizes[client])
        self.data = {name: t[client, : self.size] for name, t in federation.train.tensors.items()}
        self.batch_size = federation.method.training.batch_size

    def part(self, prefix):
        return [p for name, p in self.params.items() if name.startswith(prefix)]

    def batches(self, epochs):
        for _ in range(epochs):
            for start in range(0, self.size - self.batch_size + 1, self.batch_size):
                yield {n: t[start : start + self.batch_size] for n, t in self.data.items()}

    def encode(self, batch):
        return torch.tanh(
            batch["x"] @ self.params["encoder.0.weight"] + self.params["encoder.0.bias"]
        )

    def loss(self, batch):
        y = self.encode(batch) @ self.params["head.weight"] + self.params["head.bias"]
        return (y - batch["y"])[batch["mask"]].square().mean()

    def receive(self, values):
        with torch.no_grad():
            for name, t in values.items():
                self.params[name].copy_(t)

    def values(self, prefix=""):
        return {n: p.detach().clone() for n, p in self.params.items() if n.startswith(prefix)}


@pytest.fixture
def alone():
    """Makes the clients of a federation anew: `alone(federation)[1].params`."""
    return lambda federation: [Alone(federation, i) for i in range(len(federation.train))]


@pytest.fixture
def mean_by_size():
    """Weighted mean of models by the clients' samples."""

    def mean(models, sizes):
        total = sum(sizes)
        return {
            name: sum(n / total * m[name] for n, m in zip(sizes, models, strict=True))
            for name in models[0]
        }

    return mean


@pytest.fixture
def optimizers():
    """Makes torch's own optimiser for a client's tensors, by the settings of a run."""

    def make(tensors, optimizer="adam", lr=0.05, momentum=0.0, weight_decay=0.0):
        if optimizer == "adam":
            return torch.optim.Adam(tensors, lr=lr, weight_decay=weight_decay)
        return torch.optim.SGD(tensors, lr=lr, momentum=momentum, weight_decay=weight_decay)

    return make


@pytest.fixture
def linear():
    """A head alone, of 3 inputs and 2 outputs."""
    return lambda: SplitModel(nn.Identity(), ClientLinear(3, 2))


@pytest.fixture
def quadratics(federate, linear):
    """Trains clients with `F_i = ½ ‖b - c_i‖²` a coordinate, of 1 and 4 steps a round.

    `quadratics(FedAvg, lr=0.05, rounds=150)` gives the federation and the `(2, 2)` centres c.
    """

    def make(method, **settings):
        settings = {"build": linear, "epochs": 1, "optimizer": "sgd", **settings}
        federation = federate(method, (4, 16), validated=False, **settings)
        data = federation.train.tensors
        centres = data["y"].new_tensor([[1.0, -2.0], [3.0, 5.0]])
        data["x"].zero_()
        data["mask"].fill_(True)
        data["y"].copy_(centres[:, None].expand_as(data["y"]))
        federation.run()
        return federation, centres

    return make
