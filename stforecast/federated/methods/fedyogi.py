"""FedYogi: FedAvg whose server takes Yogi's steps.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, arXiv 2003.00295, Algorithm 2.

FedAdam, but v ← v - (1-β₂) Δ² sign(v - Δ²): v changes by (1-β₂) Δ² in a round, never more. So after
large changes it comes down slowly where the changes are small, and steps do not grow all at once.
All that FedAdam's file says of departures from the paper holds here.
"""

from __future__ import annotations

from torch import Tensor

from stforecast.federated.methods.fedadam import FedAdam


class FedYogi(FedAdam):
    """FedAvg with Yogi on the server."""

    name = "fedyogi"
    summary = "FedAvg with Yogi on the server: Adam, but its steps grow slowly"
    paper = "Reddi et al., ICLR 2021"

    def next_square(self, v: Tensor, square: Tensor) -> Tensor:
        """Yogi's: v - (1-β₂) Δ² sign(v - Δ²)."""
        return v - (1 - self.options.beta2) * square * (v - square).sign()
