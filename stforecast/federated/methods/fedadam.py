"""FedAdam: FedAvg with Adam on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, arXiv 2003.00295, Algorithm 2.

The clients train as in FedAvg. With Δ the mean change of the model over the round, the server keeps
m ← β₁ m + (1-β₁) Δ and v ← β₂ v + (1-β₂) Δ², and moves each parameter by η m / (√v + τ).

- As in Algorithm 2, the moments have no bias correction: m starts at 0, v at τ². The paper requires
  v ≥ τ² at the start and gives no value.
- Algorithm 2 counts clients equally; Δ is weighted by samples here, as in FedAvg.
- The paper's clients train by plain SGD; here they have the run's optimiser.
- Buffers (running statistics) are averaged; no moments are kept for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import PositiveFloat
from torch import Tensor

from stforecast.federated.methods.server_optimizers import ServerOptimizer
from stforecast.federated.options import CheckedOptions, ShareBelowOne
from stforecast.federated.population import Params


@dataclass(frozen=True)
class FedAdamOptions(CheckedOptions):
    """Settings of FedAdam and FedYogi.

    Attributes:
        server_lr: learning rate η of the server: a parameter moves by up to about 2 η in each of
            the first tens of rounds, and by about η later. The paper tunes it for each task; 0.01
            was best among 0.001 to 0.1 on hourly Milan data, and takes some 100 rounds.
        beta1: share β₁ of the mean m that is kept from round to round (paper: 0.9).
        beta2: share β₂ of the squares' mean v that is kept (paper: 0.99).
        tau: constant τ added to √v; the larger, the less adaptive (paper: 0.001).
    """

    server_lr: PositiveFloat = 0.01
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.99
    tau: PositiveFloat = 1e-3


class FedAdam(ServerOptimizer):
    """FedAvg with Adam on the server."""

    name = "fedadam"
    summary = "FedAvg with Adam on the server"
    paper = "Reddi et al., ICLR 2021"
    guards = ServerOptimizer.guards
    Options = FedAdamOptions
    options: FedAdamOptions

    def initial_moments(self) -> Mapping[str, float]:
        """Return the initial mean of changes, 0, and of their squares, τ²."""
        return {"mean": 0.0, "square": self.options.tau**2}

    def server_step(self, delta: Tensor, moments: Params) -> tuple[Tensor, Params]:
        """Return η m / (√v + τ) and the next moments."""
        mean = moments["mean"].lerp(delta, 1 - self.options.beta1)
        square = self.next_square(moments["square"], delta.square())
        step = self.options.server_lr * mean / (square.sqrt() + self.options.tau)
        return step, {"mean": mean, "square": square}

    def next_square(self, v: Tensor, square: Tensor) -> Tensor:
        """Return β₂ v + (1-β₂) Δ².

        Args:
            v: v of the last round.
            square: Δ², of the same shape.
        """
        return v.lerp(square, 1 - self.options.beta2)
