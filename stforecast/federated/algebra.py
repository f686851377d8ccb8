"""Arithmetic on stacked parameters: means over clients, distances and slopes of each client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def weighted_mean(stacked: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the client axis; that of integers (counters) is rounded.

    Args:
        stacked: `(clients, …)`.
        weights: `(clients,)`, not negative.

    Returns:
        `(…)`.

    Example:
        >>> weighted_mean(torch.tensor([[1.0], [4.0]]), torch.tensor([2, 1]))
        tensor([2.])
    """
    if not stacked.is_floating_point():
        return weighted_mean(stacked.double(), weights).round().to(stacked.dtype)
    dtype = torch.promote_types(stacked.dtype, torch.float32)
    share = (weights.double() / weights.sum()).to(stacked.device, dtype)
    return torch.tensordot(share, stacked.to(dtype), dims=1).to(stacked.dtype)


def plain_mean(stacked: Tensor) -> Tensor:
    """Mean over the client axis, each client counted once whatever its number of samples."""
    return weighted_mean(stacked, torch.ones(len(stacked)))


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """`‖w - w^t‖²` of each client, over all its parameters that w^t has.

    Args:
        params: w, each `(clients, …)`.
        anchor: w^t under the same names, each `(clients, …)`; may hold more or fewer.

    Returns:
        `(clients,)`.

    Example:
        >>> w = {"a": torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "b": torch.tensor([3.0, 4.0])}
        >>> squared_distance(w, {name: torch.zeros_like(t) for name, t in w.items()})
        tensor([14., 16.])
    """
    parts = [
        (p - anchor[name]).square().reshape(len(p), -1).sum(1)
        for name, p in params.items()
        if name in anchor
    ]
    return torch.stack(parts).sum(0)


def slope(
    direction: Mapping[str, Tensor], params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> Tensor:
    """`⟨d, w - w^t⟩` of each client: a term whose gradient for w is d.

    Args:
        direction: d, each `(clients, …)`.
        params: w, with at least the names of d.
        anchor: w^t, likewise.

    Returns:
        `(clients,)`.

    Example:
        >>> d, w = {"a": torch.tensor([[2.0, 1.0]])}, {"a": torch.tensor([[5.0, 3.0]])}
        >>> slope(d, w, {"a": torch.tensor([[1.0, 1.0]])})
        tensor([10.])
    """
    parts = [
        (d * (params[name] - anchor[name])).reshape(len(d), -1).sum(1)
        for name, d in direction.items()
    ]
    return torch.stack(parts).sum(0)


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, under what follows it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
