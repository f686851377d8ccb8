"""FedALA: each client starts a round between its own model and the global one, entry by entry.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated
Learning, AAAI 2023, arXiv 2212.01197, Eq. 4 and 5 and Algorithm 1.

Before local training, a client mixes the received model Θ with its own Θ_i of its last round,

    Θ̂_i = Θ_i + (Θ - Θ_i) ⊙ [1; W_i]  (Eq. 4),

where the weights W_i in [0, 1] belong to the p layers next to the output and start at 1; all other
layers are overwritten. W_i is first learned on a random share s of the client's samples,
W_i ← W_i - η ∇_{W_i} L(Θ̂_i) and clipped to [0, 1] (Eq. 5), and stays on the client. Then the client
trains Θ̂_i and sends it; messages are FedAvg's. Equations and algorithm are those of the authors'
slides.

- In its second round a client learns W_i until it converges, later in one pass. In the released
  code (Apache 2.0) that is until the losses of ten passes differ by little. For clients that train
  side by side it is a number of passes here (`start_passes`).
- The algorithm's start is the second round of the run. Here it is a client's own second round, so
  clients that begin later have one, too.
- A pass is one over the batches of the drawn samples, with a step of plain gradient descent each,
  as in the released code, which draws a contiguous part of the samples.
- The algorithm returns Θ̂_i, which predicts here: before an evaluation a copy of the client mixes in
  the latest global model, with one pass for W_i. The view `global` is the global model alone.
- A layer is a module with parameters of its own; p = 1 is a linear head.
- Running statistics are those of the global model in Θ̂_i; learning W_i does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.data import ClientData, batches, members, shuffled
from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions, PositiveShare
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Params, Payload, with_axes
from stforecast.federated.methods.two_models import FittedModels
from stforecast.federated.uploads.robust import RULES

WEIGHT = "mixing."
"""Prefix of the names of the weights W_i in a client's memory."""

ROUNDS = "mixing_rounds"
"""Name of the number of rounds of each client so far, at most 2, in its memory."""


@dataclass(frozen=True)
class FedAlaOptions(CheckedOptions):
    """Settings of FedALA.

    Attributes:
        mixed_layers: number p of layers next to the output that are mixed; the others are
            overwritten (slides: 1).
        mixing_share: share s of the samples on which the weights are learned (slides: 0.8).
        mixing_lr: learning rate η of the weights (released code: 1).
        start_passes: passes over these samples in a client's second round, instead of the paper's
            "until it converges"; in the slides' figure these are about 10.
    """

    mixed_layers: PositiveInt = 1
    mixing_share: PositiveShare = 0.8
    mixing_lr: PositiveFloat = 1.0
    start_passes: PositiveInt = 10


class FedAla(FittedModels):
    """FedALA. `personalise` mixes the models; training goes on from the mixture."""

    name = "fedala"
    summary = "FedAvg; clients learn how to mix its model into their own before they train"
    paper = "Zhang et al., AAAI 2023"
    attacked = Attacked(guards=RULES)
    keeps_own = True
    Options = FedAlaOptions
    options: FedAlaOptions

    def set_up(self) -> None:
        """Find the parameters of the last layers, which are mixed."""
        layers = [
            f"{name}."
            for name, module in self.population.model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        ]
        high = tuple(layers[-self.options.mixed_layers :])
        trainable = self.population.trainable
        self.mixed = [n for n in self.shared if n in trainable and n.startswith(high)]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg, with all weights at 1."""
        server = super().init(clients, sizes, seed)
        for name in self.mixed:
            clients.memory[WEIGHT + name] = torch.ones_like(clients.params[name])
        clients.memory[ROUNDS] = torch.zeros(len(clients), dtype=torch.int32, device=clients.device)
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Mix the models (lines 7 to 15), then train (line 16)."""
        self.mix(cohort, payload, self.options.start_passes)
        cohort.memory[ROUNDS].add_(1).clamp_(max=2)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Mix the latest global model into the client's own."""
        self.mix(cohort, payload, 1)

    def mix(self, cohort: Cohort, payload: Payload, start_passes: int) -> None:
        """Replace the cohort's models by Θ̂_i; learn the weights first where a client has trained.

        A client that has trained once makes `start_passes` over its samples.
        """
        own = {name: cohort.params[name].detach().clone() for name in self.mixed}
        self.receive(cohort, payload)
        done = cohort.memory[ROUNDS]
        passes = torch.where(done == 1, start_passes, (done > 0).to(done))
        data = self.drawn(cohort)
        for i in range(int(passes.max())):
            for batch in batches(data, self.training.batch_size, drop_last=False):
                self.learn(cohort, own, payload, batch, passes > i)
        with torch.no_grad():
            for name, t in self.mixture(cohort.memory, own, payload).items():
                cohort.params[name].copy_(t)

    def drawn(self, cohort: Cohort) -> ClientData:
        """Return the random share of each client's samples on which its weights are learned."""
        data = cohort.data
        total = int(data.n_groups[0])
        n = max(1, int(self.options.mixing_share * total))
        order = shuffled(total, cohort.generators)[:, :n]
        rows, client = members(order, data.group), torch.arange(len(cohort))[:, None]
        tensors = {name: t[client, rows] for name, t in data.tensors.items()}
        sizes = torch.full((len(cohort),), rows.shape[1])
        return ClientData(tensors, sizes, group_sizes=data.group_sizes)

    def learn(
        self, cohort: Cohort, own: Params, payload: Payload, batch: Params, active: Tensor
    ) -> None:
        """Take a step of Eq. 5 for the clients that are `active`, and clip."""
        weights = {
            name: cohort.memory[WEIGHT + name].clone().requires_grad_() for name in self.mixed
        }
        held = {WEIGHT + name: w for name, w in weights.items()}
        fixed = {name: t.detach() for name, t in cohort.params.items()}
        buffers = {name: t.clone() for name, t in cohort.buffers.items()}
        model = {**fixed, **buffers, **self.mixture(held, own, payload)}
        loss = self.loss_of(model, batch)
        found = torch.autograd.grad(loss.sum(), list(weights.values()))
        for (name, w), g in zip(weights.items(), found, strict=True):
            step = (w.detach() - self.options.mixing_lr * g).clamp(0, 1)
            here = with_axes(active, w.ndim)
            cohort.memory[WEIGHT + name].copy_(torch.where(here, step, w.detach()))

    def mixture(self, memory: Params, own: Params, payload: Payload) -> Params:
        """Return the mixed layers of Θ̂_i (Eq. 4)."""
        return {
            name: own[name] + (payload[name] - own[name]) * memory[WEIGHT + name]
            for name in self.mixed
        }
