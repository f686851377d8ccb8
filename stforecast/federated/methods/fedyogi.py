"""FedYogi: FedAvg with Yogi on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, arXiv 2003.00295, Algorithm 2.

FedAdam, but v ← v - (1-β₂) Δ² sign(v - Δ²): v changes by (1-β₂) Δ² in a round, never more. So if
small changes follow large ones, v decreases slowly, and the steps grow slowly. The differences from
the paper are those of FedAdam, see there.
"""

from __future__ import annotations

from torch import Tensor

from stforecast.federated.methods.fedadam import FedAdam


class FedYogi(FedAdam):
    """FedAvg with Yogi on the server."""

    name = "fedyogi"
    summary = "FedAvg with Yogi on the server: Adam, but its steps grow slowly"
    paper = "Reddi et al., ICLR 2021"
    guards = FedAdam.guards

    def next_square(self, v: Tensor, square: Tensor) -> Tensor:
        """Return Yogi's v - (1-β₂) Δ² sign(v - Δ²)."""
        return v - (1 - self.options.beta2) * square * (v - square).sign()
