"""The clients' side of a federation: train, validate, personalise and predict.

A `Trainer` does not depend on the transport. It trains on what the server last sent,
`state.server`, from which the method's `broadcast` makes each client's message. In one process that
is the server's own state; on a node it is what the node received
(`stforecast.federated.nodes.node`).

Clients are numbered through the whole federation, and their numbers key all random generators, so
they train the same in any process.

Result of a round's local training.

Predictions of clients, in batches of samples.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from stforecast.federated.core.data import Batch, ClientData, take
from stforecast.federated.core.method import Method, Participants
from stforecast.federated.core.state import Cohort, State, cohorts, generator
from stforecast.federated.engine.clients import LocalClients
from stforecast.federated.engine.faults import DIVERGED, NOT_THE_CLIENTS, reason, sound_clients
from stforecast.federated.uploads.payload import Like, Payload, joined, like_of, total_bytes


@dataclass(frozen=True)
class Trained:
    """Result of local training: uploads and losses of some clients.

    Attributes:
        ids: `(n,)` increasing ids of the clients that did not fail.
        upload: their encoded upload, one row per client.
        like: types and shapes before encoding.
        loss: `(n,)` mean of the whole local loss of each, in the order of the cohorts.
        task_loss: `(n,)` the same of the task's loss alone.
        bytes_down: bytes of what was sent to all of them.
        failed: ids of failed clients and the reasons.
    """

    ids: Tensor
    upload: Payload
    like: Like
    loss: Tensor
    task_loss: Tensor
    bytes_down: int
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def bytes_up(self) -> int:
        """Bytes of the upload."""
        return total_bytes(self.upload)

    @classmethod
    def nobody(cls, failed: dict[int, str], bytes_down: int) -> Trained:
        """Return the result if all clients failed."""
        ids, loss = torch.empty(0, dtype=torch.long), torch.empty(0)
        return cls(ids, {}, {}, loss, loss, bytes_down, failed)

    @classmethod
    def merged(cls, parts: Sequence[Trained]) -> Trained:
        """Merge the results of several cohorts, in order of client ids."""
        failed = {i: reason for part in parts for i, reason in part.failed.items()}
        bytes_down = sum(part.bytes_down for part in parts)
        found = [part for part in parts if len(part.ids)]
        if not found:
            return cls.nobody(failed, bytes_down)
        ids, upload = joined([(part.ids, part.upload) for part in found])
        loss, task_loss = (
            torch.cat(losses)
            for losses in zip(*((part.loss, part.task_loss) for part in found), strict=True)
        )
        return cls(ids, upload, found[0].like, loss, task_loss, bytes_down, failed)


COHORT = 16
"""Default number of clients that predict together."""

Way = Literal["own", "averaged"]
"""Which model of a client predicts if its method averages models: `own` is the client's model after
its latest local training; in `averaged`, the averaged parts of that model are the server's."""

ROWS_ON_CPU = 128
"""Samples of a client predicted at once on a CPU: activations then stay in cache."""

ROWS_ON_GPU = 4096
"""The same on a GPU, which needs large products."""


