"""A part of a run: a range of its clients and their trainer, in a process of their own.

`stforecast.federated.spread` joins the parts.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from torch import Tensor

from stforecast.federated.data import ClientData, take
from stforecast.federated.method import Method, Participants, overridden
from stforecast.federated.population import Params
from stforecast.federated.state import Clients, State
from stforecast.federated.stream import Stream
from stforecast.federated.trained import Trained
from stforecast.federated.trainer import Trainer
from stforecast.federated.uploads.payload import Payload


class Part:
    """Trainer of a range of a run's clients; an actor holds one.

    Args:
        method: the method of the whole run.
        train: training samples of these clients.
        validation: samples that select the best round, or None.
        first: number of the first of these clients in the run.
        **options: further options of `Trainer`.
    """

    def __init__(
        self,
        method: Method,
        train: ClientData | Stream,
        validation: ClientData | None,
        first: int,
        **options: Any,
    ) -> None:
        mixed = method.population.mixed
        self.trainer = Trainer(_of_part(method, first), train, validation, first=first, **options)
        for worker in self.trainer.workers.methods:
            worker.population.mixed = mixed  # The precision was measured once, for all parts.
        self._ready: State | None = None

    def train(self, sent: State, ids: Tensor) -> tuple[Trained, Params]:
        """Train some clients for a round.

        Args:
            sent: what the server sends, see `SpreadTrainer`.
            ids: `(n,)` increasing ids of the clients in the whole run; may be empty.

        Returns:
            The result by the same ids, and the rows `(n, …)` of all tensors of their new state.
        """
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


def _of_part(method: Method, first: int) -> Method:
    """Return the method for the trainer of a part, which counts its clients from 0."""

    def broadcast(server: dict[str, Tensor], to: Participants) -> Payload:
        return method.broadcast(server, dataclasses.replace(to, ids=to.ids + first))

    here = overridden(method, broadcast=broadcast)
    here.population = copy.copy(method.population)
    here.population.own = {}  # The first state of the clients is sent to the part.
    return here


def state_of(clients: Clients) -> Params:
    """Return all tensors of the clients except their sizes."""
    return {name: t for name, t in clients.flat().items() if name != "sizes"}
