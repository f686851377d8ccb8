"""Measure the cost of a frozen backbone and the time saved by caching its features.

    python -m experiments.benchmarks.frozen --weights vit.safetensors --size 112

Prints CPU milliseconds per image for a query, for a cached query, and for prompts without and with
gradients. Then prints CPU seconds of one FedTA round of a client, with cached features and with
features computed where they are used, as other code of prompt methods does: the query in each step,
and the whole network in each step of the second stage. Both rounds must end with the same numbers.
Images are noise.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import click
import tabulate
import torch
from torch import Tensor

from stforecast.federated.core.data import Batch, ClientData
from stforecast.federated.core.population import Params, Population
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.uploads.payload import Payload
from vision.backbones import TINY, Backbone
from vision.backbones.backbone import FeatureCache, Precision
from vision.methods.fedta import FedTA
from vision.models.vit import FrozenEncoder, FrozenViT, ViTOptions, backbone_of
from vision.task import Classification

N_CLASSES = 8


class NoCache(FeatureCache):
    """A cache that stores nothing."""

    def get(self, digests: Sequence[bytes]) -> list[Tensor | None]:
        """Return None for each image."""
        return [None] * len(digests)

    def add(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Discard the features."""


class RecomputingFedTA(FedTA):
    """FedTA that computes every feature in the step where it is used."""

    name = ""

    def enhancement_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Compute the query in the step."""
        batch = {**batch, "query": self.backbone.query(batch["x"])}
        return super().enhancement_loss(cohort, batch, payload)

    def train_anchors(self, cohort: Cohort, data: Batch, payload: Payload) -> None:
        """Train the second stage on images."""
        size = int(cohort.data.sizes[0])
        super().train_anchors(cohort, {**data, "x": cohort.data.tensors["x"][:, :size]}, payload)

    def anchor_loss(self, cohort: Cohort, batch: Batch, payload: Payload, before: Params) -> Tensor:
        """Compute the features with the whole network in the step."""
        with torch.no_grad():
            x, params = batch["x"], {**payload, **cohort.params}
            features = self.enhanced(params, x, self.backbone.query(x))
            features = self.scaled("feature.moments", features, payload)
        return super().anchor_loss(cohort, {**batch, "feature": features}, payload, before)


def without_cache(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone that caches no features."""
    other = copy.copy(backbone)
    other._queries = other._prompted = NoCache(backbone.width)
    return other


def federation(method: type[FedTA], model: ViTOptions, samples: int, epochs: int) -> Federation:
    """Return a federation of one client whose images are noise."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (1, samples, 3, 32, 32), dtype=torch.uint8, generator=rng)
    y = torch.randint(N_CLASSES, (1, samples), generator=rng)
    population = Population(lambda: FrozenViT((3, 32, 32), N_CLASSES, model), seed=0)
    training = Training(rounds=1, epochs=epochs, batch_size=16, drop_last=False)
    if method is RecomputingFedTA:
        population.model.encoder = FrozenEncoder(without_cache(backbone_of(population, "this")))
    made = method(population, Classification(N_CLASSES), training)
    return Federation(made, ClientData({"x": x, "y": y}, torch.tensor([samples])), seed=0)


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the process during a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def costs(backbone: Backbone, images: Tensor, length: int = 10) -> dict[str, float]:
    """Return CPU seconds per image of each use of the backbone."""
    prompts = torch.zeros(len(images), length, backbone.width, requires_grad=True)
    work = {
        "query": lambda: backbone.query(images),
        "query, cached": lambda: backbone.query(images),
        "under prompts": lambda: _without_gradients(backbone, images, prompts),
        "under prompts, with gradients": lambda: (
            backbone.prompted(images, prompts).sum().backward()
        ),
    }
    return {name: cpu_seconds(one) / len(images) for name, one in work.items()}


def _without_gradients(backbone: Backbone, images: Tensor, prompts: Tensor) -> None:
    with torch.no_grad():
        backbone.prompted(images, prompts)


def compare(model: ViTOptions, samples: int, epochs: int) -> tuple[dict[str, float], float]:
    """Return CPU seconds of a round with and without caching, and the largest difference."""
    seconds, ends = {}, []
    for name, method in (("once", FedTA), ("in every step", RecomputingFedTA)):
        run = federation(method, model, samples, epochs)
        seconds[name] = cpu_seconds(run.run_round)
        ends.append(run.state.flat())
    pairs = ((ends[0][name].double(), t.double()) for name, t in ends[1].items())
    return seconds, max(float((a - b).abs().max()) for a, b in pairs)


@click.command()
@click.option("--weights", help="A .safetensors file; without it, a tiny random network.")
@click.option("--size", default=112, show_default=True, help="Height and width of the input.")
@click.option("--precision", default="float32", type=click.Choice(["float32", "bfloat16"]))
@click.option("--samples", default=64, show_default=True, help="Images of the client.")
@click.option("--epochs", default=5, show_default=True, help="Epochs of each stage.")
def main(weights: str | None, size: int, precision: Precision, samples: int, epochs: int) -> None:
    """Measure a frozen backbone, and FedTA with and without cached features."""
    model = ViTOptions(backbone=weights or TINY, input_size=size, precision=precision)
    population = Population(lambda: FrozenViT((3, 32, 32), N_CLASSES, model), seed=0)
    images = torch.randint(256, (32, 3, 32, 32), dtype=torch.uint8)
    rows = [[n, 1e3 * s] for n, s in costs(backbone_of(population, "this"), images).items()]
    click.echo(tabulate.tabulate(rows, ["an image", "CPU ms"], floatfmt=".2f"))
    seconds, difference = compare(model, samples, epochs)
    rows = [[n, s] for n, s in seconds.items()]
    click.echo(tabulate.tabulate(rows, ["a round, features computed", "CPU s"], floatfmt=".1f"))
    click.echo(f"largest difference of the results: {difference:.1e}")


if __name__ == "__main__":
    main()
