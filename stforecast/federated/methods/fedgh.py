"""FedGH: the server trains one header on the clients' mean features of each key.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM
Multimedia 2023, arXiv 2303.13137.

In each round, a client replaces its header θ by the server's, trains encoder and header on its own
samples, and sends the mean feature of each class with its label. The server trains θ on these means
as samples,

    θ ← θ - η ∇_θ ℓ(θ(R̄_kˢ), s)

for the means R̄_kˢ of class s of all clients k. Encoders never leave their clients, so they may
differ. A client predicts with its encoder and the server's latest header.

We could read the abstract and the description of the framework, not the whole paper. The steps of
the server follow HtFLlib (Apache 2.0); the authors' code has no licence and was not read.

- HtFLlib takes 100 epochs of SGD with learning rate 0.01 in shuffled batches of ten means. Here a
  step uses all means at once; the number of steps and the learning rate are the same.
- Means are over the last local epoch's batches, as in our FedProto. HtFLlib computes them after the
  training, without dropout and with running statistics.
- Forecasts have no classes: a key is a slot of the period, and its label would not say what to
  predict. A client also sends the mean target of each key, in z-scores, and the server's loss
  compares the header's output for the mean feature with it. So the server sees the client's mean
  day. A header with quantiles learns quantiles of mean days, which are too narrow.
- A key counts the same for each client that has it, however many samples it has there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.prototypes import PrototypeMeans, encoded, means_of_last_epoch
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload, repeated
from stforecast.federated.methods.fedper import HEAD


@dataclass(frozen=True)
class FedGHOptions(CheckedOptions):
    """Settings of FedGH.

    Attributes:
        server_epochs: steps of the server in each round (HtFLlib: 100 epochs).
        server_lr: learning rate η of the server's steps (HtFLlib: 0.01).
    """

    server_epochs: PositiveInt = 100
    server_lr: PositiveFloat = 0.01


class FedGH(Method):
    """FedGH. The server's state is the header."""

    name = "fedgh"
    summary = "the server trains the header on the clients' mean features of each key"
    paper = "Yi et al., ACM MM 2023"
    attacked = Attacked(discloses="readings")
    """Nobody attacked it, but it sends FedProto's mean features, too."""
    sends = Upload(needs_each="its server trains on each client's mean features", counts=True)
    needs = Needs(data=("keys",))
    Options = FedGHOptions
    options: FedGHOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the clients' common initial header."""
        initial = {**clients.params, **clients.buffers}
        return {n: t[0].clone() for n, t in initial.items() if n.startswith(HEAD)}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the header, the same for every client."""
        return repeated(server, len(to.ids))

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss; in the last epoch, also add up features and targets by key."""
        _, keys, loss = encoded(self, cohort, batch)
        if cohort.last_epoch and batch["y"].is_floating_point():
            targets = torch.where(batch["mask"], batch["y"], 0)
            sums = cohort.scratch.setdefault("targets", PrototypeMeans(self.task.n_keys))
            sums.add(torch.cat([targets, batch["mask"].to(targets)], dim=-1), keys)
        return loss

    def upload(self, cohort: Cohort) -> Payload:
        """Return mean features `(clients, keys, d)` and which keys have one.

        With forecasts, they have mean `targets` `(clients, keys, horizon)`; not all need be
        `observed`.
        """
        means = means_of_last_epoch(cohort)
        sent = {"prototypes": means.means(), "known": means.counts > 0}
        if "targets" in cohort.scratch:
            total, share = cohort.scratch["targets"].means().chunk(2, dim=-1)
            observed = share > 0
            sent |= {"targets": total / torch.where(observed, share, 1), "observed": observed}
        return sent

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Train the header on the received means, as the samples of one client."""
        held = uploads["known"]
        samples = {n: t[held][None] for n, t in uploads.items() if n != "known"}
        if "targets" in samples:
            batch = {"y": samples["targets"], "mask": samples["observed"]}
        else:
            batch = {"y": held.nonzero()[None, :, 1]}
        header = {name: t[None].clone() for name, t in server.items()}
        trainable = header.keys() & set(self.population.trainable)
        trained = {name: header[name].requires_grad_() for name in sorted(trainable)}
        self.population.train(False)
        for _ in range(self.options.server_epochs if held.any() else 0):
            with torch.enable_grad():
                loss = self.task.loss(self.population.decode(header, samples["prototypes"]), batch)
                grads = torch.autograd.grad(loss.sum(), list(trained.values()))
            with torch.no_grad():
                for t, g in zip(trained.values(), grads, strict=True):
                    t -= self.options.server_lr * g
        return {name: t[0].detach() for name, t in header.items()}
