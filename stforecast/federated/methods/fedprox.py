"""FedProx: FedAvg with a proximal term that keeps clients near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, arXiv 1812.06127, Eq. 2 and Algorithm 2.

A client minimises `h_k(w; w^t) = F_k(w) + μ/2 ‖w - w^t‖²` to a γ-inexact solution (Definition 2);
here it trains for the run's local epochs. Buffers (running statistics) have no proximal term and
are averaged as in FedAvg. With Adam the term is part of the gradient.

Algorithm 2 draws clients by their share of the samples and counts them equally; the paper's
experiments (section 5.1) and the released code draw uniformly and weight by samples, as this does.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Payload, squared_distance
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class FedProxOptions(CheckedOptions):
    """Settings of FedProx.

    Attributes:
        mu: weight μ of the proximal term; 0 is FedAvg. The paper tries 0.001, 0.01, 0.1 and 1 and
            keeps 0.001 and 0.01 for its two recurrent networks, 1 elsewhere.
    """

    mu: NonNegativeFloat = 0.01


class FedProx(FedAvg):
    """FedAvg with the local objective of Eq. 2."""

    name = "fedprox"
    summary = "FedAvg with a proximal term that holds clients near the global model"
    paper = "Li et al., MLSys 2020"
    attacked = Attacked(guards=RULES)
    Options = FedProxOptions
    options: FedProxOptions

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `h_k` of each client, `(clients,)` (Eq. 2)."""
        loss = super().local_loss(cohort, batch, payload)
        if self.options.mu == 0:
            return loss
        return loss + self.options.mu / 2 * squared_distance(cohort.params, payload)
