"""Payloads between server and clients: named tensors with a leading client axis.

A round's bytes are counted from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Payload = dict[str, Tensor]
"""Name to tensor `(clients, …)`; empty if nothing is sent."""

Like = dict[str, list[Any]]
"""Name of a tensor to its type and its shape without the client axis."""


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
    """Join the payloads of several cohorts, in order of client ids.

    Args:
        parts: client ids `(n,)` and payload of each cohort.

    Returns:
        All ids, increasing, and their payload.

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
