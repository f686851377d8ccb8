"""Samples of many clients in stages of a task stream, and the order in which one trains on them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.tensors import Batch, take
from stforecast.federated.core.training import Training

Augment = Callable[[Batch, Sequence[torch.Generator]], Batch]
"""Augments a training batch, with random draws for each client from its own generator."""


@dataclass(frozen=True)
class ClientData:
    """Samples of N clients as tensors with a leading client axis.

    Attributes:
        tensors: name to `(clients, samples, …)`. Clients with fewer samples are padded at the end.
        sizes: `(clients,)` number of samples of each client, without padding.
        augment: augments a training batch, with a generator for each of its clients.
        group_sizes: `(clients,)` number of consecutive samples that belong together, such as those
            of one time in all cells of a client: batches and chunks hold whole groups, in their
            order. None if every sample is a group by itself.
        cut: function of client ids that returns the tensors of these clients, which are cut from
            their series anew each time that they are taken; None if `tensors` holds all. Then
            `tensors` is empty.
    """

    tensors: dict[str, Tensor]
    sizes: Tensor
    augment: Augment | None = None
    group_sizes: Tensor | None = None
    cut: Callable[[Tensor], dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def n_groups(self) -> Tensor:
        """Number of groups of each client, `(clients,)`."""
        return self.sizes if self.group_sizes is None else self.sizes // self.group_sizes

    @property
    def group(self) -> int:
        """Number of samples in a group.

        Raises:
            ValueError: if it differs between these clients.
        """
        if self.group_sizes is None or not len(self):
            return 1
        low, high = map(int, self.group_sizes.aminmax())
        if low < high:
            raise ValueError(f"clients with groups of {low} to {high} samples; take them apart")
        return low

    def cells_of(self, ids: Tensor) -> int:
        """Return how many cells some clients have together: one each, if they have no groups."""
        return len(ids) if self.group_sizes is None else int(self.group_sizes[ids].sum())

    def cohorts(self, limit: int) -> Sequence[Tensor]:
        """Split the clients, in order, into parts of at most `limit` with groups of equal size."""
        ids = torch.arange(len(self))
        if self.group_sizes is None:
            result: Sequence[Tensor] = ids.split(limit)
            return result
        _, lengths = self.group_sizes.unique_consecutive(return_counts=True)
        return [part for run in ids.split(lengths.tolist()) for part in run.split(limit)]

    def take(self, ids: Tensor) -> ClientData:
        """Return the data of some clients, without copying if `ids` is a contiguous range."""
        ids_there = ids.to(self.sizes.device)
        groups = None if self.group_sizes is None else self.group_sizes[ids_there]
        tensors = self.cut(ids.cpu()) if self.cut else take(self.tensors, ids)
        return ClientData(tensors, self.sizes[ids_there], self.augment, groups)

    def part(self, ids: Tensor) -> ClientData:
        """Return the data of some clients, which are cut as late as these."""
        if (cut := self.cut) is None:
            return self.take(ids)
        groups = None if self.group_sizes is None else self.group_sizes[ids]
        return ClientData({}, self.sizes[ids], self.augment, groups, cut=lambda own: cut(ids[own]))

    def whole(self) -> ClientData:
        """Return the same data with all tensors in memory."""
        return self.take(torch.arange(len(self))) if self.cut else self

    def to(self, device: torch.device | str) -> ClientData:
        """Return the same data on another device; sizes stay on the CPU, where they are read."""
        if self.cut and torch.device(device).type == "cpu":
            return self
        tensors = {name: t.to(device) for name, t in self.whole().tensors.items()}
        return ClientData(tensors, self.sizes, self.augment, self.group_sizes)

    def chunks(self, rows: int) -> Iterator[Batch]:
        """Yield all samples in order, about `rows` at a time, in whole groups; for prediction.

        Yields:
            Batches that also have `valid` `(clients, rows)`: False where a client is padded.
        """
        total = int(self.sizes.max()) if len(self) else 0
        rows = max(rows // self.group, 1) * self.group
        for start in range(0, total, rows):
            stop = min(start + rows, total)
            valid = torch.arange(start, stop) < self.sizes[:, None]
            device = next(iter(self.tensors.values())).device
            chunk = {name: t[:, start:stop] for name, t in self.tensors.items()}
            yield {**chunk, "valid": valid.to(device)}


def batches(
    data: ClientData,
    batch_size: int,
    generators: Sequence[torch.Generator] | None = None,
    *,
    drop_last: bool = True,
) -> Iterator[Batch]:
    """Yield the batches of one epoch for clients of equal size.

    Args:
        data: samples of clients that all have the same number of samples.
        batch_size: samples per batch; if they have groups, groups per batch.
        generators: one for each client, to shuffle its groups; None keeps their order.
        drop_last: leave out a last batch that is not full.
    """
    samples, group = int(data.n_groups[0]), data.group
    starts = range(0, samples - batch_size + 1 if drop_last else samples, batch_size)
    if generators is None:
        used = {name: t[:, : samples * group] for name, t in data.tensors.items()}
        parts = [t.split(batch_size * group, dim=1) for t in used.values()]
        for _, *batch in zip(starts, *parts, strict=False):  # `starts` may exclude the last part.
            yield dict(zip(used, batch, strict=True))
        return
    order = shuffled(samples, generators)
    client = torch.arange(len(data))[:, None]
    for start in starts:
        drawn = members(order[:, start : start + batch_size], group)
        yield {name: t[client, drawn] for name, t in data.tensors.items()}


def shuffled(n: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Return the numbers below n in an order drawn by each generator, `(generators, n)`."""
    return torch.stack([torch.randperm(n, generator=g) for g in generators])


