"""FedLwF: FedAvg with distillation from the model before the client's present task.

Li, Hoiem: Learning without Forgetting, IEEE TPAMI 2017, arXiv 1606.09282, Eq. 1–4; with FedAvg it
is the baseline of that name in FedTA (Yu et al., CVPR 2025) and TARGET (Zhang et al., ICCV 2023).

At the start of a stage a client keeps the received global model as its teacher. Its loss on the new
samples is the cross-entropy plus λ times the distance of its softened predictions for the classes
of its former stages from the teacher's. A client in its first stage has no teacher.

LwF has one head per task. Here there is one head for all classes; the distillation uses the logits
of the client's former classes, the cross-entropy uses all. The teacher predicts with its running
statistics and is not changed. It stays on the client, so nothing more is sent than in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Payload
from vision.methods.anchors import UNKNOWN
from vision.methods.generator import TaughtFedAvg


@dataclass(frozen=True)
class FedLwFOptions(CheckedOptions):
    """Settings of FedLwF.

    Attributes:
        distillation: weight λ of the distillation (paper: 1).
        temperature: temperature T of the softened predictions (paper: 2).
    """

    distillation: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 2.0


class FedLwF(TaughtFedAvg):
    """FedAvg with distillation from the model before the present stage."""

    name = "fedlwf"
    summary = "FedAvg that distils former classes from the model before the task"
    paper = "Li and Hoiem, TPAMI 2017"
    Options = FedLwFOptions
    options: FedLwFOptions

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the cross-entropy plus λ times the distillation (Eq. 4)."""
        features = self.population.encode(cohort.state, batch["x"])
        loss = self.task_loss(cohort, features, batch)
        former = cohort.memory["former"]
        if not self.options.distillation or not former.any():
            return loss
        student = self.population.decode(cohort.state, features)
        teacher = self.teach(cohort, batch["x"])
        kept = distillation(student, teacher, former, self.options.temperature)
        return loss + self.options.distillation * kept


def distillation(student: Tensor, teacher: Tensor, classes: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of softened predictions among some classes (LwF, Eq. 2 and 3).

    Logits are `(clients, batch, n_classes)`, divided by the temperature T. The loss `(clients,)` is
    the mean over the batch, 0 for a client without any of the classes.
    """
    out = ~classes[:, None]
    target = (teacher / temperature).masked_fill(out, UNKNOWN).softmax(-1)
    log_p = (student / temperature).masked_fill(out, UNKNOWN).log_softmax(-1)
    loss = -(target * log_p).masked_fill(out, 0.0).sum(-1).mean(1)
    return torch.where(classes.any(1), loss, 0.0)
