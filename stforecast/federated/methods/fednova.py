"""FedNova: normalised averaging, so that more local steps do not give a client more weight.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020, arXiv 2007.07481, sections 4 and 5.

A local optimiser that is linear in the gradients moves client i by `-η Σ_k a_ik g_ik`. In the
objective that FedAvg minimises, client i therefore has weight p_i ‖a_i‖₁ instead of p_i. Here a
client sends the direction `η d_i = η Σ_k a_ik g_ik / ‖a_i‖₁` and the norm ‖a_i‖₁ separately, and
the server takes `τ_eff = Σ_i p_i ‖a_i‖₁` steps along the mean of the directions, `Σ_i p_i η d_i`.

- SGD: a_i = (1, …, 1), so ‖a_i‖₁ is the number τ of local steps.
- SGD with momentum ρ: a_ik = (1 - ρ^(τ-k)) / (1 - ρ), k = 0 … τ-1.
- SGD with the proximal term μ/2 ‖w - w^t‖²: a_ik = (1 - ημ)^(τ-1-k).
- Adam is not linear in the gradients; ‖a_i‖₁ is taken as the number of local steps.

The released code empties the momentum buffer after every round, and the formula above assumes that:
`--optimizer-state round`, the default for images. Where clients keep their momentum buffers, as
forecasters do by default, ‖a_i‖₁ includes the weights of the gradients in it. The paper leaves
τ_eff free; with this choice, clients that do equal work give FedAvg (the code takes the mean number
of steps if there is a proximal term). The weights p_i are shares of the participants' samples.
Buffers are averaged as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Payload, with_axes
from stforecast.federated.methods.fedprox import FedProx, FedProxOptions
from stforecast.federated.uploads.robust import RULES

DIRECTION = "direction."
"""Prefix of an upload that is a direction, not a value."""


@dataclass(frozen=True)
class FedNovaOptions(FedProxOptions):
    """Settings of FedNova.

    Attributes:
        mu: weight μ of the proximal term of FedProx; 0, without the term, is the paper's main
            setting and the default of its released code.
    """

    mu: NonNegativeFloat = 0.0


class FedNova(FedProx):
    """FedProx, which is FedAvg for μ = 0, with normalised averaging."""

    name = "fednova"
    summary = "FedAvg that normalises updates by the clients' local steps"
    paper = "Wang et al., NeurIPS 2020"
    attacked = Attacked(guards=RULES)
    Options = FedNovaOptions
    options: FedNovaOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg; clients keep the weight of gradients in their momentum buffer."""
        clients.memory["momentum"] = torch.zeros(len(clients), device=clients.device)
        return super().init(clients, sizes, seed)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train locally; return `η d_i`, `‖a_i‖₁` `(clients, 1)` and the buffers."""
        fresh = cohort.fresh()
        momentum = cohort.memory["momentum"]
        momentum.masked_fill_(fresh.to(momentum.device), 0)
        model = super().local_update(cohort, payload)
        norm = self.norm(cohort)
        upload = {"norm": norm[:, None]}
        for name, t in model.items():
            if name in cohort.params:
                moved = payload[name] - t
                upload[DIRECTION + name] = moved / with_axes(norm, t.ndim)
            else:
                upload[name] = t
        return upload

    def norm(self, cohort: Cohort) -> Tensor:
        """Return ‖a_i‖₁ of the round, `(clients,)`.

        This is the distance, in units of η, that the optimiser moves if all gradients are 1.
        """
        training = self.training
        linear = training.optimizer == "sgd"
        lr = training.lr_in(cohort.round)
        rho, pull = (training.momentum, lr * self.options.mu) if linear else (0.0, 0.0)
        velocity = cohort.memory["momentum"]
        moved = torch.zeros_like(velocity)
        for _ in cohort.records["loss"]:
            velocity.mul_(rho).add_(1 - pull * moved)
            moved += velocity
        return moved

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return `w - τ_eff Σ_i p_i η d_i` for parameters, and the means of the buffers."""
        mean = super().aggregate(server, of, uploads)
        tau_eff = mean["norm"].squeeze(0)
        return {
            name: w - tau_eff * mean[DIRECTION + name] if DIRECTION + name in mean else mean[name]
            for name, w in server.items()
        }
