"""FRAug: a shared generator of embeddings, adapted to the domain of each client.

Chen, Frikha, Krompass, Gu, Tresp: FRAug: Tackling Federated Learning with Non-IID Features via
Representation Augmentation, ICCV 2023, arXiv 2205.14900, section 3.

Model and generator are averaged; batch normalisation of the model stays on the clients, and so does
a representation transformation network (RTNet). From noise and a label, generator and RTNet compute
a residual in the style of the client. Its sum with the embedding of a real sample, or with the
client's mean embedding of a class, is a synthetic embedding. The head is trained on real and
synthetic embeddings. Each batch trains in two steps:

1. the model, on `(1 - λ) L_real + λ L_syn`; synthetic embeddings have no gradient, so L_syn reaches
   the head only;
2. generator and RTNet, with that model fixed: the head should recognise the generator's embeddings,
   which should differ from the client's (cross-entropy minus MMD), so that they are independent of
   clients; the synthetic embeddings should be similar to the client's and hard to classify (MMD
   minus entropy).

λ grows over the rounds as `exp(γ (r - R))`, up to `lam_syn`.

Choices where the paper gives no details or the released code differs:

- The code steps the generator before it computes the embeddings for the RTNet.
- A client draws labels from the classes that it has had, for which it has a mean: the paper has all
  classes on all clients, and the code starts means at 0. A mean starts from its first batch.
- Noise is normal, as in the paper; the code's is uniform.
- The code trains generator and RTNet by SGD with separate learning rates (0.05); here all parts are
  trained by the run's optimiser.
- The code chooses the distances by data set, and on some sets interpolates between real and
  synthetic embeddings; this uses MMD throughout and no interpolation.

Running statistics of the model and of the RTNet stay on the client, as in FedBN; the generator's
are averaged. The reported loss is the mean over both steps, the task loss is that of
real samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.prototypes import PrototypeMeans, by_key
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload, mmd
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedbn import KEPT
from vision.methods.generator import NormedLinear, condition, draw_labels, normal
from vision.task import entropy


@dataclass(frozen=True)
class FRAugOptions(CheckedOptions):
    """Settings of FRAug.

    Attributes:
        lam_syn: largest weight λ of the loss on synthetic embeddings (released code: 0.5); with 0
            the model is trained as in FedBN.
        gamma: growth rate of λ; 0 keeps it constant (released code: 0.01; Digits 0.002).
        lam_generator: weight of the generator's distance to the client's embeddings (released code:
            Digits 1, PACS 10).
        lam_transform: weight of the RTNet's distance to the client's embeddings (released code: 1).
        noise_width: size of the noise and of the RTNet's hidden layer; by default half of the
            embedding's (released code).
    """

    lam_syn: Share = 0.5
    gamma: NonNegativeFloat = 0.01
    lam_generator: NonNegativeFloat = 1.0
    lam_transform: NonNegativeFloat = 1.0
    noise_width: PositiveInt | None = None


class FRAug(FedAvg):
    """FRAug. Clients train `generator.…`, which is averaged, and `transform.…`, which is not."""

    name = "fraug"
    summary = "FedBN with synthetic embeddings from a shared generator, adapted to each client"
    paper = "Chen et al., ICCV 2023"
    views = ("personal",)
    Options = FRAugOptions
    options: FRAugOptions

    def set_up(self) -> None:
        """Build generator and transformation."""
        modules = self.population.model.named_modules()
        self._kept = tuple(f"{name}." for name, m in modules if isinstance(m, KEPT["batch"]))
        d, n = feature_width(self.population), self.task.n_keys
        self.noise = noise = self.options.noise_width or max(1, d // 2)
        self.generator = Network(
            "generator.",
            partial(NormedLinear, noise + n, d),
            nn.ReLU,
            partial(NormedLinear, d, d),
            nn.ReLU,
        )
        self.transform = Network(
            "transform.",
            partial(NormedLinear, d + n, noise),
            nn.ReLU,
            partial(NormedLinear, noise, d),
        )

    def shares(self, name: str) -> bool:
        """Return whether a tensor is averaged: all but batch normalisation's."""
        return not name.startswith(self._kept)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give each client generator, RTNet and empty mean embeddings of its classes."""
        if self.training.batch_size < 2:
            raise InputError(
                "fraug normalises over a batch: batch_size is 1; ",
                Words("set {batch_size} or more", batch_size=2),
            )
        n, device = len(clients), clients.device
        server = super().init(clients, sizes, seed)
        for network in (self.generator, self.transform):
            parameters, buffers = network.initial(n, seed, device)
            clients.params |= parameters
            clients.buffers |= buffers
        shape = (n, self.task.n_keys, feature_width(self.population))
        clients.memory["class_means"] = torch.zeros(shape, device=device)
        clients.memory["class_met"] = torch.zeros(shape[:2], dtype=torch.bool, device=device)
        shared = {**clients.params, **clients.buffers}
        return {**server, **{name: shared[name][0].clone() for name in self._generator_names}}

    @property
    def _generator_names(self) -> list[str]:
        return [*self.generator.parameters, *self.generator.buffers]

    def upload(self, cohort: Cohort) -> Payload:
        """Return the model without its batch normalisation, and the generator."""
        own = {name: cohort.state[name].detach() for name in self._generator_names}
        return {**super().upload(cohort), **own}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the model, then generator and RTNet, one step each per batch."""
        self.receive(cohort, payload)
        networks = (self.generator.prefix, self.transform.prefix)
        for batch in cohort.batches():
            with cohort.training_only("encoder.", "head."):
                cohort.step(self.local_loss(cohort, batch, payload))
            with cohort.training_only(*networks):
                cohort.step(self.networks_loss(cohort, batch))
        return self.upload(cohort)

    def share(self, round: int) -> float:
        """Return λ of a round, counted from 0."""
        o = self.options
        return min(o.lam_syn, exp(o.gamma * (round - self.training.rounds)))

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `(1 - λ) L_real + λ L_syn`, with L_syn averaged over both synthetic embeddings."""
        embeddings = self.population.encode(cohort.state, batch["x"])
        self.note(cohort, embeddings, batch)
        real = self.task_loss(cohort, embeddings, batch)
        share = self.share(cohort.round)
        if not share:
            return real
        with torch.no_grad():
            made = self.synthetic(cohort, embeddings.detach(), batch, training=False)
        losses = [
            self.task.loss(self.population.decode(cohort.state, z), {**batch, "y": labels})
            for z, _, labels in made
        ]
        return (1 - share) * real + share * torch.stack(losses).mean(0)

    def note(self, cohort: Cohort, embeddings: Tensor, batch: Batch) -> None:
        """Update the moving average of the embeddings of each class."""
        seen = PrototypeMeans(self.task.n_keys)
        seen.add(embeddings, self.task.keys(batch))
        means, met = cohort.memory["class_means"], cohort.memory["class_met"]
        present = seen.counts > 0
        weight = torch.where(met, 0.3, 1.0) * present  # 0.3 as in the released code.
        means.lerp_(seen.means(), weight[..., None])
        met |= present

    def generate(self, cohort: Cohort, labels: Tensor, *, training: bool) -> Tensor:
        """Generate embeddings `(clients, batch, d)` that are independent of clients."""
        noise = normal(cohort.generators, labels.shape[1], self.noise).to(labels.device)
        x = condition(noise, labels, self.task.n_keys)
        return self.generator(cohort.state, x, training=training)

    def synthetic(
        self, cohort: Cohort, embeddings: Tensor, batch: Batch, *, training: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Make synthetic embeddings around real samples and around class means.

        For both kinds, these are the synthetic embeddings, the original ones and the labels.
        """
        drawn = self.drawn_labels(cohort, embeddings.shape[1])
        means = by_key(cohort.memory["class_means"], drawn)
        made = []
        for anchors, labels in ((embeddings, self.task.keys(batch)), (means, drawn)):
            with torch.no_grad():
                agnostic = self.generate(cohort, labels, training=False)
            x = condition(agnostic, labels, self.task.n_keys)
            residual = self.transform(cohort.state, x, training=training)
            made.append((anchors + residual, anchors, labels))
        return made

    def drawn_labels(self, cohort: Cohort, n: int) -> Tensor:
        """Draw labels `(clients, n)` uniformly from the classes that each client has had."""
        return draw_labels(cohort.memory["class_met"], cohort.rand(n))

    def networks_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Return the generator's and the RTNet's losses, with the model in evaluation mode."""
        self.population.train(False)
        with torch.no_grad():
            real = self.population.encode(cohort.state, batch["x"])
        o, labels = self.options, self.drawn_labels(cohort, real.shape[1])
        agnostic = self.generate(cohort, labels, training=True)
        recognised = self.task.loss(
            self.population.decode(cohort.state, agnostic), {**batch, "y": labels}
        )
        loss = recognised - o.lam_generator * mmd(agnostic, real)
        made = self.synthetic(cohort, real, batch, training=True)
        for embeddings, anchors, _ in made:
            logits = self.population.decode(cohort.state, embeddings)
            term = o.lam_transform * mmd(embeddings, anchors) - entropy(logits).mean(1)
            loss = loss + term / len(made)
        self.population.train()
        return loss
