"""A trainer whose clients are spread over actors, such as processes of a Ray cluster.

Each actor holds a part of the run: a trainer of a range of the clients, in a process of its own.
In a round all parts receive the server's state, train their participants, and return the uploads
and the new state of these clients. The uploads are joined in the order of the clients, and the
server aggregates them as in one process.

This process keeps a copy of all clients' state. Checkpoints are therefore those of one process. A
part whose actor was lost starts again from the state before the round and repeats its work.

The numbers equal those of one process with as many threads, bit for bit where the cohorts are the
same: parts consist of whole cohorts if there are enough of these. Where cohorts are cut (if only
some clients take part, or if they differ in their number of samples), sums are rounded differently.
Dropout then also draws other numbers, except for `ClientDropout`, which the perceptron has.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words, counted
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method, of_clients
from stforecast.federated.core.state import Clients, State
from stforecast.federated.core.tensors import Params, take
from stforecast.federated.engine.trainer import Trained, Trainer


class PartTrainer:
    """Trainer of a range of a run's clients, from number `first`; an actor holds one."""

    def __init__(
        self,
        method: Method,
        train: ClientData | Stream,
        validation: ClientData | None,
        first: int,
        **options: Any,
    ) -> None:
        mixed = method.population.mixed
        n_clients = len(train.stages[0] if isinstance(train, Stream) else train)
        here = of_clients(method, torch.arange(first, first + n_clients))
        here.population = copy.copy(method.population)
        here.population.own = {}  # The first state of the clients is sent to the part.
        self.trainer = Trainer(here, train, validation, first=first, **options)
        for worker in self.trainer.workers.methods:
            worker.population.mixed = mixed  # The precision was measured once, for all parts.
        self._ready: State | None = None

    def train(self, sent: State, ids: Tensor) -> tuple[Trained, Params]:
        """Train clients of increasing `ids`; return the result, and the rows of their new state."""
        self._receive(sent)
        self._ready = None
        trainer, first = self.trainer, self.trainer.first
        trainer.begin_round()
        if not len(ids):
            return Trained.nobody({}, 0), {}
        found = trainer.train(ids - first)
        failed = {first + i: reason for i, reason in found.failed.items()}
        found = dataclasses.replace(found, ids=found.ids + first, failed=failed)
        return found, take(state_of(trainer.state.clients), ids - first)

    def ready(self, sent: State) -> Params:
        """Return the clients' state that predicts, all rows of all tensors."""
        return state_of(self._predicting(sent).clients)

    def scores(self, sent: State) -> list[tuple[float, float]]:
        """Return the validation scores of `Trainer.scores`."""
        state = self._predicting(sent)
        validation = self.trainer.validation
        return [] if validation is None else self.trainer.scores(validation, state)

    def _predicting(self, sent: State) -> State:
        self._receive(sent)
        if self._ready is None or self._ready.round != sent.round:
            self._ready = self.trainer.ready()
        return self._ready

    def _receive(self, sent: State) -> None:
        if len(sent.clients):
            self.trainer.restore(sent)
            self._ready = None
        self.trainer.receive(sent.server, sent.round)
        self.trainer.state.received = sent.received


def state_of(clients: Clients) -> Params:
    """Return all tensors of the clients except their sizes."""
    return {name: t for name, t in clients.flat().items() if name != "sizes"}


log = logging.getLogger(__name__)

MOST_LOST = 3
"""Number of actors that may be lost in a row during one task of a round."""


class Lost(Exception):
    """Raised if an actor is gone; its text is the reason, in one line."""


