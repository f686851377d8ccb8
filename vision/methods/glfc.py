"""GLFC: rehearsal with compensated gradients, and distillation of relations between classes.

Dong, Wang, Fang, Sun, Xu, Wang, Zhu: Federated Class-Incremental Learning, CVPR 2022, arXiv
2203.11473, Eq. 3–8. A baseline in FedTA's Table 1 (Yu et al., CVPR 2025). Like the others, it runs
here on a frozen backbone whose head is trained and averaged.

A client keeps samples of its former classes. In its loss on new and kept samples, each sample is
weighted by the error of the prediction for its class, relative to the mean of the new or the former
classes (gradient compensation, Eq. 3–6). Predictions are also fitted to labels whose entries for
former classes are the predictions of the model before the task (relation distillation, Eq. 7
and 8).

- Both losses are binary cross-entropies over all classes, weighted by 1/2 each, as in the released
  code. Until a task has ended only the first is used, without compensation while a client has no
  former classes. The paper writes softmax and KL, for which the mixed labels are not a
  distribution.
- The distilled classes are all those that any client had before the task began, as in the code,
  where they are the outputs of the old model; so the server broadcasts them, and clients upload
  their classes. Compensation and rehearsal use a client's own former classes.
- The memory holds features: the backbone is frozen and images are not augmented. It keeps those
  nearest to the class's mean (the code uses herding, as iCaRL, and normalises features). Classes of
  the present task get their share of the memory from its first round on, since their data are gone
  when the next task begins; the code makes room for them only then. A batch has as many kept
  samples as new ones; the paper joins the sets. With 500 images a class, 2,000 samples are a small
  part in the end. Clients with fewer images would keep all of them, so the memory is also limited
  to a share of a client's former images (`memory_share`, ours).
- Its binary losses are over all classes by design: `within_task` does not concern them.
- The paper's clients detect a new task when the mean entropy of the received model's predictions
  rises by 1.2 or more from one round to the next (`entropy_rise`). By default the task boundaries
  are given: with a head of all classes on frozen features, the entropy rose by at most 0.6 at the
  task boundaries of FedTA's stream.
- The model before the task is the best global model of the last task, as scored by the proxy server
  (`vision.methods.memory`). A client whose task begins sends, as a gradient, a sample of each
  class, the nearest to its mean, with normal noise of γ times the class's standard deviation (the
  code instead descends the loss by the sample). New samples replace the old ones, and the search
  for the best model starts again; the code compares with the score on the old samples. Among
  equally good models the newest is the best; without samples it is the newest model.
- The paper sends the best models of the last and of the present task in each round. Here a client
  gets one and keeps the one received when its task begins, so it needs no other. All clients send
  gradients in all rounds, zeros if no task begins, and these are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions, PositiveShare, Share
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from vision.methods import memory
from vision.methods.generator import TaughtFedAvg, normal
from vision.methods.prompts import DEFAULTS, queried
from vision.models.vit import backbone_of
from vision.task import entropy

BEST = "best."
"""Prefix of the best global model since the latest prototypes."""

SEEN = "seen"
"""Flags of the classes that any client has had, `(classes,)`; in an upload, the client's."""

MONITOR = ("proxy.feature", "proxy.class", "proxy.score")
"""Features and classes of the proxy server's samples, and the best model's accuracy on them."""


@dataclass(frozen=True)
class GLFCOptions(CheckedOptions):
    """Settings of GLFC.

    Attributes:
        memory: most samples that a client keeps, over all its classes (paper: 2000).
        memory_share: largest share of the training samples that a client has had that it keeps,
            but at least one of each class.
        relation: weight of the relation distillation; the compensated loss has the rest (released
            code: 0.5).
        entropy_rise: rise of the mean entropy, in nats, that marks a new task for a client (paper:
            1.2); by default task boundaries are given.
        prototypes: largest number of classes per task and client whose samples are sent (the
            paper's clients have up to 10 classes in a task).
        perturbation: strength γ of the noise in samples that are sent (paper: 0.1).
    """

    memory: PositiveInt = 2000
    memory_share: PositiveShare = 0.2
    relation: Share = 0.5
    entropy_rise: PositiveFloat | None = None
    prototypes: PositiveInt = 10
    perturbation: NonNegativeFloat = 0.1


