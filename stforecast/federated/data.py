"""Samples of many clients, and the order in which a client trains on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Batch = dict[str, Tensor]
"""Named tensors `(clients, batch, …)`, such as `x`, `y` and `key`; the task defines the names."""

Augment = Callable[[Batch, Sequence[torch.Generator]], Batch]
"""Augments a training batch, with random draws for each client from its own generator."""


@dataclass(frozen=True)
class ClientData:
    """Samples of N clients as tensors with a leading client axis.

    Attributes:
        tensors: name to `(clients, samples, …)`. Clients with fewer samples are padded at the end.
        sizes: `(clients,)` number of samples of each client, without padding.
        augment: augments a training batch, with a generator for each of its clients.
    """

    tensors: dict[str, Tensor]
    sizes: Tensor
    augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, ids: Tensor) -> ClientData:
        """Return the data of some clients, without copying if `ids` is a contiguous range."""
        sizes = self.sizes[ids.to(self.sizes.device)]
        return ClientData(take(self.tensors, ids), sizes, self.augment)

    def to(self, device: torch.device | str) -> ClientData:
        """Return the same data on another device; sizes stay on the CPU, where they are read."""
        tensors = {name: t.to(device) for name, t in self.tensors.items()}
        return ClientData(tensors, self.sizes, self.augment)

    def chunks(self, rows: int) -> Iterator[Batch]:
        """Yield all samples in order, `rows` at a time, for prediction.

        Yields:
            Batches that also have `valid` `(clients, rows)`: False where a client is padded.
        """
        total = int(self.sizes.max()) if len(self) else 0
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            valid = torch.arange(start, stop) < self.sizes[:, None]
            device = next(iter(self.tensors.values())).device
            chunk = {name: t[:, start:stop] for name, t in self.tensors.items()}
            yield {**chunk, "valid": valid.to(device)}


def take(tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Return the rows `ids` of tensors `(clients, …)`, as views if `ids` is a contiguous range."""
    first, n = (int(ids[0]), len(ids)) if len(ids) else (0, 0)
    if is_range(ids):
        return {name: t[first : first + n] for name, t in tensors.items()}
    return {name: t[ids.to(t.device)] for name, t in tensors.items()}


def is_range(ids: Tensor) -> bool:
    """Return whether `ids` is `first, first + 1, …`."""
    return len(ids) > 0 and bool((ids[1:] - ids[:-1] == 1).all())


def batches(
    data: ClientData,
    batch_size: int,
    generators: Sequence[torch.Generator] | None = None,
    drop_last: bool = True,
) -> Iterator[Batch]:
    """Yield the batches of one epoch for clients of equal size.

    Args:
        data: samples of clients that all have the same number of samples.
        batch_size: samples per batch.
        generators: one for each client, to shuffle its samples; None keeps their order.
        drop_last: leave out a last batch that is not full.
    """
    samples = int(data.sizes[0])
    starts = range(0, samples - batch_size + 1 if drop_last else samples, batch_size)
    if generators is None:
        for start in starts:
            rows = slice(start, min(start + batch_size, samples))
            yield {name: t[:, rows] for name, t in data.tensors.items()}
        return
    order = torch.stack([torch.randperm(samples, generator=g) for g in generators])
    client = torch.arange(len(data))[:, None]
    for start in starts:
        drawn = order[:, start : start + batch_size]
        yield {name: t[client, drawn] for name, t in data.tensors.items()}
