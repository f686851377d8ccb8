"""Named tensors of many clients: what they are called, what travels, and arithmetic on them.

All have a leading client axis. A round's bytes are counted from its payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from data_prep.base.errors import InputError

Params = dict[str, Tensor]
"""Parameter name to tensor `(clients, …)`."""

Batch = dict[str, Tensor]
"""Named tensors `(clients, batch, …)`, such as `x`, `y` and `key`; the task defines the names."""

Payload = dict[str, Tensor]
"""What server and clients send: name to tensor `(clients, …)`; empty if nothing is sent."""

Like = dict[str, list[Any]]
"""Name of a tensor to its type and its shape without the client axis."""


def take(tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Return the rows `ids` of tensors `(clients, …)`, as views if `ids` is a contiguous range."""
    first, n = (int(ids[0]), len(ids)) if len(ids) else (0, 0)
    if is_range(ids):
        return {name: t[first : first + n] for name, t in tensors.items()}
    return {name: t[ids.to(t.device)] for name, t in tensors.items()}


def is_range(ids: Tensor) -> bool:
    """Return whether `ids` is `first, first + 1, …`."""
    return len(ids) > 0 and bool((ids[1:] - ids[:-1] == 1).all())


def check_tensors(origin: str, found: object, n: int | None = None) -> None:
    """Refuse what is no dictionary of tensors, which are `(n, …)` if `n` is given.

    Raises:
        InputError: with the origin, such as "fedavg, upload".
    """
    if not isinstance(found, Mapping):
        found = type(found).__name__
        raise InputError(f"{origin}: found {found}, expected a dictionary of tensors by name")
    for name, t in found.items():
        if not isinstance(t, Tensor):
            kind = type(t).__name__
            raise InputError(f"{origin}: {name!r} is of the type {kind}, expected a tensor")
        if n is not None and t.shape[:1] != (n,):
            raise InputError(
                f"{origin}: {name!r} has the shape {tuple(t.shape)}, expected ({n}, …), a row for "
                "each client"
            )


def total_bytes(payload: Payload) -> int:
    """Return the bytes over all clients by each tensor's dtype (broadcast views count in full).

    >>> total_bytes({"weight": torch.zeros(1, 3).expand(100, 3)})
    1200
    """
    return sum(t.numel() * t.element_size() for t in payload.values())


def like_of(payload: Payload) -> Like:
    """Return the types and shapes of a payload.

    >>> like_of({"weight": torch.zeros(2, 3)})
    {'weight': ['float32', 3]}
    """
    return {n: [str(t.dtype).removeprefix("torch."), *t.shape[1:]] for n, t in payload.items()}


def joined(parts: Sequence[tuple[Tensor, Payload]]) -> tuple[Tensor, Payload]:
    """Join the client ids `(n,)` and payloads of several cohorts, in increasing order of the ids.

    Raises:
        ValueError: if the payloads have different names.
    """
    ids, payloads = torch.cat([ids for ids, _ in parts]), [payload for _, payload in parts]
    names = payloads[0].keys()
    if different := next((p.keys() ^ names for p in payloads if p.keys() != names), None):
        raise ValueError(f"some clients sent {sorted(different)} and others did not")
    order = ids.argsort()
    return ids[order], {name: _in_order([p[name] for p in payloads], order) for name in names}


def _in_order(parts: list[Tensor], order: Tensor) -> Tensor:
    """Return the rows of all parts, `order[i]` as the i-th, copied at most once."""
    places = order.argsort()
    if torch.equal(places, torch.arange(len(places))):
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    whole = parts[0].new_empty(len(places), *parts[0].shape[1:])
    for part, rows in zip(parts, places.split([len(p) for p in parts]), strict=True):
        whole[rows.to(whole.device)] = part
    return whole


def weighted_mean(stacked: Tensor, weights: Tensor) -> Tensor:
    """Return the mean `(…)` over the client axis, rounded for integers (counters).

    The weights `(clients,)` are not negative.

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


def client_sums(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of all values of tensors `(clients, …)` for each client, `(clients,)`.

    >>> client_sums([torch.ones(2, 3), torch.tensor([10.0, 20.0])])
    tensor([13., 23.])
    """
    return torch.stack([t.reshape(len(t), -1).sum(1) for t in tensors]).sum(0)


def squared_distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """Return `‖w - w^t‖²` of each client, `(clients,)`, over the parameters that both have.

    The anchor w^t may hold more or fewer than `params`, w; each is `(clients, …)`.

    >>> w = {"a": torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "b": torch.tensor([3.0, 4.0])}
    >>> squared_distance(w, {name: torch.zeros_like(t) for name, t in w.items()})
    tensor([14., 16.])
    """
    return client_sums((p - anchor[n]).square() for n, p in params.items() if n in anchor)


def linear_term(
    direction: Mapping[str, Tensor], params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> Tensor:
    """Return `⟨d, w - w^t⟩` of each client, `(clients,)`, a term whose gradient for w is d.

    `params`, w, and `anchor`, w^t, have at least the names of `direction`, d.

    >>> d, w = {"a": torch.tensor([[2.0, 1.0]])}, {"a": torch.tensor([[5.0, 3.0]])}
    >>> linear_term(d, w, {"a": torch.tensor([[1.0, 1.0]])})
    tensor([10.])
    """
    return client_sums(d * (params[name] - anchor[name]) for name, d in direction.items())


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


def mmd(x: Tensor, y: Tensor, widths: Sequence[float] = ()) -> Tensor:
    """Return the squared maximum mean discrepancy of two samples with a sum of Gaussian kernels.

    A kernel is exp(-distance² / width); by default the widths are ¼, ½, 1, 2 and 4 times the
    mean squared distance between all points. The samples are `(clients, n, d)`; the result
    `(clients,)` is 0 where they are the same.
    """
    n = x.shape[1]
    points = torch.cat([x, y], dim=1)
    # From differences: |x|² + |y|² - 2xy would lose all precision for close points.
    exact = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(points, points, compute_mode=exact).square()
    if not widths:
        mean = distance.detach().sum((1, 2), keepdim=True) / (2 * n * (2 * n - 1))
        distance = distance / mean.clamp(min=torch.finfo(mean.dtype).tiny)
    kernel = torch.stack(
        [(-distance / width).exp() for width in widths or (0.25, 0.5, 1, 2, 4)]
    ).sum(0)
    within = kernel[:, :n, :n] + kernel[:, n:, n:]
    between = kernel[:, :n, n:] + kernel[:, n:, :n]
    return (within - between).mean((1, 2))
