"""Compare rounds of image models with a loop over clients.

The loop has an `nn.Module` and an optimiser of `torch.optim` for each client, and averages them on
the server. Images and weights are random.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from experiments.benchmarks import frame
from experiments.benchmarks.frame import CORES
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from vision.backbones.vit import Geometry, ViT
from vision.methods.fedl2p import FedL2P, FedL2POptions
from vision.methods.prompts import chosen_prompts, key_distance, prompt_tokens
from vision.models import MODELS
from vision.models.convnet import CNNOptions
from vision.models.vit import FrozenViT, ViTOptions, backbone_of
from vision.task import Classification

N_CLASSES, LR, WARM_UP = 10, 0.005, 1

VIT = Geometry(patch=16, width=192, depth=12, heads=3, hidden=768, grid=7)
"""ViT-Ti/16 of Touvron et al., ICML 2021, for 112 pixels."""

PROMPTS = FedL2POptions(pool_size=10, prompt_length=5, top_n=5)


@dataclass(frozen=True)
class ImageProblem:
    """A model, the shape of its images, images of a batch and batches of a client's round."""

    title: str
    model: str
    shape: tuple[int, int, int]
    batch: int
    batches: int


PROBLEMS = {
    "cnn": ImageProblem("CNN, batches of 10", "cnn", (1, 28, 28), 10, 10),
    "cnn50": ImageProblem("CNN, batches of 50", "cnn", (1, 28, 28), 50, 4),
    "resnet18": ImageProblem("ResNet-18, batches of 10", "resnet18", (3, 32, 32), 10, 1),
    "vit": ImageProblem("ViT with prompts, batches of 16", "vit", (3, 32, 32), 16, 2),
}

COLUMNS = {
    "model": ("model", ""),
    "path": ("path", ""),
    "threads": ("threads", "d"),
    "step_ms": ("ms/step", ".3g"),
    "cpu_ms": ("CPU ms", ".3g"),
    "speedup": ("× loop", ".2f"),
    "by_turn": ("× loop, turn by turn", ""),
    "cpu_ratio": ("× loop, CPU", ".2f"),
    "difference": ("loss differs", ".0e"),
}
"""Milliseconds are the smallest of a step of one client, since other work only adds to them.

`speedup` is over the loop at its better number of threads, `by_turn` over the loop at as many
threads, and `cpu_ratio` the loop's CPU time on one thread by this path's.
"""


@frame.benchmark()
def images(
    results: frame.Results,
    *,
    model: str = "cnn,cnn50,resnet18,vit",
    clients: int = 20,
    repetitions: int = 3,
    threads: int = CORES,
) -> str:
    """Compare rounds of image models with a loop over clients.

    Models: FedAvg's CNN on images of MNIST's shape in batches of 10 and of 50, ResNet-18 on
    CIFAR's, and a ViT-Ti/16 with FedL2P's prompts at 112 pixels, in batches of 16. In the loop, a
    step with prompts also computes the query, as other code does. Each path runs on one thread and
    on all, in a process of its own. The losses show that both compute the same.

    Args:
        results: gets a row for each path.
        model: models to measure.
        clients: number of clients.
        repetitions: timed rounds of each path.
        threads: maximum threads.
    """
    names = model.split(",")
    if unknown := set(names) - set(PROBLEMS):
        raise InputError(f"{', '.join(sorted(unknown))}: choose from {', '.join(PROBLEMS)}")
    for name in names:
        results.add(*time_in_turns(PROBLEMS[name], clients, threads, repetitions))
        click.echo(f"measured: {name}", err=True)
    return frame.table(results.rows, COLUMNS)


def federation_of_images(problem: ImageProblem, n_clients: int, workers: int = 1) -> Federation:
    """Return a federation before its first round, the same in each process."""
    g = torch.Generator().manual_seed(0)
    samples = problem.batch * problem.batches
    x = torch.randint(256, (n_clients, samples, *problem.shape), generator=g, dtype=torch.uint8)
    y = torch.randint(N_CLASSES, (n_clients, samples), generator=g)
    data = ClientData({"x": x, "y": y}, torch.full((n_clients,), samples))
    training = Training(rounds=10**6, batch_size=problem.batch, lr=LR, optimizer="sgd")
    task = Classification(N_CLASSES)
    if problem.model == "vit":
        method: FedAvg = FedL2P(Population(_prompted_vit, seed=0), task, training, PROMPTS)
    else:
        kind = MODELS[problem.model]
        options = CNNOptions(padding="none") if problem.model == "cnn" else kind.Options()
        build = partial(kind, problem.shape, N_CLASSES, options)
        method = FedAvg(Population(build, seed=0), task, training)
    return Federation(method, data, seed=0, workers=workers)


