"""What travels between server and clients: named tensors with a leading client axis.

A round's bytes are counted from these, never written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Payload = dict[str, Tensor]
"""Name to tensor `(clients, …)`; an empty dict is "nothing is sent"."""


def floats_per_client(payload: Payload) -> int:
    """Number of values that one client sends or receives.

    >>> floats_per_client({"prototypes": torch.zeros(100, 24, 256)})
    6144
    """
    return sum(t[0].numel() for t in payload.values())


def total_bytes(payload: Payload) -> int:
    """Bytes over all clients, at the width of each tensor's dtype (broadcast views count in full).

    >>> total_bytes({"weight": torch.zeros(1, 3).expand(100, 3)})
    1200
    """
    return sum(t.numel() * t.element_size() for t in payload.values())


def concatenate(payloads: Sequence[Payload]) -> Payload:
    """Join payloads of several cohorts along the client axis.

    Raises:
        ValueError: if they do not hold the same names.
    """
    if len(payloads) == 1:
        return payloads[0]
    names = payloads[0].keys()
    if different := next((p.keys() ^ names for p in payloads if p.keys() != names), None):
        raise ValueError(f"some clients sent {sorted(different)} and others did not")
    return {name: torch.cat([p[name] for p in payloads]) for name in names}
