"""FedGen: clients also train on features from a generator that the server fits to their heads.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021,
arXiv 2105.10056, Eq. 4, 5 and Algorithm 1.

Clients upload their models and their numbers of samples of each class. The server averages the
models, and trains a generator of features from noise and a label so that the clients' heads, each
weighted by its share of the label's samples, recognise the label (Eq. 4), with a loss that
separates features of different noise. Clients train their heads on its features and on their own
data (Eq. 5), for labels drawn from the samples of all clients, p̂(y). This starts in the second
round, since the generator is untrained in the first.

Where paper and released code differ:

- Eq. 4 averages the heads' logits; the code weights their losses by label, as here.
- In Eq. 5 the generated features have weight 1. The code weights them by 10, and has a divergence,
  with the same weight, between predictions on real samples and on generated ones of their label;
  both weights decay by 2 % per round. `alpha`, `beta` and `decay` set these.
- Noise is normal, as in the paper; the code's is uniform. Labels are drawn from p̂(y); the code
  draws them uniformly from those that any client has.
- The code decays the generator's weights and learning rate; this does not.

Clients use the generator with the server's running statistics. The model's are averaged, and
not used while the generator is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from stforecast.federated.core.declared import Upload
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.prototypes import key_counts
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload
from stforecast.federated.core.training import Optimizer, Training, moment_names, zero_moments
from stforecast.federated.methods.fedavg import FedAvg
from vision.draws import Draw
from vision.methods.generator import NormedLinear, condition, draw_labels, normal
from vision.task import cross_entropy, kl_divergence


@dataclass(frozen=True)
class FedGenOptions(CheckedOptions):
    """Settings of FedGen.

    Attributes:
        alpha: weight of the loss on generated features (Eq. 5: 1; released code: 10).
        beta: weight of the distance between predictions on real and on generated features of a
            label (Eq. 5: 0; released code: 10).
        decay: factor of both weights from round to round (released code: 0.98).
        diversity: weight of the generator's diversity loss (released code: 1).
        noise_width: size of the generator's noise (released code: 32, for CIFAR 64).
        hidden: size of the generator's hidden layer (released code: 256, for CIFAR 512).
        server_steps: the generator's steps per round (released code: 50).
        server_batch_size: samples per step (released code: 32).
        server_lr: Adam's learning rate for the generator (released code: 1e-4 or 3e-4).
    """

    alpha: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 0.0
    decay: Share = 1.0
    diversity: NonNegativeFloat = 1.0
    noise_width: PositiveInt = 32
    hidden: PositiveInt = 256
    server_steps: PositiveInt = 50
    server_batch_size: PositiveInt = 32
    server_lr: PositiveFloat = 1e-4


class FedGen(FedAvg):
    """FedGen. The generator's tensors and Adam's moments are part of the server's state."""

    name = "fedgen"
    summary = "FedAvg with features from a generator that the server trains"
    paper = "Zhu et al., ICML 2021"
    sends = Upload(apart=True)
    Options = FedGenOptions
    options: FedGenOptions

    def set_up(self) -> None:
        """Build the generator."""
        o, n, width = self.options, self.task.n_keys, feature_width(self.population)
        self.generator = Network(
            "generator.",
            partial(NormedLinear, o.noise_width + n, o.hidden),
            nn.ReLU,
            partial(ClientLinear, o.hidden, width),
        )
        self.server_training = Training(lr=o.server_lr, optimizer="adam")

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, with an untrained generator."""
        server = super().init(clients, sizes, seed)
        parameters, buffers = self.generator.initial(1, seed, clients.device)
        moments = zero_moments(parameters, self.server_training)
        return {
            **server,
            **{name: t[0] for name, t in (*parameters.items(), *buffers.items())},
            **{f"{moment}/{n}": t[0] for moment, ts in moments.items() for n, t in ts.items()},
            "label_counts": torch.zeros(self.task.n_keys, dtype=torch.int32, device=clients.device),
            "seed": torch.tensor(seed),
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the model, and after the first round also the generator and the label counts."""
        names = self.shared
        if to.round > 0:
            names = [*names, *self.generator.parameters, *self.generator.buffers, "label_counts"]
        return super().broadcast({name: server[name] for name in names}, to)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss on the client's samples and on generated features (Eq. 5)."""
        features = self.population.encode(cohort.state, batch["x"])
        loss = self.task_loss(cohort, features, batch)
        if "label_counts" not in payload:
            return loss
        o, scale = self.options, self.options.decay**cohort.round
        labels = draw_labels(payload["label_counts"], cohort.rand(features.shape[1]))
        generated = self.population.decode(cohort.state, self.generate(cohort, payload, labels))
        loss = loss + o.alpha * scale * self.task.loss(generated, {**batch, "y": labels})
        if not o.beta:
            return loss
        like = self.generate(cohort, payload, self.task.keys(batch))
        target = self.population.decode(cohort.state, like).detach()
        prediction = self.population.decode(cohort.state, features)
        return loss + o.beta * scale * kl_divergence(target, prediction).mean(1)

    def generate(self, cohort: Cohort, payload: Payload, labels: Tensor) -> Tensor:
        """Generate features `(clients, batch, d)` of labels `(clients, batch)`, no gradient."""
        noise = normal(cohort.generators, labels.shape[1], self.options.noise_width).to(
            labels.device
        )
        with torch.no_grad():
            x = condition(noise, labels, self.task.n_keys)
            return self.generator(payload, x, training=False)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the model and the number of samples of each class `(clients, classes)`."""
        return {**super().upload(cohort), "label_counts": key_counts(self.task, cohort)}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models and train the generator against the participants' heads."""
        model = super().aggregate(server, of, {n: uploads[n] for n in self.shared})
        counts = uploads["label_counts"]
        return {
            **model,
            **self.trained(server, of.round, uploads, counts),
            "label_counts": counts.sum(0, dtype=torch.int32),
            "seed": server["seed"],
        }

    def trained(
        self, server: ServerState, round: int, heads: Payload, counts: Tensor
    ) -> ServerState:
        """Train the generator a round on the participants' heads; return its tensors and moments.

        `counts` are their numbers of samples of each class `(n, classes)`.
        """
        names = self.generator.parameters
        own = {n: server[n][None].clone() for n in (*names, *self.generator.buffers)}
        moments = {
            moment: {n: server[f"{moment}/{n}"][None].clone() for n in names}
            for moment in moment_names(self.server_training)
        }
        parameters = {name: own[name].requires_grad_() for name in names}
        optimizer = Optimizer(parameters, moments, self.server_training)
        random = Draw.FEDGEN.generator(int(server["seed"]), round)
        self.population.train(False)
        with torch.enable_grad():
            for _ in range(self.options.server_steps):
                optimizer.step(self.server_loss(own, heads, counts, random))
        named = {f"{moment}/{n}": t[0] for moment, ts in moments.items() for n, t in ts.items()}
        return {**{name: t.detach()[0] for name, t in own.items()}, **named}

    def server_loss(
        self, own: Params, heads: Mapping[str, Tensor], counts: Tensor, random: torch.Generator
    ) -> Tensor:
        """Return Eq. 4 with losses weighted by label, plus the diversity loss, `(1,)`."""
        o = self.options
        uniform = torch.rand(1, o.server_batch_size, generator=random)
        labels = draw_labels(counts.sum(0, keepdim=True), uniform)
        noise = normal([random], o.server_batch_size, o.noise_width).to(labels.device)
        features = self.generator(own, condition(noise, labels, self.task.n_keys), training=True)
        logits = self.population.decode(heads, features.expand(len(counts), -1, -1))
        losses = cross_entropy(logits, labels.expand(len(counts), -1))
        shares = counts / counts.sum(0).clamp(min=1)
        recognised = (shares[:, labels[0]] * losses).sum(0).mean()
        return recognised + o.diversity * diversity_loss(noise, features)


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return `exp(-mean ‖ε_i - ε_j‖² |z_i - z_j|)` over all pairs of a batch, `(clients,)`.

    It is near 0 if different noise ε gives different features z. Distances are averaged over the
    last axis.
    """
    between = (features[:, :, None] - features[:, None]).abs().mean(-1)
    apart = (noise[:, :, None] - noise[:, None]).square().mean(-1)
    return (-(apart * between).mean((1, 2))).exp()
