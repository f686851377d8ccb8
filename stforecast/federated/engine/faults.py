"""Clients that fail in a round: their tensors are not finite, or their local update raises.

Such a client is left out of the round: it sends nothing, and its state is restored to that before
the round, so that it may take part in the next one. Other clients' numbers change only by its
absence. Errors that no single client causes, such as bad settings or too little memory, are raised.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from data_prep.base.errors import InputError, some
from data_prep.base.registry import foreign_place

DIVERGED = "its values are not finite"

NOT_THE_CLIENTS = (InputError, MemoryError, torch.OutOfMemoryError)
"""Errors that are not caused by a single client."""


class Diverged(InputError):
    """The values of all clients of a round are not finite."""


def sound_clients(*groups: Mapping[str, Tensor], n: int) -> Tensor:
    """Return which of n clients hold neither NaN nor infinity in tensors `(clients, …)`.

    >>> uploads = {"w": torch.tensor([[1.0, 2.0], [1.0, torch.nan]])}
    >>> sound_clients(uploads, n=2)
    tensor([ True, False])
    """
    sound = torch.ones(n, dtype=torch.bool)
    for t in (t.detach().reshape(n, -1) for group in groups for t in group.values()):
        if t.is_floating_point() and not t.sum(1).isfinite().all():  # A quick test.
            sound &= t.isfinite().all(1).cpu()
    return sound


def reason(error: Exception, *groups: Mapping[str, Tensor], n: int) -> str:
    """Return why a local update failed, in words, given its clients' `(n, …)` tensors.

    A singular value decomposition, for one, fails for values that are not finite. Errors of other
    types, such as a `KeyError`, are mistakes in a method.

    >>> reason(KeyError("w"), {"w": torch.tensor([torch.nan])}, n=1)
    "KeyError: 'w'"
    >>> reason(ValueError("no roots"), {"w": torch.tensor([torch.nan])}, n=1) == DIVERGED
    True
    """
    numerical = isinstance(error, ArithmeticError | RuntimeError | ValueError)
    if numerical and not sound_clients(*groups, n=n).all():
        return DIVERGED
    place = foreign_place(error)
    return f"{place}: {type(error).__name__}: {error}".removeprefix(": ")


def reasons_of(failed: Mapping[int, str]) -> str:
    """Name the reasons of failures, and the clients of each.

    >>> reasons_of({0: "too late", 3: DIVERGED, 4: DIVERGED})
    'client 0 (too late), clients 3, 4 (its values are not finite)'
    """
    by_reason: dict[str, list[int]] = {}
    for client, reason in sorted(failed.items()):
        by_reason.setdefault(reason, []).append(client)
    return ", ".join(
        f"client{'s' if len(ids) > 1 else ''} {some(ids)} ({reason})"
        for reason, ids in by_reason.items()
    )
