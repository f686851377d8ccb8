"""Clients trained one by one, and models and optimisers to compare with."""

import pytest
import torch
from torch import nn

from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import SplitModel


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
