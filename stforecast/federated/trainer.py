"""The clients' side of a federation: a population of clients with its samples and its state.

A `Trainer` knows no wire. It trains on what the server last sent, `state.server`, out of which the
method's `broadcast` makes each client's message. In one process that is the server's own state; on
a node, see `stforecast.federated.nodes.node`, it is what arrived there.

Clients are numbered through the whole federation, and their numbers key all that is random, so they
train alike wherever they are.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated import sizing
from stforecast.federated.data import ClientData, take
from stforecast.federated.faults import DIVERGED, NOT_THE_CLIENTS, sound_clients
from stforecast.federated.method import Method, Participants, initial_state
from stforecast.federated.predictions import predictions_of
from stforecast.federated.state import Clients, Cohort, State, cohorts, generator
from stforecast.federated.store import Store
from stforecast.federated.stream import Stream
from stforecast.federated.trained import Trained
from stforecast.federated.training import kept_moments
from stforecast.federated.uploads.payload import Payload, like_of, total_bytes
from stforecast.federated.uploads.uplink import Uplink
from stforecast.federated.workers import Workers, has_dropout

log = logging.getLogger(__name__)


class Trainer:
    """Trains clients of a federation, and predicts with them.

    Args:
        method: the method, with its model, task and settings.
        train: training samples of these clients, or a stream of them, stage after stage.
        validation: samples to choose the best round by, or None.
        seed: seed of the run.
        device: where to compute.
        cohort_size: most clients trained together; None takes what fits the caches of a CPU or
            the free memory of a GPU, and one by one where the model runs client by client.
        uplink: what is done to uploads on their way.
        workers: cohorts that train at the same time, on a CPU.
        memory: bytes that the run may take; where it needs more, the clients' states are kept in
            files. By default what the machine has left.
        first: number of the first of these clients in the whole federation.
        n_clients: clients of the whole federation; by default these are all.

    Raises:
        InputError: if the data do not fit the settings, the numbers not the federation, or the run
            not the memory.

    Attributes:
        state: everything that survives a round.
        train_data: samples of the present stage.
    """

    def __init__(
        self,
        method: Method,
        train: ClientData | Stream,
        validation: ClientData | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        cohort_size: int | None = None,
        uplink: Uplink | None = None,
        workers: int = 1,
        memory: int | None = None,
        first: int = 0,
        n_clients: int | None = None,
    ) -> None:
        self.method, self.device, self.first = method, torch.device(device), first
        self.stream = train if isinstance(train, Stream) else Stream([train])
        self.stream.check(method.training)
        self.train_data = self.stream.stages[0].to(device)
        self.validation = validation.to(device) if validation is not None else None
        self.uplink = uplink or Uplink()
        n_clients = first + len(self) if n_clients is None else n_clients
        if not 0 <= first <= n_clients - len(self):
            raise InputError(
                f"this node's {len(self)} clients begin at number {first}, which does not fit a "
                f"federation of {n_clients}; set first-client or the number of clients right"
            )
        self._draws = has_dropout(method)
        self._workers = Workers(method, workers if self.device.type == "cpu" else 1)
        self.cohort_size = cohort_size or sizing.cohort_size(
            method.population, len(self), method.training.batch_size, self.device, self.n_workers
        )
        sizing.keep_freed_memory()
        self._store = self._make_store(memory)
        self.state = self._initial_state(n_clients, seed)

    def __len__(self) -> int:
        return len(self.train_data)

    @property
    def numbers(self) -> range:
        """The clients' numbers in the whole federation."""
        return range(self.first, self.first + len(self))

    @property
    def n_workers(self) -> int:
        """Cohorts that train at the same time."""
        return len(self._workers.methods)

    def predicted_memory(self) -> sizing.Memory:
        """What the run will need, whatever the method adds."""
        data = [*self.stream.stages, *([self.validation] if self.validation else [])]
        return sizing.predicted_memory(
            self.method.population, self.method.training, len(self),
            self.n_workers * min(len(self), self.cohort_size), data, best=bool(self.validation),
        )  # fmt: skip

    def _make_store(self, memory: int | None) -> Store | None:
        """Files for the clients' states, where memory has no room for them."""
        if self.device.type != "cpu":
            return None
        needed = self.predicted_memory()
        level = logging.INFO if needed.total > sizing.WORTH_TELLING else logging.DEBUG
        log.log(level, "%d clients in cohorts of %d: %s", len(self), self.cohort_size, needed)
        return None if needed.fits(memory) else Store()

    def _initial_state(self, n_clients: int, seed: int) -> State:
        """What the method gives to all clients and the server; these clients' rows of it."""
        own, rows = self.train_data.sizes, torch.tensor(self.numbers)
        sizes = own.min().repeat(n_clients)  # Nobody told this trainer those of the others.
        sizes[rows] = own
        state = initial_state(self.method, sizes, seed, self.device)
        clients, store = state.clients, self._store
        for group in (clients.params, clients.buffers, clients.memory):
            for name, t in take(group, rows).items():
                group[name] = store.copy(t) if store else t.clone()
        zeros = store.zeros if store else torch.zeros_like
        clients.moments = kept_moments(clients.params, self.method.training, zeros)
        clients.sizes = own
        return state

    def receive(self, server: Payload, round: int) -> None:
        """Take what the server sends before a round.

        Args:
            server: what the method's `broadcast` makes messages of.
            round: index of the round, from 0.
        """
        self.state.server, self.state.round = server, round

    def place(self) -> tuple[int, int]:
        """Stage of the coming round, and the index by which its participants are drawn."""
        return self.stream.place(self.state.round, self.method.training.rounds)

    def enter(self, stage: int) -> None:
        """Turn to the data of a stage."""
        if len(self.stream) > 1:
            self.train_data = self.stream.stages[stage].to(self.device)
            self.state.clients.sizes = self.train_data.sizes

    def some(self, ids: Tensor) -> Participants:
        """The clients `ids` in the coming round."""
        return Participants(ids, self.train_data.sizes[ids], self.state.round, self.place()[0])

    def train(self, ids: Tensor) -> Trained:
        """Train some of the clients for a round; those that fail keep their state.

        Args:
            ids: `(n,)` increasing ids, at least one.

        Raises:
            ValueError: if the method would send samples.
        """
        work = cohorts(ids, self.state.clients, self.cohort_size)
        return Trained.merged([t for part in self._workers.map(self._train, work) for t in part])

    def _train(self, method: Method, ids: Tensor) -> list[Trained]:
        """What a cohort sends after its local training; if it fails, client by client."""
        method.population.train()
        payload = method.broadcast(self.state.server, self.some(ids))
        cohort = self._cohort(self.state, ids, copied=True)
        try:
            with self._own_randomness(int(ids[0])):
                upload = method.local_update(cohort, payload)
        except NOT_THE_CLIENTS:
            raise
        except Exception as e:
            log.debug("clients %s: %s", ids.tolist(), e, exc_info=True)
            if len(ids) > 1:
                return [t for i in ids for t in self._train(method, i[None])]
            failed = {int(ids[0]): f"{type(e).__name__}: {e}"}
            return [Trained.nobody(failed, total_bytes(payload))]
        self._refuse_samples(upload)
        return [self._returned(cohort, payload, upload)]

    def _returned(self, cohort: Cohort, payload: Payload, upload: Payload) -> Trained:
        """What the clients that did not diverge send; only their state is kept."""
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
        generators = [self._generator(int(i), 3) for i in ids]
        return self.uplink.encode(upload, take(self.state.received, ids), generators)

    def _cohort(self, state: State, ids: Tensor, copied: bool = False) -> Cohort:
        data, training, stage = self.train_data.take(ids), self.method.training, self.place()[0]
        return Cohort(
            state.clients, ids, data, training, state.seed, state.round, copied, stage,
            self.method.clipped_apart, self.first,
        )  # fmt: skip

    def _generator(self, i: int, purpose: int) -> torch.Generator:
        return generator(self.state.seed, self.state.round, self.first + i, purpose)

    @contextmanager
    def _own_randomness(self, i: int) -> Iterator[None]:
        """Key torch's global generators, which dropout uses, to the run, round and cohort."""
        if not self._draws:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self._generator(i, 2).initial_seed())
            yield

    def ready(self) -> State:
        """The state as it predicts: where the method says so, fitted to each client's own data.

        A client without samples in this stage predicts with what it receives.
        """
        if not self.method.personalises:
            return self.state
        state = copy.deepcopy(self.state)
        self.method.population.train()
        for ids in cohorts(torch.arange(len(self)), state.clients, self.cohort_size):
            cohort = self._cohort(state, ids)
            payload = self.method.broadcast(state.server, self.some(ids))
            with self._own_randomness(int(ids[0])):
                self.method.personalise(cohort, payload)
            cohort.write_back()
        return state

    def score(self, data: ClientData, state: State) -> tuple[float, float]:
        """The task's score over all samples of all clients: total and count.

        Args:
            data: samples of all clients.
            state: the state that predicts, as `ready` gives it.
        """

        @torch.no_grad()
        def of_cohort(method: Method, ids: Tensor) -> tuple[float, float]:
            total, count = 0.0, 0.0
            for batch, prediction in predictions_of(method, state, data, ids):
                of_samples = method.task.score(prediction, batch)
                s, c = (torch.where(batch["valid"], v, 0).sum() for v in of_samples)
                total, count = total + float(s), count + float(c)
            return total, count

        scored = self._workers.map(of_cohort, torch.arange(len(data)).split(self.cohort_size))
        total, count = (math.fsum(part) for part in zip(*scored, strict=True))
        return total, count

    def copy(self, state: State, into: State | None = None) -> State:
        """A copy that predicts as a state does: without the optimiser's moments.

        Args:
            state: any state of these clients.
            into: an older copy, whose memory is used where it fits.
        """
        clients = dataclasses.replace(state.clients, moments={})
        kept, now, copies = into.flat() if into else {}, self.state.flat(), {}
        for name, t in dataclasses.replace(state, clients=clients).flat().items():
            if name in kept and kept[name].shape == t.shape and kept[name].dtype == t.dtype:
                copies[name] = kept[name].copy_(t)
            elif self._store and name.startswith("clients/"):
                copies[name] = self._store.copy(t)
            else:  # Some of the server's tensors stay on the CPU.
                device = now[name].device if name in now else self.device
                copies[name] = t.to(device, copy=True)
        return State.from_flat(copies, state.round, state.seed)

    def restore(self, state: State) -> None:
        """Take up what another trainer of the same clients had after a round.

        Raises:
            InputError: if the state's clients are not these.
        """
        own, given = self.state.clients.flat(), state.clients.flat()
        for name in own.keys() | given.keys():
            shapes = [ts[name].shape if name in ts else None for ts in (own, given)]
            if shapes[0] != shapes[1]:
                raise InputError(f"a state with {name} {shapes[1]} is of another run: {shapes[0]}")
        for name, t in own.items():
            if name != "sizes":  # Those may be the data's own.
                t.copy_(given[name])
        own_sizes = Clients({}, {}, {}, given["sizes"])
        rest = self.copy(dataclasses.replace(state, clients=own_sizes))
        rest.clients = dataclasses.replace(self.state.clients, sizes=given["sizes"])
        vars(self.state).update(vars(rest))  # Others may hold this state too.
        if state.round:
            self.enter(self.stream.place(state.round - 1, self.method.training.rounds)[0])


def _mean_record(cohort: Cohort, name: str) -> Tensor:
    """Mean of what the cohort noted under `name`, `(clients,)`; NaN if it noted nothing."""
    nothing = [torch.full((len(cohort),), math.nan)]
    return torch.stack(cohort.records.get(name, nothing)).mean(0)
