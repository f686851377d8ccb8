"""What a frozen backbone costs, and what computing its features once saves.

    python -m experiments.benchmarks.frozen --weights vit.safetensors --size 112

prints CPU milliseconds an image for a query, for one that is looked up, for prompts forward and
with gradients; then CPU seconds of one FedTA round of a client, as it is and with every feature
computed where it is used, as prompt methods' code does: the query in each step, and the second
stage behind the whole network. Both rounds must end with the same numbers. Images are noise.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import click
import tabulate
import torch
from torch import Tensor

from stforecast.federated.data import Batch, ClientData
from stforecast.federated.population import Population
from stforecast.federated.rounds import Federation
from stforecast.federated.state import Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.backbones import TINY, Backbone
from vision.backbones.backbone import Precision
from vision.backbones.cache import FeatureCache
from vision.methods.fedta import FedTA
from vision.models.vit import FrozenEncoder, FrozenViT, ViTOptions, backbone_of
from vision.task import Classification

N_CLASSES = 8


class Forgetful(FeatureCache):
    """A cache that keeps nothing."""

    def get(self, digests: Sequence[bytes]) -> list[Tensor | None]:
        """Nothing."""
        return [None] * len(digests)

    def add(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Forget."""


class RecomputingFedTA(FedTA):
    """FedTA that computes every feature in the step that needs it."""

    name = ""

    def train(
        self,
        cohort: Cohort,
        parts: tuple[str, ...],
        epochs: int | None,
        data: Batch,
        loss: Callable[[Cohort, Batch], Tensor],
    ) -> None:
        """With images in both stages."""
        size = int(cohort.data.sizes[0])
        images = {"x": cohort.data.tensors["x"][:, :size]}
        super().train(cohort, parts, epochs, {**data, **images}, loss)

    def enhancement_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """With a query of its own."""
        return super().enhancement_loss(cohort, {**batch, "query": self.backbone.query(batch["x"])})

    def anchor_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Behind the whole network."""
        with torch.no_grad():
            x = batch["x"]
            features = self.enhanced(cohort.params, x, self.backbone.query(x))
        return super().anchor_loss(cohort, {**batch, "feature": features}, payload)


def forgetful(backbone: Backbone) -> Backbone:
    """The same backbone without memory."""
    other = copy.copy(backbone)
    other._queries = other._prompted = Forgetful(backbone.width)
    return other


def federation(method: type[FedTA], model: ViTOptions, samples: int, epochs: int) -> Federation:
    """One client with noise for images."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (1, samples, 3, 32, 32), dtype=torch.uint8, generator=rng)
    y = torch.randint(N_CLASSES, (1, samples), generator=rng)
    population = Population(lambda: FrozenViT((3, 32, 32), N_CLASSES, model), seed=0)
    training = Training(rounds=1, epochs=epochs, batch_size=16, drop_last=False)
    if method is RecomputingFedTA:
        population.model.encoder = FrozenEncoder(forgetful(backbone_of(population, "this")))
    made = method(population, Classification(N_CLASSES), training)
    return Federation(made, ClientData({"x": x, "y": y}, torch.tensor([samples])), seed=0)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the whole process that some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def costs(backbone: Backbone, images: Tensor, length: int = 10) -> dict[str, float]:
    """CPU seconds an image of each way through the backbone."""
    prompts = torch.zeros(len(images), length, backbone.width, requires_grad=True)
    work = {
        "query": lambda: backbone.query(images),
        "query, looked up": lambda: backbone.query(images),
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
    """CPU seconds of a round in both ways, and the largest difference of what they end with."""
    seconds, ends = {}, []
    for name, method in (("once", FedTA), ("in every step", RecomputingFedTA)):
        run = federation(method, model, samples, epochs)
        seconds[name] = cpu_seconds(run.run_round)
        ends.append(run.state.flat())
    pairs = ((ends[0][name].double(), t.double()) for name, t in ends[1].items())
    return seconds, max(float((a - b).abs().max()) for a, b in pairs)


@click.command()
@click.option("--weights", help="A .safetensors file; without it, a tiny random network.")
@click.option("--size", default=112, show_default=True, help="Height and width of its input.")
@click.option("--precision", default="float32", type=click.Choice(["float32", "bfloat16"]))
@click.option("--samples", default=64, show_default=True, help="Images of the client.")
@click.option("--epochs", default=5, show_default=True, help="Epochs of each stage.")
def main(weights: str | None, size: int, precision: Precision, samples: int, epochs: int) -> None:
    """Measure a frozen backbone, and FedTA with and without remembered features."""
    model = ViTOptions(
        backbone=TINY, backbone_weights=weights, input_size=size, precision=precision
    )
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
