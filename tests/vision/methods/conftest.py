"""A small federated classification task of images, and clients trained one by one to compare."""

from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn

from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.runs.unfinished_run import Checkpointer
from vision.backbones.load import TINY
from vision.models.vit import FrozenViT, ViTOptions
from vision.task import Classification

IMAGE = (1, 2, 3)
"""Channels, height and width."""

N_INPUTS, WIDTH = 6, 5


def random_images(sizes, n_classes, seed=0):
    """Noisy images of each client's own version of the classes, the same for all seeds.

    The first client lacks the last class, where there are more than two. Padding is NaN.
    """
    g = torch.Generator().manual_seed(seed)
    n, longest = len(sizes), max(sizes)
    y = torch.randint(n_classes, (n, longest), generator=g)
    y[0] %= max(2, n_classes - 1)
    fixed = torch.Generator().manual_seed(100)
    common = 2 * torch.randn(n_classes, *IMAGE, generator=fixed)
    own = common + 0.5 * torch.randn(n, n_classes, *IMAGE, generator=fixed)
    x = own[torch.arange(n)[:, None], y] + torch.randn(n, longest, *IMAGE, generator=g)
    real = torch.arange(longest) < torch.tensor(sizes)[:, None]
    x = torch.where(real[..., None, None, None], x, torch.nan)
    return ClientData({"x": x, "y": torch.where(real, y, 0)}, torch.tensor(sizes))


def server_images(n_classes, shots=2):
    """A balanced set on the server."""
    many = {name: t[1] for name, t in random_images([1, 99], n_classes, seed=7).tensors.items()}
    rows = torch.cat([(many["y"] == c).nonzero()[:shots, 0] for c in range(n_classes)])
    return {name: t[None, rows] for name, t in many.items()}


def stacked_model(n_classes):
    encoder = nn.Sequential(nn.Flatten(2), ClientLinear(N_INPUTS, WIDTH), nn.Tanh())
    return SplitModel(encoder, ClientLinear(WIDTH, n_classes))


def module_model(n_classes):
    # A bias before batch normalisation has a gradient of rounding errors, which Adam blows up.
    conv = nn.Conv2d(1, 2, (1, 2), bias=False)
    encoder = nn.Sequential(conv, nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten())
    return SplitModel(PerClient(encoder), ClientLinear(8, n_classes))


def frozen_model(n_classes):
    return FrozenViT(IMAGE, n_classes, ViTOptions(backbone=TINY, input_size=8))


BUILDS = {"stacked": stacked_model, "module": module_model, "frozen": frozen_model}


QUICK = {
    "creff": {"features": 4, "match_steps": 2, "retrain_steps": 3},
    "fedic": {"server_steps": 2},
}
"""Options of methods whose server does much, where a test gives none."""


def default_build(method):
    method = getattr(method, "func", method)  # With options of its own it is a partial.
    return "frozen" if method.defaults.get("model") == "vit" else "stacked"


@pytest.fixture
def builds():
    return BUILDS


@pytest.fixture
def n_classes():
    return 4


@pytest.fixture
def make_data(n_classes):
    return lambda sizes, seed=0: random_images(sizes, n_classes, seed)


@pytest.fixture
def federate(n_classes):
    """Makes a federation: `federate(FedRoD, sizes=[8, 8], build="module", lr=0.1)`."""

    def make(
        method,
        sizes=(8, 8, 8),
        *,
        build=None,
        seed=1,
        cohort_size=None,
        device=None,
        uplink=None,
        robust=None,
        **settings,
    ):
        settings = {"rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.02, **settings}
        population = Population(lambda: BUILDS[build or default_build(method)](n_classes), seed)
        task = Classification(n_classes, server_images(n_classes))
        options = QUICK.get(getattr(method, "name", ""), {})
        if options:
            method = partial(method, options=method.Options(**options))
        return Federation(
            method(population, task, Training(**settings)),
            random_images(sizes, n_classes),
            random_images(sizes, n_classes, seed=1),
            seed=seed,
            device=device or "cpu",
            cohort_size=cohort_size,
            uplink=uplink,
            robust=robust,
        )

    return make


def task_images(sizes, classes, seed):
    """Images of two classes, the brighter the higher the class."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    y = torch.tensor(classes)[torch.randint(2, shape, generator=g)]
    x = torch.rand(*shape, 3, 8, 8, generator=g) + 0.3 * y[..., None, None, None]
    return ClientData({"x": x, "y": y}, torch.tensor(sizes))


@pytest.fixture
def two_tasks():
    """Makes a federation on a frozen model, on tasks of classes 0 and 1, then 2 and 3.

    Each client has three samples of a class or more: two are equally far from their mean, and
    rounding would choose which of them represents the class.
    """

    def make(method, options=None, **settings):
        stages = [task_images((12, 8), [0, 1], 9), task_images((8, 8), [2, 3], 14)]
        model = lambda: FrozenViT((3, 8, 8), 4, ViTOptions(backbone=TINY, input_size=8))  # noqa: E731
        settings = {"rounds": 2, "epochs": 2, "batch_size": 4, "lr": 0.02, **settings}
        made = method(Population(model, 1), Classification(4), Training(**settings), options)
        return Federation(made, Stream(stages, "sequential"), seed=1)

    return make


@pytest.fixture
def resumes(tmp_path):
    """Whether a run that is stopped after three rounds and goes on ends as one that never was."""

    def check(make):
        whole = make()
        whole.run()
        for stop in (3, None):
            last = make()

            def after(report, stop=stop):
                if report.round == stop:
                    raise KeyboardInterrupt

            with (
                Checkpointer(tmp_path, {"settings": {}}, every=1) as checkpointer,
                suppress(KeyboardInterrupt),
            ):
                checkpointer.run(last, after)
        found, expected = last.state.flat(), whole.state.flat()
        return found.keys() == expected.keys() and all(
            torch.equal(t, expected[name]) for name, t in found.items()
        )

    return check
