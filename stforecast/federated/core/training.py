"""Training of clients: settings of a run, and the optimiser over stacked parameters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.options import (
    CheckedOptions,
    PositiveShare,
    ReadIf,
    Share,
    ShareBelowOne,
)
from stforecast.federated.core.tensors import Params, client_sums, with_axes
from stforecast.federated.kernels.functions import AdamKernel

Moments = dict[str, Params]
"""Name of an optimiser's moment to a tensor `(clients, …)` for each parameter."""

STEPS = "steps"
"""Name of Adam's step counts, `(clients,)` for each parameter."""

Lists = dict[str, list[Tensor]]
"""Name of an optimiser's moment to a tensor for each of some parameters."""

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Adam's settings of Kingma and Ba, ICLR 2015, Algorithm 1."""

SLOW = frozenset({"slow_share", "slow_rounds", "mixing", "staleness", "hinge"})
"""Names of the settings of simulated slow clients."""

_SLOW = ReadIf("slow_share is above 0", lambda s: s["slow_share"] > 0)
_STALE = ReadIf("slow_share or mixing is above 0", lambda s: s["slow_share"] > 0 or s["mixing"] > 0)


@dataclass(frozen=True)
class Training(CheckedOptions):
    """Settings that all methods share. Defaults are FUELS's (appendix D.1).

    Attributes:
        rounds: communication rounds.
        epochs: local epochs per round.
        batch_size: samples per batch. A sample of a forecaster is a time, with all cells of the
            client; FUELS needs as many as the period has steps.
        lr: learning rate in the first round.
        schedule: `constant`, or `cosine`: from lr down to 0 over the rounds by half a cosine.
        optimizer: `adam` or `sgd`.
        optimizer_state: a client's moments between rounds: `keep` them, reset them at the start of
            every `round`, or at the start of every `stage` of a task stream.
        momentum: momentum of `sgd`.
        weight_decay: L2 penalty added to the gradient.
        clip_gradients: largest L2 norm of the gradient of a client's model in a step; longer
            gradients are scaled down. 0 never clips. A client's second model is clipped separately.
        participation: share α of the clients that take part in a round.
        full_start: all clients take part in the first round (FUELS, section 3.3.2).
        slow_share: share of simulated slow clients, for which the server does not wait: their
            uploads arrive later (FedBuff); 0 waits for all. Methods that average models only. On
            nodes it is the share of nodes for which a round does not wait.
        slow_rounds: rounds that a simulated slow client takes.
        mixing: weight α with which the server mixes each upload into its model, one after another
            (FedAsync); 0 averages the uploads of a round. Methods that average models only.
        staleness: exponent a of the weight (1 + τ)^-a of an upload that began τ rounds ago, or
            τ uploads ago if each is mixed.
        hinge: delay b up to which the weight is 1, then 1 / (a (τ - b) + 1); by default (1 + τ)^-a.
        shuffle: draw the samples of batches at random instead of in order of time.
        drop_last: leave out an epoch's last batch if it is not full; FUELS's slots need it.
        patience: stop after this many rounds without a better validation loss; 0 never stops.
        mixed_precision: `no`, or `bf16`: models multiply matrices in bfloat16 by torch's autocast;
            parameters, losses and uploads stay in single precision. On a CPU, bf16 is used only if
            a measurement at the start shows that it is faster; --debug shows the outcome.
    """

    rounds: PositiveInt = 200
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 24
    lr: PositiveFloat = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    optimizer: Literal["adam", "sgd"] = "adam"
    optimizer_state: Literal["keep", "round", "stage"] = "keep"
    momentum: Annotated[
        NonNegativeFloat, ReadIf("optimizer is sgd", lambda s: s["optimizer"] == "sgd")
    ] = 0.0
    weight_decay: NonNegativeFloat = 0.0
    clip_gradients: NonNegativeFloat = 0.0
    participation: PositiveShare = 1.0
    full_start: Annotated[
        bool, ReadIf("participation is below 1", lambda s: s["participation"] != 1)
    ] = True
    slow_share: ShareBelowOne = 0.0
    slow_rounds: Annotated[PositiveInt, _SLOW] = 10
    mixing: Share = 0.0
    staleness: Annotated[NonNegativeFloat, _STALE] = 0.5
    hinge: Annotated[NonNegativeInt | None, _STALE] = None
    shuffle: bool = False
    drop_last: bool = True
    patience: NonNegativeInt = 0
    mixed_precision: Literal["no", "bf16"] = "no"

    @property
    def further(self) -> Training:
        """Return the settings of refits and of a run that goes on: a lower, constant rate."""
        share = {"constant": 0.1, "cosine": 1 / 3}[self.schedule]  # Of the first round's rate.
        return dataclasses.replace(self, schedule="constant", lr=share * self.lr)

    def lr_in(self, round: int) -> float:
        """Return the learning rate of a round, from 0; after the last round, the last one's."""
        if self.schedule == "constant":
            return self.lr
        done = min(round, self.rounds - 1) / self.rounds
        return self.lr * (1 + math.cos(math.pi * done)) / 2