def _prompted_vit() -> FrozenViT:
    with tempfile.TemporaryDirectory() as folder:
        weights = f"{folder}/vit.safetensors"
        save_file(ViT(VIT).state_dict(), weights)
        options = ViTOptions(backbone=weights, input_size=112)
        return FrozenViT((3, 32, 32), N_CLASSES, options)


class Classifier(nn.Module):
    """One client's model: a network and a linear head."""

    def __init__(self, federation: Federation) -> None:
        super().__init__()
        encoder: Any = federation.method.population.model.encoder
        self.encoder: nn.Module = copy.deepcopy(encoder.module).requires_grad_(True)
        self.head = _head(federation.state.clients.params)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        return F.cross_entropy(self.head(self.encoder(x)), y)


class Prompted(nn.Module):
    """One client's prompts and head for a frozen transformer that all clients share."""

    def __init__(self, federation: Federation) -> None:
        super().__init__()
        params = federation.state.clients.params
        self.backbone = backbone_of(federation.method.population, "this")
        self.pool = nn.Parameter(params["prompt.pool"][0].clone())
        self.keys = nn.Parameter(params["prompt.keys"][0].clone())
        self.head = _head(params)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy under the prompts that a batch selects, and their pull."""
        query = self.backbone.prompted(x)[None]  # unlike `query`, without a cache
        chosen = chosen_prompts(query, self.keys[None], PROMPTS.top_n, vote=True)
        tokens = prompt_tokens(self.pool[None], chosen)[0]
        features = self.backbone.prompted(x, tokens, read="prompts")
        pull = key_distance(query, self.keys[None], chosen)[0]
        return F.cross_entropy(self.head(features), y) + PROMPTS.pull * pull


def _head(params: dict[str, Tensor]) -> nn.Linear:
    weight, bias = params["head.weight"][0], params["head.bias"][0]
    head = nn.Linear(*weight.shape)
    with torch.no_grad():
        head.weight.copy_(weight.mT)
        head.bias.copy_(bias)
    return head


class ModuleLoop:
    """Rounds of FedAvg, one client after another."""

    def __init__(self, federation: Federation) -> None:
        make = Prompted if isinstance(federation.method, FedL2P) else Classifier
        self.batch, self.data = federation.method.training.batch_size, federation.train.tensors
        self.clients = [make(federation) for _ in range(len(federation.train))]
        self.optimizers = [torch.optim.SGD(c.parameters(), lr=LR) for c in self.clients]

    def run_round(self) -> float:
        """Train every client, average the models and return the mean training loss."""
        losses = []
        for i, (client, optimizer) in enumerate(zip(self.clients, self.optimizers, strict=True)):
            pairs = zip(*(self.data[name][i].split(self.batch) for name in "xy"), strict=True)
            for x, y in pairs:
                loss = client.loss(x, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        with torch.no_grad():
            for tensors in zip(*(c.state_dict().values() for c in self.clients), strict=True):
                mean = torch.stack(tensors).double().mean(0)
                for t in tensors:
                    t.copy_(mean)
        return sum(losses) / len(losses)


def runner_of_images(
    problem: ImageProblem, n_clients: int, loop: bool, threads: int
) -> Callable[[], frame.Timed]:
    """Return a function that runs and measures one round, whose loss is the value."""
    torch.set_num_threads(threads)
    federation = federation_of_images(problem, n_clients, 1 if loop else threads)
    if loop:
        return partial(frame.timed, ModuleLoop(federation).run_round)
    return partial(frame.timed, lambda: federation.run_round().train_loss)


def time_in_turns(
    problem: ImageProblem, n_clients: int, threads: int, repetitions: int
) -> list[dict[str, Any]]:
    """Time both paths with one thread and with all, in turns."""
    several = sorted({1, threads})
    paths = [(loop, n) for loop in (True, False) for n in several]
    sides = {path: (problem, n_clients, *path) for path in paths}
    turns = frame.processes_in_turns(runner_of_images, sides, WARM_UP + repetitions)
    steps = n_clients * problem.batches
    wall, cpu = (
        {path: [1e3 * t[i] / steps for t in of[WARM_UP:]] for path, of in turns.items()}
        for i in (1, 2)
    )
    losses = {path: [t.value for t in of] for path, of in turns.items()}
    best = min(min(wall[True, n]) for n in several)
    return [
        {
            "model": problem.title,
            "path": "loop over clients" if loop else "ours",
            "threads": n,
            "step_ms": min(wall[loop, n]),
            "cpu_ms": min(cpu[loop, n]),
            "speedup": best / min(wall[loop, n]),
            "by_turn": str(frame.ratio(wall[True, n], wall[loop, n])),
            "cpu_ratio": min(cpu[True, 1]) / min(cpu[loop, n]),
            "difference": frame.largest_difference(losses[loop, n], losses[True, 1]),
        }
        for loop, n in paths
    ]
