"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, arXiv 1909.06335, section 4.2.

The clients train as in FedAvg. With Δw the mean change of the model over the round, weighted by
samples, the server keeps a velocity v ← β v + Δw and moves the model by η v. (The paper defines Δw
with the opposite sign and subtracts it.) For β = 0 and η = 1 this is FedAvg.

- In the long run the server moves η / (1-β) times as far as FedAvg's. The paper has η = 1 and tunes
  the clients' learning rate for each β; here either may be lowered.
- The paper's experiments use Nesterov momentum; this uses the plain momentum of its equation.
- The paper's clients train by plain SGD; here they have the run's optimiser.
- Buffers (running statistics) are averaged; they have no velocity.
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
class FedAvgMOptions(CheckedOptions):
    """Settings of FedAvgM.

    Attributes:
        beta: share β of the velocity that is kept from round to round; 0 is FedAvg. The paper tries
            0, 0.7, 0.9, 0.97, 0.99 and 0.997 with partial participation. With full participation,
            0.7 and more overshot on hourly Milan data, with Adam and with SGD.
        server_lr: learning rate η of the server along the velocity (paper: 1).
    """

    beta: ShareBelowOne = 0.5
    server_lr: PositiveFloat = 1.0


class FedAvgM(ServerOptimizer):
    """FedAvg whose server keeps a velocity."""

    name = "fedavgm"
    summary = "FedAvg with momentum on the server"
    paper = "Hsu et al., arXiv 2019"
    guards = ServerOptimizer.guards
    Options = FedAvgMOptions
    options: FedAvgMOptions

    def initial_moments(self) -> Mapping[str, float]:
        """Return a velocity of 0."""
        return {"velocity": 0.0}

    def server_step(self, delta: Tensor, moments: Params) -> tuple[Tensor, Params]:
        """Return η v and v ← β v + Δw."""
        velocity = self.options.beta * moments["velocity"] + delta
        return self.options.server_lr * velocity, {"velocity": velocity}
