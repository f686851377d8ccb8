"""FedViT: FedAvg of the head of a frozen transformer.

The baseline of that name in FedTA (Yu et al., CVPR 2025, arXiv 2412.18355, section 5.3): "all the
parameters of its feature extractor are frozen, and only the classification head is involved in
training and aggregation". The transformer is that of Dosovitskiy et al., ICLR 2021.

It is FedAvg on a frozen model. By default the cross-entropy is among the classes of the client's
present task, as in FedTA's related code (`within_task`).
"""

from __future__ import annotations

from typing import Any

from stforecast.federated.core.method import Task
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.prompts import DEFAULTS
from vision.models.vit import backbone_of


class FedViT(FedAvg):
    """FedAvg of a head on frozen features."""

    name = "fedvit"
    summary = "averages a linear head on a frozen transformer"
    paper = "Yu et al., CVPR 2025"
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        backbone_of(population, self.name)