def secretly_shuffled(n: int, rows: int) -> Tensor:
    """Return the numbers below n in orders drawn from the machine's entropy, `(rows, n)`.

    `torch.Generator` will not do: it takes 32 bits of its seed, which can all be tried.
    """
    draws = np.frombuffer(secrets.token_bytes(8 * n * rows), np.uint64).reshape(rows, n)
    return torch.from_numpy(draws.argsort(axis=1))


def members(groups: Tensor, group: int) -> Tensor:
    """Return the indices `(…, n * group)` of the samples of groups `(…, n)`, in order.

    >>> members(torch.tensor([[2, 0]]), 3).tolist()
    [[6, 7, 8, 0, 1, 2]]
    """
    return (groups[..., None] * group + torch.arange(group)).flatten(-2) if group > 1 else groups


Order = Literal["inside", "sequential"]


class Stream:
    """Training data that change from stage to stage.

    A stage ends with an aggregation, so each visit of a stage is one round of the core, in either
    order: `inside` cycles through all stages (GLDP, Algorithm 1; its global round is one of our
    rounds per stage), `sequential` does all rounds of a stage before the next (FedTA).

    Args:
        stages: data of all clients in each stage; clients without samples skip the stage.
        order: order of the stages.
    """

    def __init__(self, stages: Sequence[ClientData], order: Order = "inside") -> None:
        self.stages, self.order = tuple(stages), order

    def __len__(self) -> int:
        return len(self.stages)

    def check(self, training: Training) -> None:
        """Check that the settings fit the data.

        Raises:
            InputError: with the setting, or the client and its samples.
        """
        several = len(self) > 1
        if several and training.schedule != "constant":
            raise InputError(f"schedule is {training.schedule}; a task stream needs constant")
        needed = training.batch_size if training.drop_last else 1
        for i, stage in enumerate(self.stages):
            sizes = stage.n_groups
            if bool(((sizes < needed) & ((sizes > 0) | (not several))).any()):
                where = f" in stage {i}" if several else ""
                raise InputError(
                    f"client {int(sizes.argmin())} has {int(sizes.min())} training "
                    f"samples{where}, fewer than one batch of {needed}; ",
                    Words("use longer data, another split or a smaller {batch_size}"),
                )
            if not sizes.any():
                raise InputError(
                    f"no client has training samples in stage {i}; leave the stage out"
                )

    def place(self, round: int, rounds: int) -> tuple[int, int]:
        """Return the stage of a round (from 0), and the index that seeds its participants' draw.

        Each stage has `rounds` rounds. With `inside`, all stages of a global round have the same
        participants.

        >>> empty = [None, None, None]
        >>> [Stream(empty, "inside").place(r, 2) for r in range(6)]
        [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
        >>> [Stream(empty, "sequential").place(r, 2) for r in range(6)]
        [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
        """
        if self.order == "inside":
            return round % len(self), round // len(self)
        return min(round // rounds, len(self) - 1), round

    def begins(self, round: int, rounds: int) -> bool:
        """Return whether a round, numbered from 0, is the first one of a stage's visit."""
        return round == 0 or self.place(round, rounds)[0] != self.place(round - 1, rounds)[0]
