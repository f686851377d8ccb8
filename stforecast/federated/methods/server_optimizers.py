"""FedAvgM, FedAdam and FedYogi: FedAvg whose server replaces the plain mean by an optimiser's step.

The clients train as in FedAvg: by the run's optimiser, where those of the papers have plain SGD.
Buffers (running statistics) are averaged without the server's optimiser.

FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, arXiv 1909.06335, section 4.2.

With Δw the mean change of the model over the round, weighted by samples, the server keeps a
velocity v ← β v + Δw and moves the model by η v. (The paper defines Δw with the opposite sign and
subtracts it.) For β = 0 and η = 1 this is FedAvg.

- In the long run the server moves η / (1-β) times as far as FedAvg's. The paper has η = 1 and tunes
  the clients' learning rate for each β; here either may be lowered.
- The paper's experiments use Nesterov momentum; this uses the plain momentum of its equation.

FedAdam and FedYogi: FedAvg with Adam or Yogi on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, arXiv 2003.00295, Algorithm 2.

With Δ the mean change of the model over the round, the server of FedAdam keeps
m ← β₁ m + (1-β₁) Δ and v ← β₂ v + (1-β₂) Δ², and moves each parameter by η m / (√v + τ). FedYogi
has v ← v - (1-β₂) Δ² sign(v - Δ²) instead: v changes by (1-β₂) Δ² in a round, never more. So if
small changes follow large ones, v decreases slowly, and the steps grow slowly.

- As in Algorithm 2, the moments have no bias correction: m starts at 0, v at τ². The paper requires
  v ≥ τ² at the start and gives no value.
- Algorithm 2 counts clients equally; Δ is weighted by samples here, as in FedAvg.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions, ShareBelowOne
from stforecast.federated.core.state import Clients, Participants, ServerState
from stforecast.federated.core.tensors import Params, Payload
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES


class ServerOptimizer(FedAvg):
    """FedAvg whose server treats the mean change of the parameters as a gradient.

    The server's moments are stored in its state as `MOMENT.NAME` and are never sent. Buffers
    (running statistics, counters) are averaged as in FedAvg, without the optimiser.
    """

    name = ""

    @abstractmethod
    def initial_moments(self) -> Mapping[str, float]:
        """Return the name of each moment and the initial value of its elements."""

    @abstractmethod
    def server_step(self, delta: Tensor, moments: Params) -> tuple[Tensor, Params]:
        """Return the step for a parameter's mean change `delta`, and its next moments."""

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg, with moments for each parameter."""
        server = super().init(clients, sizes, seed)
        trained = [name for name in server if name in clients.params]
        return server | {
            f"{moment}.{name}": torch.full_like(server[name], value)
            for moment, value in self.initial_moments().items()
            for name in trained
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the global model, without the moments."""
        return super().broadcast({name: server[name] for name in self.shared}, to)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Step from the last model along the mean change of each parameter."""
        after = super().aggregate(server, of, uploads)
        names = self.initial_moments()
        for name in self.shared:
            moments = {m: server[f"{m}.{name}"] for m in names if f"{m}.{name}" in server}
            if not moments:  # A buffer.
                continue
            step, moments = self.server_step(after[name] - server[name], moments)
            after[name] = server[name] + step
            after |= {f"{moment}.{name}": t for moment, t in moments.items()}
        return after


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
    attacked = Attacked(guards=RULES)
    Options = FedAvgMOptions
    options: FedAvgMOptions

    def initial_moments(self) -> Mapping[str, float]:
        """Return a velocity of 0."""
        return {"velocity": 0.0}

    def server_step(self, delta: Tensor, moments: Params) -> tuple[Tensor, Params]:
        """Return η v and v ← β v + Δw."""
        velocity = self.options.beta * moments["velocity"] + delta
        return self.options.server_lr * velocity, {"velocity": velocity}


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
    attacked = Attacked(guards=RULES)
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
        """Return the next mean square from v and Δ²: β₂ v + (1-β₂) Δ²."""
        return v.lerp(square, 1 - self.options.beta2)


class FedYogi(FedAdam):
    """FedAvg with Yogi on the server."""

    name = "fedyogi"
    summary = "FedAvg with Yogi on the server: Adam, but its steps grow slowly"
    attacked = Attacked(guards=RULES)

    def next_square(self, v: Tensor, square: Tensor) -> Tensor:
        """Return Yogi's v - (1-β₂) Δ² sign(v - Δ²)."""
        return v - (1 - self.options.beta2) * square * (v - square).sign()
