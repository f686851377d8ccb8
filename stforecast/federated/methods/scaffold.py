"""SCAFFOLD: control variates take out of each local step what sets the client apart.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, arXiv 1910.06378, Algorithm 1.

Client i keeps a control c_i, an estimate of its gradient; the server keeps c, the mean of all N. A
local step is y ← y - η_l (g_i(y) - c_i + c) (line 10). After the round, c_i is one of (line 12)

- II: c_i - c + (x - y) / (K η_l), where K is the number of local steps,
- I: g_i(x), the gradient at the received model, for which the client reads its data once more.

It sends y and the change of c_i. The server moves x by η_g times the mean of y - x over the clients
S that took part, and c by |S| / N times the mean change (lines 16 and 17). So twice as much travels
as in FedAvg, both ways. Controls start at 0: with η_g = 1 the first round of clients of equal size
is FedAvg's.

- Option II is computed as the mean of the g_i(y) over the local steps. For plain SGD that is the
  same number, with any schedule of the learning rate. It stays an estimate of the gradient with
  momentum, Adam or weight decay, where (x - y) / (K η_l) would not be one.
- The paper's analysis is of plain SGD; with another optimiser, its rates say nothing. The
  correction is then a part of the gradient that the optimiser sees. A model at which the mean
  gradient is 0 and each c_i is the client's gradient remains at rest. Weight decay is the same for
  all clients and is not part of the controls.
- Plain SGD wants a smaller learning rate than FedAvg's: on Milan's hours FedAvg bore 0.1, and this
  diverged at 0.1 and not at 0.05. Adam, the default for forecasts, needed no other rate.
- The server counts clients equally, as in the paper: they share the plain mean of their losses.
- g_i(x) is the mean over the batches of one pass, which leaves running statistics as they are.
- Running statistics are averaged; they have no controls. Neither has what a client never sends.
- c is the mean of the c_i only where the server reads what the clients sent. An upload that is
  lost, clipped, noised or quantised, or replaced by a robust centre, leaves c behind by that
  change, and noise adds up from round to round.
- N counts clients without samples in a stage, and their c_i of an earlier stage stay in c.

The reported loss is f_i(y) + ⟨c - c_i, y - x⟩, the local objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from stforecast.federated.algebra import plain_mean, slope, without_prefix
from stforecast.federated.data import Batch
from stforecast.federated.method import Participants
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.options import CheckedOptions
from stforecast.federated.population import Params
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.uploads.payload import Payload

CONTROL = "control."
"""Prefix of the names of controls: c_i in a client's memory, c in the server's state."""

N_CLIENTS = "n_clients"


@dataclass(frozen=True)
class ScaffoldOptions(CheckedOptions):
    """Settings of SCAFFOLD.

    Attributes:
        control_option: how a control is renewed: II, by the mean gradient of the local steps (the
            paper's experiments), or I, by the gradient at the received model.
        server_lr: how far η_g the server goes towards the clients' mean (paper: 1).
    """

    control_option: Literal["I", "II"] = "II"
    server_lr: PositiveFloat = 1.0


class Scaffold(FedAvg):
    """SCAFFOLD. The functions stand in the order of Algorithm 1."""

    name = "scaffold"
    summary = "FedAvg whose local steps are corrected by control variates"
    paper = "Karimireddy et al., ICML 2020"
    Options = ScaffoldOptions
    options: ScaffoldOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """As FedAvg; all controls are 0."""
        server = super().init(clients, sizes, seed)
        controlled = [name for name in self.shared if name in clients.params]
        for name in controlled:
            clients.memory[CONTROL + name] = torch.zeros_like(clients.params[name])
        zeros = {CONTROL + name: torch.zeros_like(server[name]) for name in controlled}
        return {**server, **zeros, N_CLIENTS: torch.tensor(len(sizes))}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """The global model x and the control c."""
        return super().broadcast({n: t for n, t in server.items() if n != N_CLIENTS}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Lines 7 to 14: corrected local steps, then the new control."""
        self.receive(cohort, payload)
        own, common = controls(cohort.memory), controls(payload)
        correction = {name: common[name] - own[name] for name in own}
        cohort.scratch["correction"] = correction
        if self.options.control_option == "I":
            renewed = self.gradient_here(cohort)
            self.local_steps(cohort, payload)
        else:
            mean = self.local_steps(cohort, payload)
            renewed = {name: mean[name] - correction[name] for name in own}
        cohort.scratch["changes"] = {name: renewed[name] - own[name] for name in own}
        for name, t in renewed.items():
            own[name].copy_(t)
        return self.upload(cohort)

    def local_steps(self, cohort: Cohort, payload: Payload) -> Params:
        """Line 10, K times; returns the mean of the corrected gradients."""
        gradients = (
            cohort.step(self.local_loss(cohort, batch, payload)) for batch in cohort.batches()
        )
        return mean_of(gradients, like=cohort.scratch["correction"])

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """f_i(y) + ⟨c - c_i, y - x⟩, whose gradient is that of line 10."""
        loss = super().local_loss(cohort, batch, payload)
        return loss + slope(cohort.scratch["correction"], cohort.params, payload)

    def gradient_here(self, cohort: Cohort) -> Params:
        """g_i at the cohort's parameters: the mean over the batches of one pass."""
        buffers = {name: t.clone() for name, t in cohort.buffers.items()}
        correction = cohort.scratch["correction"]
        params = {name: cohort.params[name] for name in correction}

        def gradients() -> Iterator[Params]:
            for batch in cohort.batches(epochs=1):
                losses = self.loss_of({**cohort.params, **buffers}, batch)
                found = torch.autograd.grad(
                    losses.sum(), list(params.values()), materialize_grads=True
                )
                yield dict(zip(params, found, strict=True))

        return mean_of(gradients(), like=correction)

    def upload(self, cohort: Cohort) -> Payload:
        """The trained model y and the change of the control."""
        changes = {CONTROL + name: t for name, t in cohort.scratch["changes"].items()}
        return {**super().upload(cohort), **changes}

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Lines 16 and 17: x + η_g mean(y - x) and c + |S| / N mean(change)."""
        mean = {name: plain_mean(t) for name, t in uploads.items()}
        share = len(of.ids) / server[N_CLIENTS].item()
        for name, change in controls(mean).items():
            mean[name] = torch.lerp(server[name], mean[name], self.options.server_lr)
            mean[CONTROL + name] = server[CONTROL + name] + share * change
        return {**mean, N_CLIENTS: server[N_CLIENTS]}


def controls(tensors: Mapping[str, Tensor]) -> Params:
    """The controls among `tensors`, under the names of their parameters."""
    return without_prefix(tensors, CONTROL)


def mean_of(gradients: Iterable[Params], like: Params) -> Params:
    """Mean of one or more gradients; one that is missing counts as 0.

    Args:
        gradients: of each step, by the parameters' names.
        like: tensors of the names and shapes to return.
    """
    total, count = {name: torch.zeros_like(t) for name, t in like.items()}, 0
    for found in gradients:
        count += 1
        for name, t in total.items():
            if name in found:
                t += found[name]
    return {name: t / count for name, t in total.items()}