class Actors(Protocol):
    """Places where parts live: processes, or objects in tests."""

    def __len__(self) -> int:
        """Return the number of actors."""
        ...

    def start(self, i: int, make: Callable[[], PartTrainer]) -> None:
        """Let the actor `i` make its part; start it if it is not there."""
        ...

    def ask(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of several parts, with its arguments; return results or `Lost` by actor."""
        ...


def spread_trainer(
    *data: Any, actors: Actors, workers: int = 1, memory: int | None = None, **options: Any
) -> Trainer:
    """Return a trainer whose clients are trained in several actors, none of them started.

    Half of `memory` is for this process, half for the actors; `workers` are those of an actor.
    """
    half, n = memory // 2 if memory else None, len(actors)
    of_actor = {"workers": workers, "memory": half // n if half else None}
    # With the workers of all actors the cohorts are those of one process.
    return SpreadTrainer(actors, of_actor, *data, workers=n * workers, memory=half, **options)


class SpreadTrainer(Trainer):
    """A trainer whose clients are trained in several actors, see `spread_trainer`.

    An actor is sent a `State`: the server's state, and that of its clients if it does not have it.

    Args:
        actors: the actors.
        of_actor: options of the trainer in each.
        *data: method and samples, see `Trainer`.
        **options: options of this trainer, see `Trainer`.
    """

    def __init__(
        self, actors: Actors, of_actor: Mapping[str, Any], *data: Any, **options: Any
    ) -> None:
        super().__init__(*data, **options)
        self._options = {
            "seed": self.state.seed,
            "uplink": self.uplink,
            "cohort_size": self.cohort_size,
            **of_actor,
        }
        self._actors = actors
        self._parts = split_clients(len(self), len(actors), self.cohort_size)
        self._missing, self._stale = set(range(len(actors))), set(range(len(actors)))
        self._predicting = self.state

    def _make(self, part: range) -> Callable[[], PartTrainer]:
        """Return what makes a part, with the samples of its clients only."""
        ids = torch.tensor(part)
        stages = Stream([stage.part(ids) for stage in self.stream.stages], self.stream.order)
        validation = None if self.validation is None else self.validation.part(ids)
        method, options = self.method, self._options
        return lambda: PartTrainer(method, stages, validation, part.start, **options)

    def train(self, ids: Tensor) -> Trained:
        """Train some clients for a round; keep the rows of their new state."""
        bounds = torch.tensor([part.start for part in self._parts[1:]])
        of_parts = ids.tensor_split(torch.searchsorted(ids, bounds))
        answers: list[tuple[Trained, Params]] = self._ask("train", [(own,) for own in of_parts])
        state = self.state.clients.flat()
        for own, (_, rows) in zip(of_parts, answers, strict=True):
            for name, t in rows.items():
                state[name][own] = t
        return Trained.merged([trained for trained, _ in answers])

    def ready(self) -> State:
        """Return the state that predicts, see `Trainer.ready`."""
        self._predicting = self.state
        if self.method.personalises:
            self._predicting = self.unfitted()
            whole = self._predicting.clients.flat()
            for part, rows in zip(self._parts, self._ask("ready"), strict=True):
                for name, t in rows.items():
                    whole[name][part.start : part.stop] = t
        return self._predicting

    def scores(self, data: ClientData, state: State) -> list[tuple[float, float]]:
        """Return scores as `Trainer.scores`; actors compute those of the validation samples."""
        if data is not self.validation or state is not self._predicting:
            return super().scores(data, state)
        return [score for of_part in self._ask("scores") for score in of_part]

    def restore(self, state: State) -> None:
        """Restore a state, and send actors that of their clients before the next round."""
        super().restore(state)
        self._stale = set(range(len(self._parts)))

    def _ask(self, task: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of all parts; repeat it on a new actor where one was lost."""
        given = arguments or [()] * len(self._parts)
        found: dict[int, Any] = {}
        for _ in range(1 + MOST_LOST):
            asked = [i for i in range(len(self._parts)) if i not in found]
            for i in self._missing.intersection(asked):
                self._actors.start(i, self._make(self._parts[i]))
                self._missing.discard(i)
            calls = {i: (task, self._sent(i), *given[i]) for i in asked}
            for i, answer in self._actors.ask(calls).items():
                if isinstance(answer, Lost):
                    self._note_lost(i, answer)
                else:
                    found[i] = answer
                    self._stale.discard(i)
            if len(found) == len(self._parts):
                return [found[i] for i in range(len(self._parts))]
        raise InputError(
            f"actors were lost {1 + MOST_LOST} times in a row, see the notices; ",
            Words("if memory was short, take fewer {actors}"),
        )

    def _note_lost(self, i: int, reason: Lost) -> None:
        clients = self._parts[i]
        log.warning(
            "round %d: the actor of clients %d to %d was lost (%s); a new one repeats its work",
            self.state.round + 1,
            clients.start,
            clients.stop - 1,
            reason,
        )
        self._missing.add(i)
        self._stale.add(i)

    def _sent(self, i: int) -> State:
        """Return what an actor receives; tensors of its clients only if it does not have them."""
        state, ids = self.state, torch.tensor(self._parts[i])
        nobody = Clients({}, {}, {}, torch.empty(0, dtype=torch.long))
        clients = state.clients.take(ids) if i in self._stale else nobody
        return State(clients, state.server, state.round, state.seed, take(state.received, ids))


def split_clients(n_clients: int, n_parts: int, cohort_size: int) -> list[range]:
    """Split clients into contiguous parts of about the same size.

    Parts consist of whole cohorts (see `stforecast.federated.core.state.cohorts`) if there are
    enough.

    >>> split_clients(7, 2, 2)
    [range(0, 4), range(4, 7)]
    """
    check_parts(n_parts, n_clients)
    n_cohorts = math.ceil(n_clients / cohort_size)
    pieces = np.array_split(np.arange(n_clients), n_cohorts if n_cohorts >= n_parts else n_clients)
    grouped = np.array_split(np.arange(len(pieces)), n_parts)
    return [range(int(pieces[g[0]][0]), int(pieces[g[-1]][-1]) + 1) for g in grouped]


def check_parts(n_parts: int, n_clients: int) -> None:
    """Check that there is a client for each part."""
    if n_parts > n_clients:
        raise InputError(
            f"{n_parts} actors for {counted(n_clients, 'client')}; ",
            Words("each actor needs a client, so use fewer {actors}"),
        )