class GLFC(TaughtFedAvg):
    """GLFC on frozen features. The proxy server is part of the server."""

    name = "glfc"
    summary = "rehearses former classes with compensated gradients, distils their relations"
    paper = "Dong et al., CVPR 2022"
    sends = Upload(apart=True)
    Options = GLFCOptions
    options: GLFCOptions
    defaults = DEFAULTS

    def set_up(self) -> None:
        """Find the backbone, and build the network that encodes samples."""
        self.backbone = backbone_of(self.population, self.name)
        self.encoding = memory.encoding_network(self.backbone.width, self.task.n_keys)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start with empty memories and without samples on the proxy server."""
        server = super().init(clients, sizes, seed)
        o, n, d = self.options, len(clients), self.backbone.width
        some = next(iter(server.values()))
        clients.memory |= memory.empty_memory(n, o.memory, d, some.device)
        clients.memory["samples"] = torch.zeros(n, dtype=torch.long, device=some.device)
        clients.memory |= self.encoding.initial(n, seed, some.device)[0]
        clients.memory["entropy"] = some.new_full((n,), -1.0)
        unseen = torch.zeros(self.task.n_keys, dtype=torch.bool, device=some.device)
        clients.memory["taught"] = unseen.repeat(n, 1)
        best = {BEST + name: t.clone() for name, t in server.items()}
        classes = min(o.prototypes, self.task.n_keys)
        nothing = torch.full((n, classes), memory.EMPTY, device=some.device)
        monitor = (some.new_zeros(n, classes, d), nothing, some.new_zeros(()))
        return {**server, **best, **dict(zip(MONITOR, monitor, strict=True)), SEEN: unseen}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the global model, the best one, and the classes so far."""
        names = [*self.shared, *(BEST + name for name in self.shared), SEEN]
        return super().broadcast({name: server[name] for name in names}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train on features; then keep those nearest to each class's mean."""
        data = queried(cohort, self.backbone)
        cohort.data = ClientData(data, cohort.data.sizes)
        upload = super().local_update(cohort, payload)
        cohort.memory["samples"] += cohort.scratch["begins"] * data["query"].shape[1]
        limit = (self.options.memory_share * cohort.memory["samples"]).long()
        memory.remember(cohort.memory, data["query"], self.task.keys(data), self.task.n_keys, limit)
        return upload

    def begins(self, cohort: Cohort, payload: Payload) -> Tensor:
        """Return whether a task begins for each client, by entropy with `entropy_rise`."""
        rise, last = self.options.entropy_rise, cohort.memory["entropy"]
        new = super().begins(cohort, payload)
        if rise is not None:
            with torch.no_grad():
                logits = self.population.decode(payload, cohort.data.tensors["query"])
            mean = entropy(logits).mean(1)
            new = (last < 0) | (mean - last >= rise)
            last.copy_(mean)
        cohort.scratch["begins"] = new
        cohort.memory["taught"][new] = payload[SEEN][new]
        return new

    def lesson(self, payload: Payload) -> Payload:
        """Return the best model."""
        return {name: payload[BEST + name] for name in self.shared}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the compensated loss, with relation distillation if there are former classes."""
        former, taught = cohort.memory["former"], cohort.memory["taught"]
        new = self.task.keys(batch)
        old_features, old, any_old = memory.draw_samples(
            cohort.memory, former, cohort.rand(new.shape[1])
        )
        features = torch.cat([batch["query"], old_features], dim=1)
        y = torch.cat([new, old], dim=1)
        counts = torch.cat([torch.ones_like(new), any_old[:, None].expand_as(old)], dim=1)
        logits = self.population.decode(cohort.state, features)
        compensated = compensated_loss(logits, y, former, counts)
        cohort.record("task_loss", compensated)
        with torch.no_grad():
            teacher = self.population.decode(self.teacher(cohort), features)
        related = relation_loss(logits, y, teacher, taught, counts)
        share = self.options.relation * taught.any(1)
        return (1 - share) * compensated + share * related

    def upload(self, cohort: Cohort) -> Payload:
        """Return the model, the classes, and gradients of prototypes if a task has begun."""
        o, data = self.options, cohort.data.tensors
        features, classes, spread = memory.representatives(
            data["query"], self.task.keys(data), self.task.n_keys, o.prototypes
        )
        noise = normal(cohort.generators, *features.shape[1:]).to(features)
        shared = classes.masked_fill(~cohort.scratch["begins"][:, None], memory.EMPTY)
        features = features + o.perturbation * spread * noise
        gradients = memory.gradients_of(self.encoding, cohort.memory, features, shared)
        return {**super().upload(cohort), **gradients, SEEN: cohort.memory["present"]}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models; the proxy server evaluates the average."""
        model = super().aggregate(server, of, {name: uploads[name] for name in self.shared})
        features, classes, least = self.monitor(server, of, uploads)
        score = self.score(model, features, classes)
        best = {name: server[BEST + name] for name in self.shared}
        if score >= least:
            best, least = {name: t.clone() for name, t in model.items()}, score
        monitor = dict(zip(MONITOR, (features, classes, least), strict=True))
        seen = server[SEEN] | uploads[SEEN].any(0)
        return {**model, **{BEST + name: t for name, t in best.items()}, **monitor, SEEN: seen}

    def monitor(
        self, server: ServerState, of: Participants, uploads: Payload
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return reconstructed features, their classes and the best score; or the old ones."""
        old_features, old_classes, least = (server[name] for name in MONITOR)
        some, own = memory.rebuilt({name: uploads[name] for name in self.encoding.parameters})
        if not (own != memory.EMPTY).any():
            return old_features, old_classes, least
        features = torch.zeros_like(old_features)
        classes = torch.full_like(old_classes, memory.EMPTY)
        ids = of.ids.to(own.device)
        features[ids], classes[ids] = some, own
        return features, classes, torch.zeros_like(least)

    def score(self, model: Params, features: Tensor, classes: Tensor) -> Tensor:
        """Return a model's accuracy on the prototypes `(clients, n, d)`; 0 without any."""
        logits = self.population.decode(repeated(model, 1), features.flatten(0, 1)[None])[0]
        right = (logits.argmax(-1) == classes.flatten()).sum()
        return (right / (classes != memory.EMPTY).sum().clamp(min=1)).to(features)


def compensated_loss(logits: Tensor, y: Tensor, former: Tensor, counts: Tensor) -> Tensor:
    """Return cross-entropy weighted by gradients, relative to new or former classes (Eq. 3–6).

    A client without former classes weights all samples equally, as in the released code. Logits are
    `(clients, batch, n_classes)`; `former` `(clients, n_classes)` are the classes of a client's
    former tasks; `counts` `(clients, batch)` is 0 for a sample that does not count.
    """
    target = F.one_hot(y, logits.shape[-1]).to(logits.dtype)
    right = logits.detach().sigmoid().gather(-1, y[..., None])[..., 0]
    gradient, valid = (right - 1).abs(), counts.to(logits.dtype)
    is_former = former.gather(1, y)
    scale = torch.zeros_like(gradient)
    for kind in (is_former, ~is_former):
        among = kind * valid
        mean = (gradient * among).sum(1) / among.sum(1).clamp(min=1)
        scale = torch.where(kind, mean[:, None], scale)
    weight = valid * gradient / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    weight = torch.where(former.any(1)[:, None], weight, valid)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
    return (weight * loss).sum(1) / valid.sum(1)


def relation_loss(
    logits: Tensor, y: Tensor, teacher: Tensor, former: Tensor, counts: Tensor
) -> Tensor:
    """Return cross-entropy to labels with the teacher's values for former classes (Eq. 7 and 8).

    The teacher is the model before the task, `former` the classes that any client trained it on;
    the other arguments are as for `compensated_loss`.
    """
    target = F.one_hot(y, logits.shape[-1]).to(logits.dtype)
    target = torch.where(former[:, None], teacher.sigmoid(), target)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
    valid = counts.to(logits.dtype)
    return (valid * loss).sum(1) / valid.sum(1)
