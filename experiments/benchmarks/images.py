"""Measure rounds of image models against a plain loop over clients.

    python -m experiments.benchmarks.images --model cnn,cnn50 --out FOLDER

The loop has an `nn.Module` and an optimiser of `torch.optim` for each client, and averages them on
the server. Models: FedAvg's CNN on images of MNIST's shape in batches of 10 and of 50, ResNet-18 on
CIFAR's, and a ViT-Ti/16 with FedL2P's prompts at 112 pixels, in batches of 16. In the loop, a step
with prompts also computes the query, as other code does. Images and weights are random.

Each path runs on one thread and on all, in a process of its own; paths take turns, one round each.
The table has the smallest seconds, since other work on the machine only adds to them; the ratio is
that of each side's better number of threads. The losses show that both compute the same.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import tabulate
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.benchmarks.measure import Round, RunnerProcess
from experiments.benchmarks.results import processor, save
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
from vision.models.resnet import ResNet18Options
from vision.models.vit import FrozenViT, ViTOptions, backbone_of
from vision.task import Classification

N_CLASSES, LR, WARM_UP = 10, 0.005, 1

VIT = Geometry(patch=16, width=192, depth=12, heads=3, hidden=768, grid=7)
"""ViT-Ti/16 of Touvron et al., ICML 2021, for 112 pixels."""

PROMPTS = FedL2POptions(pool_size=10, prompt_length=5, top_n=5)


@dataclass(frozen=True)
class Problem:
    """A model and its batches.

    Attributes:
        title: name in the table.
        model: name of the model.
        shape: shape of an image.
        batch: images of a batch.
        batches: batches of a round of a client.
    """

    title: str
    model: str
    shape: tuple[int, int, int]
    batch: int
    batches: int


PROBLEMS = {
    "cnn": Problem("CNN, batches of 10", "cnn", (1, 28, 28), 10, 10),
    "cnn50": Problem("CNN, batches of 50", "cnn", (1, 28, 28), 50, 4),
    "resnet18": Problem("ResNet-18, batches of 10", "resnet18", (3, 32, 32), 10, 1),
    "vit": Problem("ViT with prompts, batches of 16", "vit", (3, 32, 32), 16, 2),
}


def make_federation(problem: Problem, n_clients: int, workers: int = 1) -> Federation:
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
        build = lambda: MODELS[problem.model](problem.shape, N_CLASSES, _options(problem))  # noqa: E731
        method = FedAvg(Population(build, seed=0), task, training)
    return Federation(method, data, seed=0, workers=workers)


def _options(problem: Problem) -> CNNOptions | ResNet18Options:
    return CNNOptions(padding="none") if problem.model == "cnn" else ResNet18Options()


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
    """Rounds of FedAvg, one client after another.

    Args:
        federation: source of data, initial parameters and settings; not modified.
    """

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


def make_runner(problem: Problem, n_clients: int, loop: bool, threads: int) -> Callable[[], Round]:
    """Return a function that runs and measures one round."""
    torch.set_num_threads(threads)
    federation = make_federation(problem, n_clients, 1 if loop else threads)
    if loop:
        run_round = ModuleLoop(federation).run_round
    else:
        run_round = lambda: federation.run_round().train_loss  # noqa: E731

    def timed_round() -> Round:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = run_round()
        return Round(loss, time.perf_counter() - wall, time.process_time() - cpu, 0.0, 0.0)

    return timed_round


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        model: title of the problem.
        path: who computes it.
        threads: number of threads.
        step_ms: smallest milliseconds of a step of one client.
        cpu_ms: smallest CPU milliseconds of a step, over all threads.
        speedup: speedup over the loop at its better number of threads.
        cpu_ratio: CPU time of the loop on one thread, divided by this path's.
        difference: largest relative difference of a round's loss from the loop's.
    """

    model: str
    path: str
    threads: int
    step_ms: float
    cpu_ms: float
    speedup: float
    cpu_ratio: float
    difference: float


def compare(problem: Problem, n_clients: int, threads: int, repetitions: int) -> list[Row]:
    """Time both paths with one thread and with all, in turns."""
    several = sorted({1, threads})
    paths = [(loop, n) for loop in (True, False) for n in several]
    running = [RunnerProcess(make_runner, problem, n_clients, *path) for path in paths]
    turns = [[r.round() for r in running] for _ in range(WARM_UP + repetitions)]
    for r in running:
        r.close()
    found = list(zip(*turns, strict=True))
    steps = n_clients * problem.batches
    wall, cpu = (
        [1e3 * min(getattr(r, name) for r in rounds[WARM_UP:]) / steps for rounds in found]
        for name in ("seconds", "cpu_seconds")
    )
    best = min(wall[: len(several)])
    return [
        Row(
            model=problem.title,
            path="loop over clients" if loop else "ours",
            threads=n,
            step_ms=wall[i],
            cpu_ms=cpu[i],
            speedup=best / wall[i],
            cpu_ratio=cpu[0] / cpu[i],
            difference=max(
                abs(a.loss / b.loss - 1) for a, b in zip(found[i], found[0], strict=True)
            ),
        )
        for i, (loop, n) in enumerate(paths)
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a text table."""
    headers = [
        "model", "path", "threads", "ms/step", "CPU ms", "× loop", "× loop, CPU", "loss differs",
    ]  # fmt: skip
    values = [list(vars(row).values()) for row in rows]
    formats = ("", "", "d", ".3g", ".3g", ".2f", ".2f", ".0e")
    return tabulate.tabulate(values, headers, floatfmt=formats)


@click.command()
@click.option("--model", default=",".join(PROBLEMS), show_default=True, help="Models to measure.")
@click.option("--clients", default=20, show_default=True, help="Number of clients.")
@click.option("--repetitions", default=3, show_default=True, help="Timed rounds of each path.")
@click.option("--threads", default=os.cpu_count(), show_default=True, help="Maximum threads.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of results.")
def main(model: str, clients: int, repetitions: int, threads: int, out: Path | None) -> None:
    """Compare rounds of image models with a loop over clients."""
    names = model.split(",")
    if unknown := set(names) - set(PROBLEMS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; choose {', '.join(PROBLEMS)}")
    click.echo(processor())
    rows: list[Row] = []
    for name in names:
        of_model = compare(PROBLEMS[name], clients, threads, repetitions)
        click.echo(table(of_model) + "\n")
        rows += of_model
        if out:
            results = {"clients": clients, "rows": [asdict(row) for row in rows]}
            save(results, out / "images.json")


if __name__ == "__main__":
    main()
