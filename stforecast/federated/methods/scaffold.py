"""SCAFFOLD: control variates correct each local step for the client's drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, arXiv 1910.06378, Algorithm 1.

Client i keeps a control c_i, an estimate of its gradient; the server keeps c, the mean of all N. A
local step is y ← y - η_l (g_i(y) - c_i + c) (line 10). After the round, c_i is one of (line 12)

- II: c_i - c + (x - y) / (K η_l), where K is the number of local steps,
- I: g_i(x), the gradient at the received model, for which the client reads its data once more.

It sends y and the change of c_i. The server moves x by η_g times the mean of y - x over the
participants S, and c by |S| / N times the mean change (lines 16 and 17). So messages are twice as
large as in FedAvg, in both directions. Controls start at 0: with η_g = 1 and clients of equal size,
the first round is FedAvg's.

- Option II is computed as the mean of the g_i(y) over the local steps. For plain SGD that is the
  same number, with any schedule of the learning rate. With momentum, Adam or weight decay it is
  still an estimate of the gradient, while (x - y) / (K η_l) is not.
- The paper analyses plain SGD; its convergence rates do not hold for other optimisers. The
  correction is then part of the optimiser's gradient. A model at which the mean gradient is 0 and
  each c_i is the client's gradient is a fixed point. Weight decay is the same for all clients and
  is not part of the controls.
- Plain SGD needs a smaller learning rate than FedAvg's: on hourly Milan data FedAvg was stable at
  0.1; this diverged at 0.1 but not at 0.05. Adam, the default for forecasts, needed no other rate.
- The server counts clients equally, as in the paper: the objective is the plain mean of their
  losses.
- g_i(x) is the mean over the batches of one pass, which does not change running statistics.
- Running statistics are averaged and have no controls. Neither do parameters that a client never
  sends.
- c is the mean of the c_i only if the server receives the uploads unchanged. An upload that is
  lost, clipped, noised, quantised or replaced by a robust aggregate makes c differ from that mean
  by the change, and noise accumulates over the rounds.
- N includes clients without samples in a stage; their c_i of an earlier stage stay in c.

The reported loss is f_i(y) + ⟨c - c_i, y - x⟩, the local objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, linear_term, without_prefix
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES

CONTROL = "control."
"""Prefix of the names of controls: c_i in a client's memory, c in the server's state."""

N_CLIENTS = "n_clients"


@dataclass(frozen=True)
class ScaffoldOptions(CheckedOptions):
    """Settings of SCAFFOLD.

    Attributes:
        control_option: new value of a control: II, the mean gradient of the local steps (the
            paper's experiments), or I, the gradient at the received model.
        server_lr: share η_g of the way to the clients' mean that the server moves (paper: 1).
    """

    control_option: Literal["I", "II"] = "II"
    server_lr: PositiveFloat = 1.0


class Scaffold(FedAvg):
    """SCAFFOLD. The methods follow the order of Algorithm 1."""

    name = "scaffold"
    summary = "FedAvg whose local steps are corrected by control variates"
    paper = "Karimireddy et al., ICML 2020"
    attacked = Attacked(guards=RULES)
    sends = Upload(sums="clients")
    Options = ScaffoldOptions
    options: ScaffoldOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg, with all controls at 0."""
        server = super().init(clients, sizes, seed)
        controlled = [name for name in self.shared if name in clients.params]
        for name in controlled:
            clients.memory[CONTROL + name] = torch.zeros_like(clients.params[name])
        zeros = {CONTROL + name: torch.zeros_like(server[name]) for name in controlled}
        return {**server, **zeros, N_CLIENTS: torch.tensor(len(sizes))}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the global model x and the control c."""
        return super().broadcast({n: t for n, t in server.items() if n != N_CLIENTS}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run lines 7 to 14: corrected local steps, then the new control."""
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
        """Run line 10 K times; return the mean of the corrected gradients."""
        gradients = (
            cohort.step(self.local_loss(cohort, batch, payload)) for batch in cohort.batches()
        )
        return mean_gradient(gradients, like=cohort.scratch["correction"])

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return f_i(y) + ⟨c - c_i, y - x⟩, whose gradient is that of line 10."""
        loss = super().local_loss(cohort, batch, payload)
        return loss + linear_term(cohort.scratch["correction"], cohort.params, payload)

    def gradient_here(self, cohort: Cohort) -> Params:
        """Return g_i at the cohort's parameters: the mean over the batches of one pass."""
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

        return mean_gradient(gradients(), like=correction)

    def upload(self, cohort: Cohort) -> Payload:
        """Return the trained model y and the change of the control."""
        changes = {CONTROL + name: t for name, t in cohort.scratch["changes"].items()}
        return {**super().upload(cohort), **changes}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return x + η_g mean(y - x) and c + |S| / N mean(change) (lines 16 and 17)."""
        mean = super().aggregate(server, of, uploads)
        share = len(of.ids) / server[N_CLIENTS].item()
        for name, change in controls(mean).items():
            mean[name] = torch.lerp(server[name], mean[name], self.options.server_lr)
            mean[CONTROL + name] = server[CONTROL + name] + share * change
        return {**mean, N_CLIENTS: server[N_CLIENTS]}


def controls(tensors: Mapping[str, Tensor]) -> Params:
    """Return the controls among `tensors`, under the names of their parameters."""
    return without_prefix(tensors, CONTROL)


def mean_gradient(gradients: Iterable[Params], like: Params) -> Params:
    """Return the mean gradient of several steps for each name in `like`; a missing one is 0."""
    total, count = {name: torch.zeros_like(t) for name, t in like.items()}, 0
    for found in gradients:
        count += 1
        for name, t in total.items():
            if name in found:
                t += found[name]
    return {name: t / count for name, t in total.items()}
