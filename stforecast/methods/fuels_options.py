"""Settings of FUELS, where they leave the paper, and how it divides clients by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.state import generator


@dataclass(frozen=True)
class FuelsOptions(CheckedOptions):
    """Settings of FUELS; the paper's values where it gives them.

    Attributes:
        tau: temperature τ of both contrastive losses (section 5.4: 0.02).
        rho: weight ρ of the inter-client loss, or of the prediction loss with `loss_form="alg1"`
            (section 5.4: 5).
        beta: the threshold β as a quantile of all JSD values (section 5.4: 0.5).
        loss_form: `eq15`: pred + intra + ρ inter; `alg1`: intra + inter + ρ pred. The paper prints
            both; the notation table and the sweep agree with Eq. 15.
        intra: whether to use the intra-client loss (False: ablation "w/o intra").
        inter: whether to use the inter-client loss (False: ablation "w/o inter", and nothing is
            sent).
        starts: initial weights, `equal` for all clients, or each client its `own`. The paper does
            not say. Divergences follow the data in the first rounds only from equal weights.
        filter_init: initial W: `uniform` in [0, 1) or `ones`. The paper does not say; a positive
            start reproduces its Figure 9. The gradient on W is never negative, so W only falls.
        filter_train: whether W is trained, by the client's own optimiser (False with `ones`:
            ablation "w/o W").
        filter_floor: lower bound of W where it is used, so that every sample stays a negative; 0 is
            the paper's ReLU, under which W leaves out nearly all of them in the end.
        shift: lower bound of the share a ~ U(shift, 1) that an augmented sample keeps of the
            original; 1 turns augmentation off. The paper does not say.
        shift_draw: when a sample's share a is drawn: anew for each `batch`, or `once` for the run.
            Algorithm 1 reads as if the augmented data D' were made once.
        prototypes: `periodic`: mean by slot of the period (Eq. 8); `concat`: one per sample (Eq. 7,
            ablation "w/o p-aware").
        divergence: JSD of the softmax over the whole prototype (`flat`) or the mean of those over
            its rows (`rows`). The paper does not say how real vectors become distributions.
        partition: what clients are compared by, their `prototypes` (the paper) or the `profiles` of
            their data: the mean training target of each slot, which is then sent, too.
        positives: the positives of a client: those with a `divergence` of at most β (Eq. 9), or as
            many at `random`, drawn anew in each round, or once for the run (`random-once`); the
            others are its negatives.
        compared: clients that all are compared with, drawn anew in each round; the global
            prototypes and β are then estimates from these, and time and memory no longer grow with
            the square of the clients. 0 compares all with all, as the paper.
    """

    tau: PositiveFloat = 0.02
    rho: NonNegativeFloat = 5.0
    beta: Share = 0.5
    loss_form: Literal["eq15", "alg1"] = "eq15"
    intra: bool = True
    inter: bool = True
    starts: Literal["equal", "own"] = "equal"
    filter_init: Literal["uniform", "ones"] = "uniform"
    filter_train: bool = True
    filter_floor: NonNegativeFloat = 0.0
    shift: Share = 0.5
    shift_draw: Literal["batch", "once"] = "batch"
    prototypes: Literal["periodic", "concat"] = "periodic"
    divergence: Literal["flat", "rows"] = "flat"
    partition: Literal["prototypes", "profiles"] = "prototypes"
    positives: Literal["divergence", "random", "random-once"] = "divergence"
    compared: NonNegativeInt = 0


def are_known(prototypes: Tensor) -> Tensor:
    """Return `(clients,)`, True for clients whose prototypes `(clients, slots, d)` are not 0."""
    return prototypes.flatten(1).any(1)


def as_many_at_random(chosen: Tensor, among: Tensor, keys: Sequence[tuple[int, ...]]) -> Tensor:
    """Choose other clients at random, as many as are chosen, for each receiver.

    `chosen` and `among` are `(receivers, clients)`; the first number of a receiver's key is the
    seed.
    """
    n = chosen.shape[1]
    draws = torch.stack([torch.rand(n, generator=generator(*key)) for key in keys])
    ranks = draws.to(among.device).masked_fill(~among, 2.0).argsort(1).argsort(1)
    return ranks < chosen.sum(1, keepdim=True)


def quantile(values: Tensor, q: float) -> Tensor:
    """Compute `torch.quantile` without its limit of 2²⁴ values (5,793 clients)."""
    position = q * (len(values) - 1)
    below = int(position)
    ordered = values.sort().values
    return torch.lerp(ordered[below], ordered[min(below + 1, len(values) - 1)], position - below)
