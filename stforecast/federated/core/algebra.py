"""Arithmetic on stacked parameters and features: means over clients, distances and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def weighted_mean(stacked: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over the client axis, rounded for integers (counters).

    Args:
        stacked: `(clients, …)`.
        weights: `(clients,)`, non-negative.

    Returns:
        `(…)`.

    >>> weighted_mean(torch.tensor([[1.0], [4.0]]), torch.tensor([2, 1]))
    tensor([2.])
    """
    if not stacked.is_floating_point():
        return weighted_mean(stacked.double(), weights).round().to(stacked.dtype)
    dtype = torch.promote_types(stacked.dtype, torch.float32)
    share = (weights.double() / weights.sum()).to(stacked.device, dtype)
    result: Tensor = torch.tensordot(share, stacked.to(dtype), dims=1).to(stacked.dtype)
    return result


def plain_mean(stacked: Tensor) -> Tensor:
    """Return the mean over the client axis; clients count equally, whatever their samples."""
    return weighted_mean(stacked, torch.ones(len(stacked)))


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """Return `‖w - w^t‖²` of each client, over the parameters that both have.

    Args:
        params: w, each `(clients, …)`.
        anchor: w^t under the same names, each `(clients, …)`; may hold more or fewer.

    Returns:
        `(clients,)`.

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
    """Return `⟨d, w - w^t⟩` of each client, a term whose gradient for w is d.

    Args:
        direction: d, each `(clients, …)`.
        params: w, with at least the names of d.
        anchor: w^t, with at least the names of d.

    Returns:
        `(clients,)`.

    >>> d, w = {"a": torch.tensor([[2.0, 1.0]])}, {"a": torch.tensor([[5.0, 3.0]])}
    >>> slope(d, w, {"a": torch.tensor([[1.0, 1.0]])})
    tensor([10.])
    """
    parts = [
        (d * (params[name] - anchor[name])).reshape(len(d), -1).sum(1)
        for name, d in direction.items()
    ]
    return torch.stack(parts).sum(0)


def with_axes(t: Tensor, n: int) -> Tensor:
    """Append axes of length 1 to a tensor until it has n, to broadcast it against another.

    >>> with_axes(torch.ones(5, 2), 4).shape
    torch.Size([5, 2, 1, 1])
    """
    return t.view(*t.shape, *[1] * (n - t.ndim))


def repeated(tensors: Mapping[str, Tensor], n: int) -> dict[str, Tensor]:
    """Repeat tensors `(…)` for n clients: views `(n, …)` with equal rows.

    >>> repeated({"w": torch.zeros(3)}, 2)
    {'w': tensor([[0., 0., 0.],
            [0., 0., 0.]])}
    """
    return {name: t.expand(n, *t.shape) for name, t in tensors.items()}


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the kernels of `mmd` over the mean squared distance."""


def mmd(x: Tensor, y: Tensor, widths: Sequence[float] = ()) -> Tensor:
    """Return the squared maximum mean discrepancy of two samples with a sum of Gaussian kernels.

    A kernel is exp(-distance² / width).

    Args:
        x: `(clients, n, d)`.
        y: `(clients, n, d)`.
        widths: widths of the kernels; by default `SCALES` times the mean squared distance between
            all points.

    Returns:
        `(clients,)`, 0 where the samples are the same.
    """
    n = x.shape[1]
    points = torch.cat([x, y], dim=1)
    # From differences: |x|² + |y|² - 2xy would lose all precision for close points.
    exact = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(points, points, compute_mode=exact).square()
    if not widths:
        mean = distance.detach().sum((1, 2), keepdim=True) / (2 * n * (2 * n - 1))
        distance = distance / mean.clamp(min=torch.finfo(mean.dtype).tiny)
    kernel = torch.stack([(-distance / width).exp() for width in widths or SCALES]).sum(0)
    within = kernel[:, :n, :n] + kernel[:, n:, n:]
    between = kernel[:, :n, n:] + kernel[:, n:, :n]
    return (within - between).mean((1, 2))
