"""GLFC: rehearsal with compensated gradients, and distillation of relations among classes.

Dong, Wang, Fang, Sun, Xu, Wang, Zhu: Federated Class-Incremental Learning, CVPR 2022, arXiv
2203.11473, Eq. 3–8. A baseline in FedTA's Table 1 (Yu et al., CVPR 2025), here like the others on a
frozen backbone, whose head is trained and averaged.

A client remembers samples of its former classes. In its loss on new and remembered samples, each
weighs by how wrong the prediction for its class is, relative to the mean of the new or the former
classes (gradient compensation, Eq. 3–6); and predictions are drawn to the labels whose entries for
former classes are what the model before the task said (relation distillation, Eq. 7 and 8).

- Both losses are binary cross-entropies over all classes, weighted by 1/2 each, as in the released
  code. Until a task has ended the first stands alone, and is not compensated while a client has no
  former classes of its own. The paper writes softmax and KL, for which the mixed labels are no
  distribution.
- Relations are distilled of all classes that any client had before the task began, as in the code,
  where they are the outputs of the old model; so the server tells which they are, and clients send
  which they have. Compensated and remembered are a client's own former classes.
- Remembered are features: the backbone is frozen and images are not augmented. They are those
  nearest to the class's mean (the code herds, as iCaRL, and divides features by their length).
  Classes of the present task have their share of the memory from its first round, since their data
  are gone when the next begins; the code makes room for them only then. A batch has as many
  remembered samples as new ones; the paper joins the sets.
- The paper's clients notice a task by the mean entropy of the received model's predictions, which
  rises by 1.2 or more from one round to the next (`entropy_rise`). By default they are told: with a
  head of all classes on frozen features it rose by at most 0.6 as tasks of FedTA's stream began.
- The model before the task is the best of the last task's global models, as the proxy server found
  (`vision.methods.proxy`). A client whose task begins shares a sample of each class, the nearest to
  its mean, with normal noise of γ times the class's standard deviation (the code instead descends
  the loss by the sample), as a gradient. When such arrive, they replace those before, and the best
  model is sought anew; the code compares with the score on those before. Of models that are equally
  good the newest is best, so it is where there is nothing to judge by.
- The paper sends the best models of the last and of the present task in each round. Here a client
  gets one, keeps that which it gets as its task begins, and so needs no other. All clients send
  gradients in all rounds, zeros where no task begins, and these count as sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.data import Batch, ClientData
from stforecast.federated.method import Participants, Task
from stforecast.federated.options import CheckedOptions, Share
from stforecast.federated.population import Params, Population
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.methods.conditional import normal
from vision.methods.exemplars import EMPTY, draw, empty_memory, remember
from vision.methods.prompts import DEFAULTS, queried
from vision.methods.proxy import encoding_network, gradients_of, rebuilt, representatives
from vision.methods.teacher import TaughtFedAvg
from vision.models.vit import backbone_of

BEST = "best."
"""Prefix of the best global model since prototypes came last."""

SEEN = "seen"
"""Which classes any client has had, `(classes,)`; of an upload, which the client has."""

MONITOR = ("proxy.feature", "proxy.class", "proxy.score")
"""What the proxy server judges by, and the share of it that the best model has right."""


@dataclass(frozen=True)
class GLFCOptions(CheckedOptions):
    """Settings of GLFC.

    Attributes:
        memory: samples that a client remembers, over all its classes (paper: 2000).
        relation: weight of the relation distillation; the rest is the compensated loss's
            (released code: 0.5).
        entropy_rise: rise of the mean entropy, in nats, by which a client notices a task (paper:
            1.2); by default it is told.
        prototypes: classes of its task that a client shares a sample of, the first where it has
            more (the paper's clients have up to 10 classes in a task).
        perturbation: γ of the noise in shared samples (paper: 0.1).
    """

    memory: PositiveInt = 2000
    relation: Share = 0.5
    entropy_rise: PositiveFloat | None = None
    prototypes: PositiveInt = 10
    perturbation: NonNegativeFloat = 0.1


class GLFC(TaughtFedAvg):
    """GLFC on frozen features. The proxy server is a part of the server."""

    name = "glfc"
    summary = "rehearses former classes with compensated gradients, distils their relations"
    paper = "Dong et al., CVPR 2022"
    keeps_apart = True
    Options = GLFCOptions
    options: GLFCOptions
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        self.backbone = backbone_of(population, self.name)
        self.encoding = encoding_network(self.backbone.width, task.n_keys)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """No teacher, nothing to remember and nothing to judge models by."""
        server = super().init(clients, sizes, seed)
        o, n, d = self.options, len(clients), self.backbone.width
        some = next(iter(server.values()))
        clients.memory |= empty_memory(n, o.memory, d, some.device)
        clients.memory |= self.encoding.initial(n, seed, some.device)[0]
        clients.memory["entropy"] = some.new_full((n,), -1.0)
        unseen = torch.zeros(self.task.n_keys, dtype=torch.bool, device=some.device)
        clients.memory["taught"] = unseen.repeat(n, 1)
        best = {BEST + name: t.clone() for name, t in server.items()}
        classes = min(o.prototypes, self.task.n_keys)
        nothing = torch.full((n, classes), EMPTY, device=some.device)
        monitor = (some.new_zeros(n, classes, d), nothing, some.new_zeros(()))
        return {**server, **best, **dict(zip(MONITOR, monitor, strict=True)), SEEN: unseen}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """The global model, the best one, and which classes there have been."""
        names = [*self.shared, *(BEST + name for name in self.shared), SEEN]
        return super().broadcast({name: server[name] for name in names}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train on features; then remember the nearest to each class's mean."""
        data = queried(cohort, self.backbone)
        cohort.data = ClientData(data, cohort.data.sizes)
        upload = super().local_update(cohort, payload)
        classes = self.task.keys(data)
        remember(cohort.memory, data["query"], classes, self.task.n_keys)
        return upload

    def begins(self, cohort: Cohort, payload: Payload) -> Tensor:
        """Whether a task begins for a client, by entropy where asked for; its first does."""
        rise, last = self.options.entropy_rise, cohort.memory["entropy"]
        new = super().begins(cohort, payload)
        if rise is not None:
            with torch.no_grad():
                logits = self.population.decode(payload, cohort.data.tensors["query"])
            entropy = mean_entropy(logits)
            new = (last < 0) | (entropy - last >= rise)
            last.copy_(entropy)
        cohort.scratch["begins"] = new
        cohort.memory["taught"][new] = payload[SEEN][new]
        return new

    def lesson(self, payload: Payload) -> Payload:
        """The best model."""
        return {name: payload[BEST + name] for name in self.shared}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """The compensated loss, and the relation distillation once there are former classes."""
        former, taught = cohort.memory["former"], cohort.memory["taught"]
        new = self.task.keys(batch)
        old_features, old, any_old = draw(cohort.memory, former, cohort.rand(new.shape[1]))
        features = torch.cat([batch["query"], old_features], dim=1)
        y = torch.cat([new, old], dim=1)
        counts = torch.cat([torch.ones_like(new), any_old[:, None].expand_as(old)], dim=1)
        logits = self.population.decode(cohort.state, features)
        compensated = compensated_loss(logits, y, former, counts)
        cohort.record("task_loss", compensated)
        with torch.no_grad():
            said = self.population.decode(self.teacher(cohort), features)
        related = relation_loss(logits, y, said, taught, counts)
        share = self.options.relation * taught.any(1)
        return (1 - share) * compensated + share * related

    def upload(self, cohort: Cohort) -> Payload:
        """The model, the classes, and gradients of prototypes where a task has begun."""
        o, data = self.options, cohort.data.tensors
        features, classes, spread = representatives(
            data["query"], self.task.keys(data), self.task.n_keys, o.prototypes
        )
        noise = normal(cohort.generators, *features.shape[1:]).to(features)
        shared = classes.masked_fill(~cohort.scratch["begins"][:, None], EMPTY)
        features = features + o.perturbation * spread * noise
        gradients = gradients_of(self.encoding, cohort.memory, features, shared)
        return {**super().upload(cohort), **gradients, SEEN: cohort.memory["present"]}

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Average the models; the proxy server judges the average."""
        model = super().aggregate(server, of, {name: uploads[name] for name in self.shared})
        features, classes, least = self.monitor(server, of, uploads)
        score = self.score(model, features, classes)
        best = {name: server[BEST + name] for name in self.shared}
        if score >= least:
            best, least = {name: t.clone() for name, t in model.items()}, score
        judged = dict(zip(MONITOR, (features, classes, least), strict=True))
        seen = server[SEEN] | uploads[SEEN].any(0)
        return {**model, **{BEST + name: t for name, t in best.items()}, **judged, SEEN: seen}

    def monitor(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rebuilt features, their classes and the score to beat: the old ones if none came."""
        old_features, old_classes, least = (server[name] for name in MONITOR)
        some, own = rebuilt({name: uploads[name] for name in self.encoding.parameters})
        if not (own != EMPTY).any():
            return old_features, old_classes, least
        features, classes = torch.zeros_like(old_features), torch.full_like(old_classes, EMPTY)
        ids = of.ids.to(own.device)
        features[ids], classes[ids] = some, own
        return features, classes, torch.zeros_like(least)

    def score(self, model: Params, features: Tensor, classes: Tensor) -> Tensor:
        """Share of the prototypes `(clients, n, d)` that a model has right; 0 without any."""
        stacked = {name: t[None] for name, t in model.items()}
        logits = self.population.decode(stacked, features.flatten(0, 1)[None])[0]
        right = (logits.argmax(-1) == classes.flatten()).sum()
        return (right / (classes != EMPTY).sum().clamp(min=1)).to(features)


def mean_entropy(logits: Tensor) -> Tensor:
    """Mean entropy of predictions over the batch, in nats, `(clients,)`.

    Example:
        >>> mean_entropy(torch.zeros(1, 3, 4)).exp()
        tensor([4.])
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean(1)


def compensated_loss(logits: Tensor, y: Tensor, former: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy weighted by each sample's gradient, relative to those of its kind (Eq. 3–6).

    A client without former classes weighs all samples alike, as the released code does.

    Args:
        logits: `(clients, batch, n_classes)`.
        y: `(clients, batch)`.
        former: `(clients, n_classes)` whether a class is one of the client's former tasks.
        counts: `(clients, batch)` 1, or 0 for a sample that does not count.

    Returns:
        `(clients,)`.
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
    """Cross-entropy to labels whose former classes are as the teacher says (Eq. 7 and 8).

    Args:
        logits: `(clients, batch, n_classes)`.
        y: `(clients, batch)`.
        teacher: logits of the model before the task.
        former: `(clients, n_classes)` classes that this model was taught, by any client.
        counts: `(clients, batch)` 1, or 0 for a sample that does not count.

    Returns:
        `(clients,)`.
    """
    target = F.one_hot(y, logits.shape[-1]).to(logits.dtype)
    target = torch.where(former[:, None], teacher.sigmoid(), target)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
    valid = counts.to(logits.dtype)
    return (valid * loss).sum(1) / valid.sum(1)