@torch.no_grad()
def predictions(
    method: Method,
    state: State,
    data: ClientData,
    *,
    view: str | None = None,
    cohort_size: int = COHORT,
    way: Way | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield every client's predictions from its own state and the server's latest message.

    Args:
        method: the method.
        state: its state, on one device.
        data: samples of all clients, on that device.
        view: one of the method's `views`; by default the first.
        cohort_size: largest number of clients that predict together.
        way: model of a client that predicts; by default the one that the method chooses.

    Yields:
        A batch `(some clients, some samples, …)` and its predictions, clients in order.
    """
    for ids in data.cohorts(cohort_size):
        yield from predictions_of(method, state, data, ids, view, way)


def predictions_of(
    method: Method,
    state: State,
    data: ClientData,
    ids: Tensor,
    view: str | None = None,
    way: Way | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the same as `predictions`, for the clients `ids` together."""
    method.population.train(False)
    clients = state.clients
    on_cpu = all(t.device.type == "cpu" for t in data.tensors.values())
    rows = ROWS_ON_CPU if on_cpu else ROWS_ON_GPU
    own = take({**clients.params, **clients.buffers, **clients.memory}, ids)
    payload = method.broadcast(state.server, Participants(ids, clients.sizes[ids], state.round))
    averaged = payload.keys() & (clients.params.keys() | clients.buffers.keys())
    if way == "averaged":
        own |= {name: payload[name] for name in averaged}
    elif way == "own":
        payload = {name: t for name, t in payload.items() if name not in averaged}
    some = data.take(ids)
    for batch in some.chunks(rows * min(some.group, COHORT)):
        yield batch, method.predict(own, payload, batch["x"], view or method.views[0])


log = logging.getLogger(__name__)

DROPOUT, UPLINK = 2, 3
"""Purposes of random draws, the last part of a generator's key; methods have others."""


class Trainer(LocalClients):
    """Trains and validates clients of a federation. The arguments are those of `LocalClients`.

    Attributes:
        secret_noise: whether the noise of uploads comes from the machine's entropy, so that nobody
            who knows the run's settings can compute it; otherwise it is keyed to the run.
    """

    secret_noise = False

    def train(self, ids: Tensor) -> Trained:
        """Train some clients for a round; those that fail keep their state.

        Args:
            ids: `(n,)` increasing ids, at least one.

        Raises:
            ValueError: if the method would send samples.
        """
        work = cohorts(ids, self.state.clients, self.cohort_size)
        return Trained.merged([t for part in self.workers.map(self._train, work) for t in part])

    def _train(self, method: Method, ids: Tensor) -> list[Trained]:
        """Train a cohort; if that fails, train client by client."""
        method.population.train()
        payload = method.broadcast(self.state.server, self.participants(ids))
        cohort = self._cohort(self.state, ids, copied=True)
        try:
            with self._seeded(method, ids):
                upload = method.local_update(cohort, payload)
        except NOT_THE_CLIENTS:
            raise
        except Exception as e:
            log.debug("clients %s: %s", ids.tolist(), e, exc_info=True)
            if len(ids) > 1:
                return [t for i in ids for t in self._train(method, i[None])]
            failed = {int(ids[0]): reason(e, cohort.params, cohort.buffers, cohort.memory, n=1)}
            return [Trained.nobody(failed, total_bytes(payload))]
        self._refuse_samples(upload)
        return [self._write_back(cohort, payload, upload)]

    def _write_back(self, cohort: Cohort, payload: Payload, upload: Payload) -> Trained:
        """Keep the state of the clients that did not diverge, and encode their upload."""
        of_client = (cohort.params, cohort.buffers, cohort.memory, upload)
        sound = sound_clients(*of_client, n=len(cohort))
        failed, bytes_down = {int(i): DIVERGED for i in cohort.ids[~sound]}, total_bytes(payload)
        if not sound.any():
            return Trained.nobody(failed, bytes_down)
        ids, like = cohort.ids, like_of(upload)
        loss, task_loss = (_mean_record(cohort, name) for name in ("loss", "task_loss"))
        if failed:
            ids, loss, task_loss = ids[sound], loss[sound], task_loss[sound]
            upload = {name: t[sound] for name, t in upload.items()}
        cohort.write_back(sound)
        return Trained(ids, self._encode(ids, upload), like, loss, task_loss, bytes_down, failed)

    def _refuse_samples(self, upload: Payload) -> None:
        kept = {t.untyped_storage().data_ptr() for t in self.train_data.tensors.values()}
        for name, t in upload.items():
            if t.untyped_storage().data_ptr() in kept:
                raise ValueError(f"{self.method.name} would send a client's samples as {name!r}")

    @torch.no_grad()
    def _encode(self, ids: Tensor, upload: Payload) -> Payload:
        if self.uplink.plain:
            return upload
        secret = self.secret_noise
        generators = [None if secret else self._generator(int(i), UPLINK) for i in ids]
        return self.uplink.encode(upload, take(self.state.received, ids), generators)

    def _cohort(self, state: State, ids: Tensor, copied: bool = False) -> Cohort:
        data, training, stage = self.train_data.take(ids), self.method.training, self.place()[0]
        return Cohort(
            state.clients, ids, data, training, state.seed, state.round, copied, stage,
            self.method.clipped_apart, self.first, self.found,
        )  # fmt: skip

    def _generator(self, i: int, purpose: int) -> torch.Generator:
        return generator(self.state.seed, self.state.round, self.first + i, purpose)

    @contextmanager
    def _seeded(self, method: Method, ids: Tensor) -> Iterator[None]:
        """Key each client's dropout to the run, the round and the client.

        Layers that draw from torch's global generators are keyed to the cohort.
        """
        with ExitStack() as stack:
            if method.population.drops:
                own = [self._generator(int(i), DROPOUT) for i in ids]
                stack.enter_context(method.population.drawing(own))
            if self.workers.draws:
                devices = [self.device] if self.device.type == "cuda" else []
                stack.enter_context(torch.random.fork_rng(devices=devices))
                torch.manual_seed(self._generator(int(ids[0]), DROPOUT).initial_seed())
            yield

    def ready(self) -> State:
        """Return the state that predicts, personalised if the method does so.

        A client without samples in this stage predicts with what it receives.
        """
        if not self.method.personalises:
            return self.state
        state = copy.deepcopy(self.state)
        self.method.population.train()
        for ids in cohorts(torch.arange(len(self)), state.clients, self.cohort_size):
            cohort = self._cohort(state, ids)
            payload = self.method.broadcast(state.server, self.participants(ids))
            with self._seeded(self.method, ids):
                self.method.personalise(cohort, payload)
            cohort.write_back()
        return state

    def score(self, data: ClientData, state: State) -> tuple[float, float]:
        """Return the task's score over all samples of all clients as total and count.

        Args:
            data: samples of all clients.
            state: the state that predicts, see `ready`.
        """
        total, count = (math.fsum(part) for part in zip(*self.scores(data, state), strict=True))
        return total, count

    def scores(self, data: ClientData, state: State) -> list[tuple[float, float]]:
        """Return the task's score of each cohort as total and count; arguments as in `score`."""

        @torch.no_grad()
        def of_cohort(method: Method, ids: Tensor) -> tuple[float, float]:
            total, count = 0.0, 0.0
            for batch, prediction in predictions_of(method, state, data, ids):
                of_samples = method.task.score(prediction, batch)
                s, c = (torch.where(batch["valid"], v, 0).sum() for v in of_samples)
                total, count = total + float(s), count + float(c)
            return total, count

        return self.workers.map(of_cohort, data.cohorts(self.cohort_size))


def _mean_record(cohort: Cohort, name: str) -> Tensor:
    """Return the mean of the cohort's records of `name`, `(clients,)`; NaN without records."""
    nothing = [torch.full((len(cohort),), math.nan)]
    return torch.stack(cohort.records.get(name, nothing)).mean(0)
