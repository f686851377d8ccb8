"""GLDP: shared body, local heads, and prototypes against forgetting and for rare classes.

Guo, Wang, Lin, Yang, Geng: STHFL: Spatio-Temporal Heterogeneous Federated Learning, 2025, arXiv
2501.05775, Eq. 1 to 13 and Algorithm 1.

In each stage a client trains its body for t epochs (Eq. 3), then its head for s (Eq. 4), both on

    L = L_CE + λ L_LP + (1-λ) L_GP                                                        (Eq. 12)

where L_LP keeps features similar to the client's prototypes of former stages (Eq. 7, 8) and L_GP
pulls them towards the global prototypes (Eq. 10). The server averages bodies evenly (Eq. 5). Server
and clients keep moving averages of prototypes (Eq. 9, 11). A round of the core is one stage of one
of Algorithm 1's global rounds; the stages come from the task stream.

Choices where the paper contradicts itself or gives no details:

- Eq. 7 is the divergence of two prototypes, Eq. 8 of a prototype and a prediction, which have
  different sizes. With `form="feature"`, each sample's features are compared with the prototype of
  its class, both after a softmax over the features. With `head`, the head's logits of both are
  compared, and the prototype's are constants. Samples of classes without a prototype count
  as 0. The paper's L_LP is against former stages. Here the prototypes are the moving average of all
  of the client's former rounds, also of the present stage; with one stage (M = 1), only of these.
- Eq. 10 weights the errors of class means by the classes' shares of the client's samples.
  `align="batch"` does so with the means and shares of a batch. `instance`, as in the authors' later
  code, is the mean over a batch of each sample's error. It equals the former plus the features'
  variance within classes.
- Prototypes are means of features in training mode of batch normalisation; means with its running
  statistics predicted equally well in a trial (three seeds, both CIFAR sets).
- Algorithm 1 updates local prototypes inside the loop over epochs, Eq. 9 once per stage. Here they
  are updated once, after the local epochs, with means over the last epoch: by default one of the
  head, in which the body is fixed, so they belong to the trained body (Eq. 6). With
  `fedrep_order` it is one of the body, and they are means over bodies that still change.
- Algorithm 1 gives clients the global prototypes of the start of a global round in all its stages.
  The text after Eq. 12 aggregates them "for the next stage", as the body; this is done here.
- Uploads are C of Eq. 6, without the moving average; the later code sends the average and has none
  on the server.
- "Generally t < s", body first; the later code trains the head first, 5 epochs, then the body, 25
  (`fedrep_order` with `body_epochs=25` of 30 epochs).
- Eq. 13 predicts the class of the nearest prototype: the client's (view `local`, GLDP-LP), among
  the classes that it has had, or the global one (view `global`, GLDP-GP). It prints the client's as
  C of Eq. 6, which exists only for classes of its latest stage. Here it is the moving average Ĉ of
  Eq. 9, which also exists for classes of former stages.
- The features in Eq. 13 come from f_μi, the client's own body after its latest training, and
  A^loc judges F_ωi = f_μi ∘ g_νi, that body with the client's own head (view `personal`). So a
  client predicts with its own body; evaluation also judges all three views with the averaged one
  (A^glo, Eq. 5). A client that has not trained yet uses the averaged body and the global
  prototypes.
- The optimiser's state belongs to each parameter. Running statistics belong to the body.
- By default there are 6 local epochs and the 100 rounds of all image methods, where the paper has
  30 and 50; weight decay (1e-4), learning rate (0.01) and batches (32) are the paper's. It names no
  momentum; 0.9 is the same for all image methods, the authors' code has 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words, counted
from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.prototypes import (
    PrototypeMeans,
    batch_distance,
    by_key,
    instance_distance,
    nearest_prototype,
)
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload, plain_mean, with_axes
from stforecast.federated.methods.fedavg import FedAvg
from vision.task import kl_divergence

BODY, HEAD = "encoder.", "head."


@dataclass(frozen=True)
class GLDPOptions(CheckedOptions):
    """Settings of GLDP.

    Attributes:
        lam: weight λ of the local relation L_LP; the global one L_GP has 1 - λ (paper: 0.5). 0 uses
            only the global relation, 1 only the local one.
        relations: whether to use the relations; otherwise the loss is L_CE only.
        beta: weight β of the old prototype in the moving averages (paper: 0.5).
        body_epochs: local epochs t of the body; the other epochs s, at least one, are the head's.
            By default a sixth, at least one (paper: t + s = 30, t < s).
        fedrep_order: whether to train the head before the body.
        share_body: whether the server averages the bodies (Eq. 5). Otherwise clients keep their
            own, which may be different models, and exchange prototypes only.
        form: outputs that L_LP compares: `feature` or `head`.
        align: features that L_GP aligns with the prototypes: every `instance`, or the `batch` mean
            of each class.
    """

    lam: Share = 0.5
    relations: bool = True
    beta: Share = 0.5
    body_epochs: PositiveInt | None = None
    fedrep_order: bool = False
    share_body: bool = True
    form: Literal["feature", "head"] = "feature"
    align: Literal["instance", "batch"] = "instance"


class GLDP(FedAvg):
    """GLDP. A client's prototypes are in its memory, the server's in its state with the body."""

    name = "gldp"
    summary = (
        "shared body, own heads; local and global prototypes against forgetting and long tails"
    )
    paper = "Guo et al., arXiv 2025"
    views: ClassVar[tuple[str, ...]] = ("personal", "local", "global")
    predicts_as_trained = True
    """A client predicts with the model that it trained, not with the average of all."""
    sends = Upload()
    needs = Needs(data=("equal initial weights", "keys"))
    Options = GLDPOptions
    options: GLDPOptions
    defaults = MappingProxyType({"epochs": 6, "weight_decay": 1e-4})

    def set_up(self) -> None:
        """Divide the local epochs into epochs of the body and of the head."""
        epochs = self.training.epochs
        body = self.options.body_epochs or max(1, round(epochs / 6))
        if body >= epochs:
            raise InputError(
                f"gldp has {counted(epochs, 'local epoch')}, {body} for the body, and needs one "
                "for the head; ",
                Words("use more {epochs} or fewer {body_epochs}"),
            )
        self.phases = [(BODY, body), (HEAD, epochs - body)]
        if self.options.fedrep_order:
            self.phases.reverse()

    def shares(self, name: str) -> bool:
        """Return whether a tensor is averaged, as the body's are with `share_body`."""
        return self.options.share_body and name.startswith(BODY)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, without prototypes."""
        server = super().init(clients, sizes, seed)
        width = feature_width(self.population)
        n, n_keys = len(clients), self.task.n_keys
        clients.memory["prototypes"] = torch.zeros(n, n_keys, width, device=clients.device)
        clients.memory["known"] = torch.zeros(n, n_keys, dtype=torch.bool, device=clients.device)
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the two parts in turn, then update the prototypes (Algorithm 1, lines 9 to 18)."""
        self.receive(cohort, payload)
        means = PrototypeMeans(self.task.n_keys)
        last_part, _ = self.phases[-1]
        for part, epochs in self.phases:
            with cohort.training_only(part):
                for batch in cohort.batches(epochs):
                    features = self.population.encode(cohort.state, batch["x"])
                    if part == last_part and cohort.epoch == epochs - 1:
                        means.add(features, self.task.keys(batch))
                    cohort.step(self.loss(cohort, features, batch, payload))
        prototypes, held = means.means(), means.counts > 0
        old, known = cohort.memory["prototypes"], cohort.memory["known"]
        old.copy_(moving_average(old, known, prototypes, held, self.options.beta))  # Eq. 9.
        known |= held
        return {**self.upload(cohort), "prototypes": prototypes, "known": held}

    def loss(self, cohort: Cohort, features: Tensor, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of Eq. 12, `(clients,)`."""
        o, keys = self.options, self.task.keys(batch)
        loss = self.task_loss(cohort, features, batch)
        if not o.relations:
            return loss
        if o.lam > 0:
            loss = loss + o.lam * self.local_relation(cohort, features, keys)
        if o.lam < 1 and "prototypes" in payload:
            to = (features, keys, payload["prototypes"], payload["known"])
            batch_means = o.align == "batch"
            pull = batch_distance(*to, weight="samples") if batch_means else instance_distance(*to)
            loss = loss + (1 - o.lam) * pull
        return loss

    def local_relation(self, cohort: Cohort, features: Tensor, keys: Tensor) -> Tensor:
        """Return L_LP, the divergence from former prototypes (Eq. 7 or 8), `(clients,)`."""
        old, known = cohort.memory["prototypes"], cohort.memory["known"]
        if self.options.form == "head":
            old = self.population.decode(cohort.state, old).detach()
            features = self.population.decode(cohort.state, features)
        kl = kl_divergence(by_key(old, keys), features)
        return torch.where(known.gather(1, keys), kl, 0.0).mean(1)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the bodies evenly (Eq. 5); update averages of the prototypes (Eq. 11)."""
        o, body = self.options, {name: plain_mean(uploads[name]) for name in self.shared}
        holders = uploads["known"].sum(0)
        mean = uploads["prototypes"].sum(0) / holders.clamp(min=1)[:, None]
        held = holders > 0
        if "prototypes" not in server:
            return {**body, "prototypes": mean, "known": held}
        moved = moving_average(server["prototypes"], server["known"], mean, held, o.beta)
        return {**body, "prototypes": moved, "known": server["known"] | held}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict by the nearest average prototype (Eq. 13 with Eq. 9 or 11), or with the head."""
        trained = state["known"].any(1)
        own = {
            name: torch.where(with_axes(trained, t.ndim), state[name], t)
            for name, t in payload.items()
            if name.startswith(BODY)
        }
        params = {**state, **own}
        features = self.population.encode(params, x)
        if view == "personal":
            return self.population.decode(params, features)
        prototypes, known = payload["prototypes"], payload["known"]
        if view == "local":
            prototypes = torch.where(trained[:, None, None], state["prototypes"], prototypes)
            known = torch.where(trained[:, None], state["known"], known)
        return nearest_prototype(features, prototypes, known)


def moving_average(old: Tensor, known: Tensor, new: Tensor, held: Tensor, beta: float) -> Tensor:
    """Return the moving average of old and new prototypes `(…, keys, d)`; `beta` weighs the old.

    Where only one is `known` or `held`, the result is that one.

    >>> old, new = torch.tensor([[2.0], [0.0], [5.0]]), torch.tensor([[4.0], [3.0], [0.0]])
    >>> known, held = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    >>> moving_average(old, known, new, held, 0.25).flatten()
    tensor([3.5000, 3.0000, 5.0000])
    """
    share = torch.where(known, beta, 0.0).where(held, 1.0)[..., None].to(old.dtype)
    return share * old + (1 - share) * new
