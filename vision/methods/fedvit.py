"""FedViT: FedAvg of the head of a frozen transformer.

The baseline of that name in FedTA (Yu et al., CVPR 2025, arXiv 2412.18355, section 5.3): "all the
parameters of its feature extractor are frozen, and only the classification head is involved in
training and aggregation". The transformer is that of Dosovitskiy et al., ICLR 2021.

It is FedAvg on a frozen model with one difference: the cross-entropy is among the classes of the
client's present task, as in FedTA's related code; with `within_task=False` it is plain FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stforecast.federated.data import Batch
from stforecast.federated.method import Task
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.population import Population
from stforecast.federated.state import Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.methods.prompts import DEFAULTS, loss_among, present_classes
from vision.models.vit import backbone_of


@dataclass(frozen=True)
class FedViTOptions:
    """Settings of FedViT.

    Attributes:
        within_task: whether training predictions choose among the present task's classes only.
    """

    within_task: bool = True


class FedViT(FedAvg):
    """FedAvg of a head on frozen features."""

    name = "fedvit"
    summary = "averages a linear head on a frozen transformer"
    paper = "Yu et al., CVPR 2025"
    Options = FedViTOptions
    options: FedViTOptions
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        backbone_of(population, self.name)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss on frozen features."""
        features = self.population.encode(cohort.state, batch["x"])
        logits = self.population.decode(cohort.state, features)
        classes = present_classes(self, cohort) if self.options.within_task else None
        return loss_among(self, cohort, logits, batch, classes)
