"""How FUELS (`stforecast.methods.fuels`) divides clients into positives and negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stforecast.federated.state import generator


def are_known(prototypes: Tensor) -> Tensor:
    """Return `(clients,)`, True for clients whose prototypes `(clients, slots, d)` are not 0."""
    return prototypes.flatten(1).any(1)


def as_many_at_random(chosen: Tensor, among: Tensor, keys: Sequence[tuple[int, ...]]) -> Tensor:
    """Choose other clients at random, as many as are chosen, for each receiver.

    Args:
        chosen: `(receivers, clients)`, True for chosen clients.
        among: `(receivers, clients)`, True for clients to choose from.
        keys: key of each receiver's generator, its first number the seed.

    Returns:
        `(receivers, clients)` with as many True in each row as `chosen`.
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
