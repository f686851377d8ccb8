"""How a client trains: settings of a run, and the optimiser over stacked parameters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.options import check_options
from stforecast.federated.population import Params

Moments = dict[str, Params]
"""Name of an optimiser's moment to one tensor for each parameter, `(clients, …)`."""

STEPS = "steps"
"""Among the moments of Adam: how often each client has stepped a parameter, `(clients,)`."""


@dataclass(frozen=True)
class Training:
    """Settings that all methods share. Defaults are FUELS's (appendix D.1).

    Attributes:
        rounds: communication rounds, at least 1.
        epochs: local epochs a round.
        batch_size: samples a batch; FUELS needs it equal to the period.
        lr: learning rate, in the first round.
        schedule: `constant`, or `cosine`: from lr down to 0 over the rounds by half a cosine.
        optimizer: `adam` or `sgd`; its state stays with each client from round to round.
        momentum: momentum of `sgd`.
        weight_decay: L2 penalty added to the gradient.
        participation: share α of the clients that take part in a round, in (0, 1].
        full_start: all clients take part in the first round (FUELS, section 3.3.2).
        shuffle: draw batches in random order instead of in time.
        drop_last: leave out an epoch's last batch where it is not full; the paper's slots need it.
        patience: stop after this many rounds without a better validation loss; 0 never stops.
        mixed_precision: `no`, or `bf16`: models multiply matrices in bfloat16, as torch's autocast
            has it; parameters, losses and uploads stay in single precision. Faster where the
            processor multiplies bfloat16.
    """

    rounds: int = 200
    epochs: int = 1
    batch_size: int = 24
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    participation: float = 1.0
    full_start: bool = True
    shuffle: bool = False
    drop_last: bool = True
    patience: int = 0
    mixed_precision: Literal["no", "bf16"] = "no"

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        check_options(
            self,
            positive=("rounds", "epochs", "batch_size", "lr"),
            not_negative=("momentum", "weight_decay", "patience"),
        )
        if not 0 < self.participation <= 1:
            raise InputError(f"participation is {self.participation}; it must be in (0, 1]")

    def lr_in(self, round: int) -> float:
        """Learning rate of a round, counted from 0."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * round / self.rounds)) / 2


class Optimizer:
    """Steps the stacked parameters of one cohort; each client is as if optimised alone.

    The arithmetic is elementwise, so torch's fused steps over `(clients, …)` tensors are exact for
    every client, provided that the clients of a cohort have stepped a parameter equally often. They
    are called without the classes of `torch.optim`, whose bookkeeping takes longer.

    Args:
        params: leaf tensors `(clients, …)` that require gradients; changed in place.
        moments: the optimiser's state for them; changed in place.
        training: learning rate and the like.
        round: index of the round, from 0.
    """

    def __init__(
        self, params: Params, moments: Moments, training: Training, round: int = 0
    ) -> None:
        self._params, self._moments = params, moments
        self._training = dataclasses.replace(training, lr=training.lr_in(round))
        self._step = STEP_OF[training.optimizer]

    def step(self, losses: Tensor) -> Params:
        """One step down the gradient of the sum of `losses`, `(clients,)`.

        A parameter that the losses do not reach stays as it is, and so do its moments.

        Returns:
            The gradient of each other parameter.
        """
        trained = {name: p for name, p in self._params.items() if p.requires_grad}
        found = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        grads = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
        if not grads:
            return grads
        params = [trained[name] for name in grads]
        moments = {m: [tensors[name] for name in grads] for m, tensors in self._moments.items()}
        with torch.no_grad():
            alike = [_laid_out_as(p, g) for p, g in zip(params, grads.values(), strict=True)]
            self._step(params, alike, moments, self._training)
        return grads


def _laid_out_as(p: Tensor, g: Tensor) -> Tensor:
    """A gradient whose values lie in the order of the parameter's, as fused steps need it."""
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)


def moment_names(training: Training) -> tuple[str, ...]:
    """Names of the moments that the optimiser keeps for each parameter."""
    if training.optimizer == "adam":
        return ("exp_avg", "exp_avg_sq", STEPS)
    return ("momentum_buffer",) if training.momentum else ()


def zero_moments(
    params: Mapping[str, Tensor],
    training: Training,
    zeros: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> Moments:
    """Moments before the first step.

    Args:
        params: the parameters, `(clients, …)`.
        training: the optimiser.
        zeros: gives zeros like a parameter.
    """
    return {
        moment: {
            name: p.new_zeros(len(p)) if moment == STEPS else zeros(p) for name, p in params.items()
        }
        for moment in moment_names(training)
    }


Lists = dict[str, list[Tensor]]
Step = Callable[[list[Tensor], list[Tensor], Lists, Training], None]
"""Changes parameters in place, by their gradients and the moments of each."""


def _adam(params: list[Tensor], grads: list[Tensor], moments: Lists, training: Training) -> None:
    torch._foreach_add_(moments[STEPS], 1)
    torch._fused_adam_(
        params,
        grads,
        moments["exp_avg"],
        moments["exp_avg_sq"],
        [],
        [steps[0] for steps in moments[STEPS]],
        lr=training.lr,
        beta1=0.9,
        beta2=0.999,
        weight_decay=training.weight_decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def _sgd(params: list[Tensor], grads: list[Tensor], moments: Lists, training: Training) -> None:
    torch._fused_sgd_(
        params,
        grads,
        moments.get("momentum_buffer", []),
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


STEP_OF: dict[str, Step] = {"adam": _adam, "sgd": _sgd}
