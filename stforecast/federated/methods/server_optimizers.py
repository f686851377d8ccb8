"""Base of methods whose server replaces the plain mean by an optimiser's step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from stforecast.federated.method import Participants
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.population import Params
from stforecast.federated.state import Clients
from stforecast.federated.uploads.payload import Payload


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
        """Return the server's step and its next moments.

        Args:
            delta: mean change of one parameter over the round, `(…)`.
            moments: moments by name, each of the same shape.
        """

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Initialise as FedAvg, with moments for each parameter."""
        server = super().init(clients, sizes, seed)
        trained = [name for name in server if name in clients.params]
        return server | {
            f"{moment}.{name}": torch.full_like(server[name], value)
            for moment, value in self.initial_moments().items()
            for name in trained
        }

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Return the global model, without the moments."""
        return super().broadcast({name: server[name] for name in self.shared}, to)

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
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
