"""A small federated regression task, with models of stacked layers and of ordinary modules."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation

N_INPUTS, N_OUTPUTS, N_KEYS = 3, 2, 4


@dataclass(frozen=True)
class Regression:
    """Squared error where `mask` is True; sample s has key s mod `n_keys`.

    For methods of forecasts, the inputs are the newest readings of a window.
    """

    n_keys: int = N_KEYS
    n_outputs: int = N_OUTPUTS
    window: WindowSpec = WindowSpec(closeness=N_INPUTS, periods=0, horizon=N_OUTPUTS)  # noqa: RUF009

    def loss(self, prediction, batch):
        total, count = self.score(prediction, batch)
        return total.sum(1) / count.sum(1).clamp(min=1)

    def keys(self, batch):
        return batch["slot"]

    def residual(self, prediction, batch):
        return torch.where(batch["mask"], batch["y"] - prediction, 0.0), batch["mask"]

    def score(self, prediction, batch):
        error = torch.where(batch["mask"], prediction - batch["y"], 0.0)
        return error.square().sum(-1), batch["mask"].sum(-1)


def random_data(sizes, seed=0):
    """Noisy samples of each client's own linear map, the same for all seeds; padding is NaN."""
    g = torch.Generator().manual_seed(seed)
    n, longest = len(sizes), max(sizes)
    steps = torch.randn(n, longest + 1, N_INPUTS, generator=g)
    x, x_next = steps[:, :-1], steps[:, 1:]
    maps = torch.randn(n, N_INPUTS, N_OUTPUTS, generator=torch.Generator().manual_seed(100))
    y = x @ maps + 0.1 * torch.randn(n, longest, N_OUTPUTS, generator=g)
    real = torch.arange(longest) < torch.tensor(sizes)[:, None]
    mask = real[..., None] & (torch.rand(y.shape, generator=g) < 0.9)
    x, x_next, y = (torch.where(real[..., None], t, torch.nan) for t in (x, x_next, y))
    sample = torch.arange(longest).expand(n, -1)
    tensors = {"x": x, "x_next": x_next, "y": y, "mask": mask}
    tensors |= {"slot": sample % N_KEYS, "sample": sample}
    return ClientData(tensors, torch.tensor(sizes))


def stacked_model():
    encoder = nn.Sequential(ClientLinear(N_INPUTS, 5), nn.Tanh())
    return SplitModel(encoder, ClientLinear(5, N_OUTPUTS))


def module_model():
    # A bias before batch normalisation has a gradient of rounding errors, which Adam blows up.
    conv = nn.Conv1d(1, 2, 3, padding=1, bias=False)
    encoder = nn.Sequential(
        nn.Unflatten(1, (1, -1)), conv, nn.BatchNorm1d(2), nn.Tanh(), nn.Flatten()
    )
    return SplitModel(PerClient(encoder), PerClient(nn.Linear(2 * N_INPUTS, N_OUTPUTS)))


@pytest.fixture
def task():
    return Regression()


@pytest.fixture
def make_data():
    return random_data


@pytest.fixture
def stacked():
    return stacked_model


@pytest.fixture
def module():
    return module_model


@pytest.fixture
def federate(task):
    """Makes a federation: `federate(FedAvg, sizes=[8, 8], lr=0.1, cohort_size=1)`.

    Some settings are the federation's own, others those of training.
    """
    own = ("cohort_size", "uplink", "robust", "memory", "make_trainer")

    def make(method, sizes=(8, 8, 8), *, build=stacked_model, seed=1, validated=True, **settings):
        options = {name: settings.pop(name) for name in own if name in settings}
        settings = {"rounds": 3, "epochs": 2, "batch_size": N_KEYS, "lr": 0.02, **settings}
        return Federation(
            method(Population(build, seed), task, Training(**settings)),
            random_data(sizes),
            random_data(sizes, seed=1) if validated else None,
            seed=seed,
            **options,
        )

    return make
