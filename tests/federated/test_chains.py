"""Chains of layers for all clients at once against each client's own module."""

import pytest
import torch
from torch import nn

from stforecast.federated.core.layers import Chain, ClientLinear
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.kernels.compiler import library

CLIENTS = 3


class Doubled(nn.Module):
    """A layer for any shape, as the conversion of bytes."""

    any_shape = True

    def forward(self, x):
        return 2 * x


CHAINS = {
    "batch norm": lambda: nn.Sequential(
        Doubled(), nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 2), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5),
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 5), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(144, 6), nn.ReLU(), nn.Linear(6, 5, bias=False),
    ),
    "images out": lambda: nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3)),
}  # fmt: skip


def population_of(build):
    """A population in double precision, other weights and statistics for each client."""
    population = Population(lambda: SplitModel(PerClient(build()), ClientLinear(5, 2)))
    g = torch.Generator().manual_seed(1)
    params = {
        name: torch.randn(t.shape, generator=g, dtype=torch.float64).requires_grad_()
        for name, t in population.parameters(CLIENTS).items()
    }
    buffers = {
        name: t.double() + torch.rand(t.shape, generator=g) if t.is_floating_point() else t
        for name, t in population.buffers(CLIENTS).items()
    }
    return population, params, buffers


@pytest.mark.skipif(library() is None, reason="no C compiler here")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_a_loop_over_ordinary_modules(name, training):
    population, params, buffers = population_of(CHAINS[name])
    assert not population.loops(torch.device("cpu"))
    population.train(training)
    prefix, x = "encoder.module.", torch.randn(CLIENTS, 4, 3, 10, 10, dtype=torch.float64)
    alone = [CHAINS[name]().double().train(training) for _ in range(CLIENTS)]
    for i, module in enumerate(alone):
        state = {**params, **buffers}
        own = {n.removeprefix(prefix): t[i].detach() for n, t in state.items() if prefix in n}
        module.load_state_dict(own)
    features = population.encode({**params, **buffers}, x)
    features.square().sum().backward()
    for i, module in enumerate(alone):
        expected = module(x[i])
        expected.square().sum().backward()
        torch.testing.assert_close(features[i], expected)
        for own, p in module.named_parameters():
            torch.testing.assert_close(params[prefix + own].grad[i], p.grad)
        for own, t in module.named_buffers():
            torch.testing.assert_close(buffers[prefix + own][i], t)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(3, 16, 3, stride=2)],
        [nn.Conv2d(4, 16, 3, groups=2)],
        [nn.Conv2d(3, 16, (3, 1))],
        [nn.Conv2d(3, 16, 3, padding="same")],
        [nn.Conv2d(3, 16, 3, padding=1, padding_mode="circular")],
        [nn.Conv2d(3, 16, 3), nn.MaxPool2d(2)],
        [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(3)],
        [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, momentum=None)],
        [nn.Conv2d(3, 16, 3), nn.Linear(4, 4)],
        [nn.Conv2d(3, 16, 3), nn.Flatten(), nn.BatchNorm1d(16)],
        [nn.Conv2d(3, 16, 3), nn.Dropout()],
        [nn.Linear(3, 4)],
        [Doubled()],
        [],
    ],
)
def test_other_modules_run_client_by_client(layers):
    assert not Chain(nn.Sequential(*layers)).steps
    assert PerClient(nn.Sequential(*layers)).loops


def test_images_that_need_a_gradient_run_client_by_client():
    population, params, buffers = population_of(CHAINS["images out"])
    x = torch.randn(CLIENTS, 2, 3, 10, 10, dtype=torch.float64, requires_grad=True)
    population.encode({**params, **buffers}, x).sum().backward()
    assert x.grad.abs().min() > 0
