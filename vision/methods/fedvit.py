"""FedViT: FedAvg of the head of a frozen transformer.

The baseline of that name in FedTA (Yu et al., CVPR 2025, arXiv 2412.18355, section 5.3): "all the
parameters of its feature extractor are frozen, and only the classification head is involved in
training and aggregation". The transformer is that of Dosovitskiy et al., ICLR 2021.

It is FedAvg on a frozen model. By default the cross-entropy is among the classes of the client's
present task, as in FedTA's related code (`within_task`).
"""

from __future__ import annotations

from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.prompts import DEFAULTS
from vision.models.vit import backbone_of


class FedViT(FedAvg):
    """FedAvg of a head on frozen features."""

    name = "fedvit"
    summary = "averages a linear head on a frozen transformer"
    paper = "Yu et al., CVPR 2025"
    defaults = DEFAULTS

    def set_up(self) -> None:
        """Refuse a model without a frozen backbone."""
        backbone_of(self.population, self.name)
