"""GLFC: rehearsal with compensated gradients, and distillation of relations among classes.

Dong, Wang, Fang, Sun, Xu, Wang, Zhu: Federated Class-Incremental Learning, CVPR 2022, arXiv
2203.11473, Eq. 3–8. A baseline in FedTA's Table 1 (Yu et al., CVPR 2025), here like the others on a
frozen backbone, whose head is trained and averaged.

A client remembers samples of its former classes. In its loss on new and remembered samples, each
weighs by how wrong the prediction for its class is, relative to the mean of the new or the former
classes (gradient compensation, Eq. 3–6); and predictions are drawn to the labels whose entries for
former classes are what the model before the task said (relation distillation, Eq. 7 and 8).

- Both losses are binary cross-entropies over all classes, weighted by 1/2 each, and in a client's
  first task the first stands alone, as in the released code. The paper writes softmax and KL, for
  which the mixed labels are no distribution.
- Remembered are features: the backbone is frozen and images are not augmented. They are those
  nearest to the class's mean (the code herds, as iCaRL). A batch has as many remembered samples as
  new ones; the paper joins the sets.
- Tasks are announced; the paper notices them by the entropy of predictions.
- The model before the task is the global one at its start. The paper's proxy server, which chooses
  the best of several former models on images rebuilt from gradients, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.data import Batch, ClientData
from stforecast.federated.method import Task
from stforecast.federated.options import check_options
from stforecast.federated.payload import Payload
from stforecast.federated.population import Population
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.training import Training
from vision.methods.exemplars import draw, empty_memory, remember
from vision.methods.prompts import DEFAULTS, queried
from vision.methods.teacher import TaughtFedAvg
from vision.models.vit import backbone_of


@dataclass(frozen=True)
class GLFCOptions:
    """Settings of GLFC.

    Attributes:
        memory: samples that a client remembers, over all its classes (paper: 2000).
        relation: weight of the relation distillation in [0, 1]; the rest is the compensated loss's
            (released code: 0.5).
    """

    memory: int = 2000
    relation: float = 0.5

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_options(self, positive=("memory",), share=("relation",))


class GLFC(TaughtFedAvg):
    """GLFC on frozen features."""

    name = "glfc"
    summary = "rehearses former classes with compensated gradients, distils their relations"
    paper = "Dong et al., CVPR 2022"
    Options = GLFCOptions
    options: GLFCOptions
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        self.backbone = backbone_of(population, self.name)

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """No teacher and nothing to remember yet."""
        server = super().init(clients, sizes, seed)
        device = next(iter(clients.params.values())).device
        width = self.backbone.width
        clients.memory |= empty_memory(len(clients), self.options.memory, width, device)
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train on features; then remember the nearest to each class's mean."""
        data = queried(cohort, self.backbone)
        cohort.data = ClientData(data, cohort.data.sizes)
        upload = super().local_update(cohort, payload)
        classes = self.task.keys(data)
        remember(cohort.memory, data["query"], classes, self.task.n_keys)
        return upload

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """The compensated loss, and the relation distillation once there are former classes."""
        former, new = cohort.memory["former"], self.task.keys(batch)
        old_features, old, any_old = draw(cohort.memory, former, cohort.rand(new.shape[1]))
        features = torch.cat([batch["query"], old_features], dim=1)
        y = torch.cat([new, old], dim=1)
        counts = torch.cat([torch.ones_like(new), any_old[:, None].expand_as(old)], dim=1)
        logits = self.population.decode(cohort.state, features)
        compensated = compensated_loss(logits, y, former, counts)
        cohort.record("task_loss", compensated)
        with torch.no_grad():
            said = self.population.decode(self.teacher(cohort), features)
        related = relation_loss(logits, y, said, former, counts)
        share = self.options.relation * former.any(1)
        return (1 - share) * compensated + share * related


def compensated_loss(logits: Tensor, y: Tensor, former: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy weighted by each sample's gradient, relative to those of its kind (Eq. 3–6).

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
        former: `(clients, n_classes)`.
        counts: `(clients, batch)` 1, or 0 for a sample that does not count.

    Returns:
        `(clients,)`.
    """
    target = F.one_hot(y, logits.shape[-1]).to(logits.dtype)
    target = torch.where(former[:, None], teacher.sigmoid(), target)
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(-1)
    valid = counts.to(logits.dtype)
    return (valid * loss).sum(1) / valid.sum(1)