class Optimizer:
    """Optimiser of the stacked parameters of a cohort, equal to one optimiser for each client.

    The arithmetic is elementwise, so steps over `(clients, …)` tensors are exact for every client,
    provided that the clients of a cohort have stepped a parameter equally often. Adam is a compiled
    kernel for all parameters at once; elsewhere torch's fused steps are called without the classes
    of `torch.optim`, whose bookkeeping takes longer. Parameters, leaf tensors that require
    gradients, and moments are changed in place.

    Args:
        params: leaf tensors `(clients, …)`.
        moments: the optimiser's state for them.
        training: settings such as the learning rate.
        round: index of the round, from 0.
        apart: prefixes of parameters whose gradients are clipped separately, see `clip_by_client`.

    Attributes:
        training: the settings, with the learning rate of this round.
    """

    def __init__(
        self,
        params: Params,
        moments: Moments,
        training: Training,
        round: int = 0,
        apart: Sequence[str] = (),
    ) -> None:
        self._params, self._moments, self._apart = params, moments, apart
        self.training = dataclasses.replace(training, lr=training.lr_in(round))
        self._step = {"adam": _adam, "sgd": _sgd}[training.optimizer]
        self._adam: AdamKernel | None = None

    def step(self, losses: Tensor) -> Params:
        """Step down the gradient of the sum of `losses`, `(clients,)`; return it, clipped if set.

        A parameter that the losses do not depend on is unchanged, and so are its moments.
        """
        trained = {name: p for name, p in self._params.items() if p.requires_grad}
        found = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
        grads = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
        if not grads:
            return grads
        if self.training.clip_gradients:
            grads = clip_by_client(grads, self.training.clip_gradients, self._apart)
        params = [trained[name] for name in grads]
        with torch.no_grad():
            # Fused steps require the parameters' strides.
            alike = [
                g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
                for p, g in zip(params, grads.values(), strict=True)
            ]
            if not self._by_kernel(params, alike, tuple(grads)):
                self._step(params, alike, self.moments_of(grads), self.training)
        return grads

    def _by_kernel(self, params: list[Tensor], grads: list[Tensor], names: Iterable[str]) -> bool:
        """Take the step in the compiled kernel of Adam; return whether it can."""
        if self.training.optimizer != "adam":
            return False
        if self._adam is None or not self._adam.owns(params):
            moments = self.moments_of(names)
            self._adam = AdamKernel(
                params, moments["exp_avg"], moments["exp_avg_sq"], moments[STEPS]
            )
        if self._adam.usable:
            lr, decay = self.training.lr, self.training.weight_decay
            self._adam.step(grads, lr=lr, betas=BETAS, eps=EPSILON, weight_decay=decay)
        return self._adam.usable

    def moments_of(self, names: Iterable[str]) -> Lists:
        """Return the moments of some parameters, by the name of the moment."""
        return {m: [tensors[name] for name in names] for m, tensors in self._moments.items()}


@torch.no_grad()
def clip_by_client(grads: Params, norm: float, apart: Sequence[str] = ()) -> Params:
    """Return gradients `(clients, …)` scaled down to at most a given L2 norm for each client.

    The gradients of each prefix in `apart` are clipped separately, and all others together.

    >>> grads = {"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    >>> clip_by_client(grads, 1.0)["w"]
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    groups: dict[str, list[str]] = {}
    for name in grads:
        groups.setdefault(next((p for p in apart if name.startswith(p)), ""), []).append(name)
    clipped = {}
    for names in groups.values():
        length = client_sums(grads[name].square() for name in names).sqrt()
        scale = (norm / (length + 1e-6)).clamp(max=1)  # As in torch's clip_grad_norm_.
        for name in names:
            clipped[name] = grads[name] * with_axes(scale, grads[name].ndim)
    return {name: clipped[name] for name in grads}


def moment_names(training: Training) -> tuple[str, ...]:
    """Return the names of the moments that the optimiser keeps for each parameter."""
    if training.optimizer == "adam":
        return ("exp_avg", "exp_avg_sq", STEPS)
    return ("momentum_buffer",) if training.momentum else ()


def kept_moments(
    params: Mapping[str, Tensor],
    training: Training,
    zeros: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> Moments:
    """Return the first moments that clients keep across rounds; none if every round resets."""
    return {} if training.optimizer_state == "round" else zero_moments(params, training, zeros)


def zero_moments(
    params: Mapping[str, Tensor],
    training: Training,
    zeros: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> Moments:
    """Return the moments before the first step."""
    return {
        moment: {
            name: p.new_zeros(len(p)) if moment == STEPS else zeros(p) for name, p in params.items()
        }
        for moment in moment_names(training)
    }


def _adam(params: list[Tensor], grads: list[Tensor], moments: Lists, training: Training) -> None:
    """Update parameters and moments in place."""
    torch._foreach_add_(moments[STEPS], 1)
    torch._fused_adam_(
        params,
        grads,
        moments["exp_avg"],
        moments["exp_avg_sq"],
        [],
        [steps[0] for steps in moments[STEPS]],
        lr=training.lr,
        beta1=BETAS[0],
        beta2=BETAS[1],
        weight_decay=training.weight_decay,
        eps=EPSILON,
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
