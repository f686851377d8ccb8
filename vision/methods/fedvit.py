"""FedViT: FedAvg of the head of a frozen transformer.

The baseline of that name in FedTA (Yu et al., CVPR 2025, arXiv 2412.18355, section 5.3): "all the
parameters of its feature extractor are frozen, and only the classification head is involved in
training and aggregation". The transformer is as in Dosovitskiy et al., ICLR 2021.

It is FedAvg on a frozen model. By default the cross-entropy is among the classes of the client's
present task, as in FedTA's related code (`within_task`).

With `standardise`, which is not in the paper, the head gets features standardised as in our
FedTA are: clients send the mean and the deviation of their features in the first round, in which
they train with their own, and get the common ones from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Payload
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods import anchors, prompts
from vision.models.vit import backbone_of

MOMENTS = "feature.moments"
"""Moments of the frozen features, for their standardisation."""


@dataclass(frozen=True)
class FedViTOptions(CheckedOptions):
    """Settings of FedViT.

    Attributes:
        standardise: whether the head gets standardised features; the paper uses them as they are.
    """

    standardise: bool = False


class FedViT(FedAvg):
    """FedAvg of a head on frozen features."""

    name = "fedvit"
    summary = "averages a linear head on a frozen transformer"
    paper = "Yu et al., CVPR 2025"
    defaults = prompts.DEFAULTS
    Options = FedViTOptions
    options: FedViTOptions

    def set_up(self) -> None:
        """Find the backbone; moments of clients cannot be added up."""
        self.backbone = backbone_of(self.population, self.name)
        if self.options.standardise:
            self.sends = Upload()

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the common head; mean 0 and deviation 1 until clients have sent their moments."""
        server = super().init(clients, sizes, seed)
        if not self.options.standardise:
            return server
        moments = torch.zeros(2, self.backbone.width, device=clients.device)
        return {**server, MOMENTS: moments, "described": torch.zeros_like(moments[0, 0]).bool()}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the head on features as they are, or standardised."""
        if not self.options.standardise:
            return super().local_update(cohort, payload)
        self.receive(cohort, payload)
        data, sent = prompts.queried(cohort, self.backbone), {}
        if not payload["described"].any():
            sent = {MOMENTS: anchors.moments_of(data["query"])}
        features = anchors.standardised(data["query"], {**payload, **sent}[MOMENTS])
        data = {n: t for n, t in data.items() if n not in ("x", "query")} | {"feature": features}
        loss = lambda batch: self.task_loss(cohort, batch["feature"], batch)  # noqa: E731
        prompts.train_parts(cohort, (prompts.HEAD,), None, data, loss)
        return {**self.upload(cohort), **sent}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the heads, and pool the moments of the first round."""
        model = super().aggregate(server, of, {name: uploads[name] for name in self.shared})
        if MOMENTS in uploads:
            model[MOMENTS] = anchors.pooled_moments(uploads[MOMENTS], of.sizes)
            model["described"] = torch.ones_like(server["described"])
        return {**server, **model}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the head on features as they are, or standardised."""
        features = self.backbone.query(x)
        if self.options.standardise:
            features = anchors.standardised(features, payload[MOMENTS])
        return self.population.decode({**state, **payload}, features)
