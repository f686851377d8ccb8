"""State of a run as plain tensors: everything that is kept from round to round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, batches, secretly_shuffled, shuffled
from stforecast.federated.core.tensors import Batch, Params, is_range, take, without_prefix
from stforecast.federated.core.training import STEPS, Moments, Optimizer, Training, zero_moments

ServerState = dict[str, Tensor]
"""State of a method's server: name to tensor, without the client axis."""

KIND = "encoder.kind"
"""Name of the buffer with the number of a client's encoder, where clients have different ones."""

MOST_KEPT = 2**29
"""Most bytes that a process keeps beside the state of its clients, see `Cohort.kept`."""


@dataclass
class Clients:
    """State of N clients; every tensor has a leading client axis.

    Attributes:
        params: trainable tensors: the model's and those that a method adds, by name.
        buffers: the model's running statistics.
        moments: the optimiser's state for `params`, if it is kept across rounds.
        sizes: `(clients,)` training samples of each client.
        memory: further tensors of the method on its clients, e.g. moving averages.
    """

    params: Params
    buffers: Params
    moments: Moments
    sizes: Tensor
    memory: Params = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        """Name the tensors and their shapes; their values would fill pages."""
        return f"Clients({_shapes(self.flat())})"

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(iter(self.params.values())).device

    def take(self, ids: Tensor) -> Clients:
        """Return the state of some clients, as views if `ids` is a contiguous range."""
        return Clients(
            take(self.params, ids),
            take(self.buffers, ids),
            {name: take(tensors, ids) for name, tensors in self.moments.items()},
            self.sizes[ids],
            take(self.memory, ids),
        )

    def groups(self) -> list[tuple[str, Params]]:
        """Return all groups of tensors with a client axis, by name."""
        moments = [(f"moments.{name}", tensors) for name, tensors in self.moments.items()]
        return [
            ("params", self.params),
            ("buffers", self.buffers),
            *moments,
            ("memory", self.memory),
        ]

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors under the names `group/name`."""
        named = {f"{group}/{name}": t for group, ts in self.groups() for name, t in ts.items()}
        return {**named, "sizes": self.sizes}


@dataclass
class State:
    """State of a federated run after `round` rounds.

    Attributes:
        clients: state of the clients.
        server: state of the server, name to tensor.
        round: number of rounds done.
        seed: seed of the run; every generator is keyed by (seed, round, client).
        received: the server's copies of the clients' latest uploads `(clients, …)`, kept for delta
            coding only; and what simulated slow clients have changed, until it arrives.
    """

    clients: Clients
    server: dict[str, Tensor]
    round: int
    seed: int
    received: Params = field(default_factory=dict)

    def __repr__(self) -> str:
        """Name the tensors and their shapes, as of `Clients`."""
        return f"State(round={self.round}, seed={self.seed}, {_shapes(self.flat())})"

    def participants(self, ids: Tensor | None = None) -> Participants:
        """Return the clients `ids`, or all, as participants of the next round, without a stage."""
        if ids is None:
            ids = torch.arange(len(self.clients))
        return Participants(ids, self.clients.sizes[ids], self.round)

    def flat(self) -> dict[str, Tensor]:
        """Return all tensors by name: `clients/…`, `server/…`, `received/…`."""
        sides = [
            ("clients", self.clients.flat()),
            ("server", self.server),
            ("received", self.received),
        ]
        return {f"{side}/{name}": t for side, ts in sides for name, t in ts.items()}

    @classmethod
    def from_flat(cls, tensors: Mapping[str, Tensor], round: int, seed: int) -> State:
        """Return the state whose `flat` this is.

        Raises:
            KeyError: if `clients/sizes` is missing or a tensor belongs to none of the three.
        """
        sides = "clients/", "server/", "received/"
        if odd := [name for name in tensors if not name.startswith(sides)]:
            raise KeyError(odd[0])
        of_clients, server, received = (without_prefix(tensors, side) for side in sides)
        moments: Moments = {}
        for name, t in without_prefix(of_clients, "moments.").items():
            moment, _, parameter = name.partition("/")
            moments.setdefault(moment, {})[parameter] = t
        clients = Clients(
            params=without_prefix(of_clients, "params/"),
            buffers=without_prefix(of_clients, "buffers/"),
            moments=moments,
            sizes=tensors["clients/sizes"],
            memory=without_prefix(of_clients, "memory/"),
        )
        return cls(clients, server, round, seed, received)


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())


@dataclass(frozen=True)
class Participants:
    """Clients that a message is for or from.

    Attributes:
        ids: `(n,)` increasing client ids.
        sizes: `(n,)` numbers of training samples.
        round: index of the round, from 0.
        stage: index of the stage of the task stream, from 0.
    """

    ids: Tensor
    sizes: Tensor
    round: int
    stage: int = 0


def row_major(tensor: Tensor) -> Tensor:
    """Return a tensor in the layout that a checkpoint restores: row-major, at the start of memory.

    Sums round differently with other strides or another alignment. `Tensor.contiguous` is not
    enough: it ignores the strides of axes of size 1.
    """
    strides = torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == strides and tensor.storage_offset() == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def generator(seed: int, *key: int) -> torch.Generator:
    """Return a generator keyed by its place in a run, e.g. `generator(seed, round, client)`.

    Streams of different keys are independent, so no number depends on the order of the work.
    """
    entropy = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(entropy[0]))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators within the context; restore that of the CPU and the device."""
    with torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        seed_torch(seed)
        yield


def seed_torch(seed: int) -> None:
    """Seed torch's global generators, also those of a GPU if there is one.

    Without a GPU, `torch.manual_seed` takes milliseconds to store the stack for when there is one.
    """
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(seed)


class Cohort:
    """Clients that train together, with equal sizes and equal numbers of optimiser steps.

    If the ids are a range and `copied` is false, the tensors are views of the population's.
    Otherwise they are copies, which `write_back` copies back.

    Args:
        clients: the whole population's state.
        ids: `(n,)` increasing ids of the cohort's clients.
        data: training samples of these clients.
        training: settings.
        seed: seed of the run.
        round: index of the round, from 0.
        copied: whether to always work on copies: autograd's checks do not let two threads change
            parts of one tensor.
        stage: index of the stage of the task stream, from 0.
        apart: prefixes of the names of parameters whose gradients are clipped separately.
        first: number of the population's first client, which keys the random generators.
        found: what was computed from each client's samples alone, see `kept`; by default nothing
            is kept.
        model: parameters and buffers `(clients, …)` to begin with where `clients` keeps none, as
            they are received anew; by default those of `clients`.
        secret: whether `secret_order` must not follow from the run's seed.

    Attributes:
        params: leaf tensors `(n, …)` that require gradients, updated in place.
        buffers: running statistics `(n, …)`.
        optimizer: steps down gradients of the parameters.
        memory: the method's own tensors `(n, …)`, updated in place.
        epoch: index of the current local epoch.
        records: name to the `(n,)` values recorded at each batch (losses, for the report).
        scratch: temporary values of the method during this local update.
    """

    def __init__(
        self,
        clients: Clients,
        ids: Tensor,
        data: ClientData,
        training: Training,
        seed: int,
        round: int,
        *,
        copied: bool = False,
        stage: int = 0,
        apart: Sequence[str] = (),
        first: int = 0,
        found: Sequence[Params] = (),
        model: tuple[Params, Params] | None = None,
        secret: bool = False,
    ) -> None:
        self.ids, self.data, self.training = ids, data, training
        self.round, self.stage, self._secret = round, stage, secret
        self.generators = [generator(seed, round, first + int(i)) for i in ids]
        views = copied and is_range(ids)  # If the ids are no range, `take` returns copies already.
        params, self.buffers, self.memory, *moments = (
            {name: t.clone() if views else t for name, t in take(group, ids).items()}
            for group in (
                *(model or (clients.params, clients.buffers)),
                clients.memory,
                *clients.moments.values(),
            )
        )
        self.params = {name: t.detach().requires_grad_() for name, t in params.items()}
        self._moments = dict(zip(clients.moments, moments, strict=True))
        self._clients, self._keeps_model = clients, model is None
        now = self._moments or zero_moments(self.params, training)
        self.optimizer = Optimizer(self.params, now, training, round, apart)
        self.epoch, self._found = 0, [found[int(i)] for i in ids] if found else []
        self.records: dict[str, list[Tensor]] = {}
        self.scratch: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def secret_order(self, n: int) -> Tensor:
        """Return the numbers below n in an order for each client, `(clients, n)`.

        On a node, nobody else can compute it; in one process it is keyed to the run.
        """
        return secretly_shuffled(n, len(self)) if self._secret else shuffled(n, self.generators)

    @property
    def state(self) -> Params:
        """Parameters and buffers together, as a model needs them."""
        return {**self.params, **self.buffers}

    @property
    def last_epoch(self) -> bool:
        """Return whether this is the last local epoch of the round."""
        return self.epoch == self.training.epochs - 1

    def fresh(self) -> Tensor:
        """Return whether each client's optimiser has taken no step yet, `(n,)`."""
        moments = [t for tensors in self._moments.values() for t in tensors.values()]
        begun = [t.reshape(len(self), -1).any(1) for t in moments]
        return ~torch.stack(begun).any(0) if begun else torch.ones(len(self), dtype=torch.bool)

    def batches(
        self, epochs: int | None = None, prepare: Callable[[Cohort], ClientData] | None = None
    ) -> Iterator[Batch]:
        """Yield the batches of some local epochs; update `epoch`.

        Args:
            epochs: number of epochs, by default the run's.
            prepare: returns the samples of an epoch, at its start; by default `data`.
        """
        training, augment = self.training, self.data.augment
        shuffled = self.generators if training.shuffle else None
        for epoch in range(training.epochs if epochs is None else epochs):
            self.epoch, data = epoch, prepare(self) if prepare else self.data
            for batch in batches(data, training.batch_size, shuffled, drop_last=training.drop_last):
                yield augment(batch, self.generators) if augment else batch

    @contextmanager
    def training_only(self, *prefixes: str) -> Iterator[None]:
        """Train only the parameters with these prefixes within the context."""
        for name, p in self.params.items():
            p.requires_grad_(name.startswith(prefixes))
        try:
            yield
        finally:
            for p in self.params.values():
                p.requires_grad_(True)

    def step(self, losses: Tensor) -> Params:
        """Take an optimiser step of every client; return the gradients. `losses`: `(n,)`."""
        if losses.shape != (len(self),):
            raise InputError(
                f"the loss has the shape {tuple(losses.shape)}, expected ({len(self)},), one for "
                "each client"
            )
        self.record("loss", losses)
        return self.optimizer.step(losses)

    def record(self, name: str, values: Tensor) -> None:
        """Record a `(n,)` value of this batch for the round's report."""
        self.records.setdefault(name, []).append(values.detach())

    def record_loss(self, losses: Tensor) -> None:
        """Record the loss of a method without optimiser steps, which is the task's. `(n,)`."""
        self.record("loss", losses)
        self.record("task_loss", losses)

    def kept(self, name: str, compute: Callable[[Cohort], Tensor]) -> Tensor:
        """Return values that depend on the clients' samples alone; a process computes them once.

        If those of all clients take more than `MOST_KEPT` bytes, they are computed every time.

        Args:
            name: its name.
            compute: function of the cohort that returns `(n, …)`.
        """
        if self._found and all(name in own for own in self._found):
            return torch.stack([own[name] for own in self._found])
        result = compute(self)
        if self._found and result[0].nbytes * len(self._clients) <= MOST_KEPT:
            for own, t in zip(self._found, result, strict=True):
                own[name] = t
        return result

    def rand(self, *shape: int) -> Tensor:
        """Draw uniform numbers `(n, *shape)`, keyed by client so that cohorts do not matter."""
        return torch.stack([torch.rand(shape, generator=g) for g in self.generators])

    def write_back(self, sound: Tensor | None = None) -> None:
        """Copy the cohort's state to the population, unless it is a view of it.

        Args:
            sound: `(n,)` whether to copy a client's state; by default all are copied.

        Raises:
            InputError: for a name or shape that the method's `init` did not give all clients.
        """
        parts = dataclasses.replace(
            self._clients,
            params=self.params if self._keeps_model else {},
            buffers=self.buffers if self._keeps_model else {},
            moments=self._moments,
            memory=self.memory,
        )
        some = slice(None) if sound is None or bool(sound.all()) else sound
        ids = self.ids[some]
        views = is_range(ids)
        rows = slice(int(ids[0]), int(ids[-1]) + 1) if views else ids
        for (_, whole), (_, part) in zip(self._clients.groups(), parts.groups(), strict=True):
            for name, t in part.items():
                if name not in whole or t.shape[1:] != whole[name].shape[1:]:
                    raise InputError(
                        f"the clients' {name!r} has the shape {tuple(t.shape)} after a round, and "
                        "not after init; give it that shape there"
                    )
                if not views or t.data_ptr() != whole[name][rows].data_ptr():
                    whole[name][rows] = t.detach()[some]


def cohorts(ids: Tensor, clients: Clients, limit: int) -> Sequence[Tensor]:
    """Split increasing ids of clients into cohorts of at most `limit`, about equally large.

    The clients of a cohort have the same number of samples, and so of batches, and their optimisers
    have taken equally many steps, which makes the shared optimiser exact. They have one encoder.
    """
    same = [*clients.moments.get(STEPS, {}).values(), clients.buffers.get(KIND, clients.sizes)]
    plan_of = torch.stack([clients.sizes, *(s.cpu().long() for s in same)], dim=1)
    plans: dict[tuple[int, ...], list[int]] = {}
    for i, plan in zip(ids.tolist(), plan_of[ids].tolist(), strict=True):
        plans.setdefault(tuple(plan), []).append(i)
    return [
        torch.tensor(part)
        for plan in plans.values()
        for part in np.array_split(plan, math.ceil(len(plan) / limit))
    ]
