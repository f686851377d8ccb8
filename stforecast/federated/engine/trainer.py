"""The clients' side of a federation: train, validate, personalise and predict.

A `Trainer` does not depend on the transport. It trains on what the server last sent,
`state.server`, from which the method's `broadcast` makes each client's message. In one process that
is the server's own state; on a node it is what the node received
(`stforecast.federated.nodes.node`).

Clients are numbered through the whole federation, and their numbers key all random generators, so
they train the same in any process.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from data_prep.base.errors import InputError
from data_prep.base.progress import noting
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method, initial_state, predictions_of
from stforecast.federated.core.state import (
    Clients,
    Cohort,
    Participants,
    State,
    cohorts,
    generator,
    seeded,
)
from stforecast.federated.core.tensors import (
    Like,
    Params,
    Payload,
    check_tensors,
    joined,
    like_of,
    take,
    total_bytes,
)
from stforecast.federated.core.training import kept_moments
from stforecast.federated.engine import sizing
from stforecast.federated.engine.faults import DIVERGED, NOT_THE_CLIENTS, reason, sound_clients
from stforecast.federated.engine.sizing import Store, Workers, bfloat16_pays
from stforecast.federated.uploads.uplink import Uplink


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
        loss = torch.cat([part.loss for part in found])
        task_loss = torch.cat([part.task_loss for part in found])
        return cls(ids, upload, found[0].like, loss, task_loss, bytes_down, failed)


log = logging.getLogger(__name__)

IN_FILES = 2**29
"""Most bytes in memory of what clients fit before they predict; more are in files."""

DROPOUT, UPLINK = 2, 3
"""Purposes of random draws, the last part of a generator's key; methods have others."""


class Trainer:
    """Samples and state of some clients, or of all of them; trains and validates these clients.

    Args:
        method: the method, with its model, task and settings.
        train: training samples of these clients, or a stream of stages of them.
        validation: samples that select the best round, or None.
        seed: seed of the run.
        device: where to compute.
        cohort_size: largest number of clients trained together; None takes as many as fit the
            caches of a CPU or the free memory of a GPU, or 1 if the model runs client by client.
        uplink: processing of uploads before they are sent.
        workers: cohorts that train at the same time, on a CPU.
        memory: bytes that the run may take, by default the machine's free memory; if it needs more,
            the clients' states are kept in files.
        first: number of the first of these clients in the whole federation.
        n_clients: clients of the whole federation; by default the number of these clients.

    Attributes:
        state: everything that is kept from round to round.
        train_data: samples of the current stage.
        workers: copies of the method, one for each cohort that trains at the same time.
        found: what was computed from each client's samples of this stage, see `Cohort.kept`.
        secret_noise: whether the noise of uploads, and orders that are to be secret, come from the
            machine's entropy, so that nobody who knows the run's settings can compute them;
            otherwise they are keyed to the run.
    """

    secret_noise = False

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
                f"federation of {n_clients}; correct first-client or the number of clients"
            )
        self.workers = Workers(method, workers if self.device.type == "cpu" else 1)
        groups = self.train_data.group_sizes
        rows = method.training.batch_size * (1 if groups is None else int(groups.max()))
        self.cohort_size = cohort_size or sizing.cohort_size(
            method.population, len(self), rows, self.device, len(self.workers)
        )
        self._choose_precision()
        sizing.keep_freed_memory()
        self._store = self._make_store(memory)
        # Initial parameters and buffers, as views of one client's, if clients keep none.
        self._model: tuple[Params, Params] | None = None
        self.state = self._initial_state(n_clients, seed)
        self.found: list[Params] = [{} for _ in range(len(self))]

    def __len__(self) -> int:
        return len(self.train_data)

    @property
    def numbers(self) -> range:
        """Numbers of these clients in the whole federation."""
        return range(self.first, self.first + len(self))

    def _choose_precision(self) -> None:
        """Use single precision instead of bfloat16 on a CPU where bfloat16 saves no time."""
        training, population = self.method.training, self.method.population
        if not population.mixed or self.device.type != "cpu":
            return
        some = self.train_data.take(torch.arange(min(len(self), self.cohort_size)))
        threads = 1 if self.workers.parallel else torch.get_num_threads()
        pays = bfloat16_pays(population, some.tensors["x"][:, : training.batch_size], threads)
        for method in self.workers.methods:
            method.population.mixed = pays

    def predicted_memory(self) -> sizing.Memory:
        """Predict the memory of the run, without what the method adds."""
        return sizing.predicted_memory(
            self.method.population,
            self.method.training,
            len(self),
            n_in_training=len(self.workers) * min(len(self), self.cohort_size),
            keeps_model=self.method.remembers,
            data=[*self.stream.stages, *([self.validation] if self.validation else [])],
            best=bool(self.validation),
        )

    def _make_store(self, memory: int | None) -> Store | None:
        """Return files for the clients' states if these do not fit in memory, else None."""
        if self.device.type != "cpu":
            return None
        needed = self.predicted_memory()
        level = logging.INFO if needed.total > 10**9 else logging.DEBUG
        log.log(level, "%d clients in cohorts of %d: %s", len(self), self.cohort_size, needed)
        if needed.fits(memory):
            return None
        store = Store()
        log.info("clients' states are in %s", store.folder)
        return store

    def _initial_state(self, n_clients: int, seed: int) -> State:
        """Build the state before the first round, with these clients' rows only."""
        own, rows = self.train_data.sizes, slice(self.numbers.start, self.numbers.stop)
        sizes = own.min().repeat(n_clients)  # The sizes of other clients are unknown here.
        sizes[rows] = own
        state = initial_state(self.method, sizes, seed, self.device, self.first)
        clients, store = state.clients, self._store
        copy, zeros = (store.copy, store.zeros) if store else (torch.clone, torch.zeros_like)
        groups = clients.params, clients.buffers, clients.memory
        params, buffers, memory = ({name: t[rows] for name, t in ts.items()} for ts in groups)
        clients.moments = kept_moments(params, self.method.training, zeros)
        if not self.method.remembers:
            self._model = params, buffers
            params, buffers = {}, {}
        clients.params, clients.buffers, clients.memory = (
            {name: copy(t) for name, t in ts.items()} for ts in (params, buffers, memory)
        )
        clients.memory |= self.method.sample_memory(self.train_data)
        clients.sizes = own
        return state

    def receive(self, server: Payload, round: int) -> None:
        """Receive the tensors that the method's `broadcast` reads, before a round."""
        self.state.server, self.state.round = server, round

    def place(self) -> tuple[int, int]:
        """Stage of the next round, and the index that seeds the draw of its participants."""
        return self.stream.place(self.state.round, self.method.training.rounds)

    def begin_round(self) -> None:
        """Enter the stage of the next round; reset optimisers that last for one stage."""
        training, state = self.method.training, self.state
        self.enter(self.place()[0])
        if training.optimizer_state == "stage" and self.stream.begins(state.round, training.rounds):
            for tensors in state.clients.moments.values():
                for t in tensors.values():
                    t.zero_()

    def enter(self, stage: int) -> None:
        """Switch to the data of a stage."""
        if len(self.stream) > 1:
            self.train_data = self.stream.stages[stage].to(self.device)
            self.found = [{} for _ in range(len(self))]
            self.state.clients.sizes = self.train_data.sizes

    def participants(self, ids: Tensor) -> Participants:
        """Return the clients `ids` as participants of the next round."""
        return Participants(ids, self.train_data.sizes[ids], self.state.round, self.place()[0])

    def copy(self, state: State, into: State | None = None) -> State:
        """Copy the part of a state that predicts: all but the optimiser's moments.

        Tensors of an older copy `into` are overwritten where the shapes match.
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
                copies[name] = t.to(device, copy=True, memory_format=torch.contiguous_format)
        return State.from_flat(copies, state.round, state.seed)

    def kept(self, state: State, into: State | None = None) -> State:
        """Return the part of a `ready` state that predicts, which no later round changes.

        It is a copy, as by `copy`, if the state is that of the rounds or belongs in a file.
        """
        if state is self.state or self._store:
            return self.copy(state, into)
        return dataclasses.replace(state, clients=dataclasses.replace(state.clients, moments={}))

    def restore(self, state: State) -> None:
        """Restore the state that the same clients had after a round, maybe in another process."""
        own, given = self.state.clients.flat(), state.clients.flat()
        for name in own.keys() | given.keys():
            shapes = [ts[name].shape if name in ts else None for ts in (own, given)]
            if shapes[0] != shapes[1]:
                raise InputError(f"a state with {name} {shapes[1]} is of another run: {shapes[0]}")
        for name, t in own.items():
            if name != "sizes":  # The data may share this tensor.
                t.copy_(given[name])
        own_sizes = Clients({}, {}, {}, given["sizes"])
        rest = self.copy(dataclasses.replace(state, clients=own_sizes))
        rest.clients = dataclasses.replace(self.state.clients, sizes=given["sizes"])
        vars(self.state).update(vars(rest))  # The server may hold this same object.
        if state.round:
            self.enter(self.stream.place(state.round - 1, self.method.training.rounds)[0])

    def with_new_samples(self, state: State) -> State:
        """Return a state of these clients that had other samples, to go on with the present ones.

        The best round's state is saved without moments, so its optimiser starts with zero moments.
        What clients fit before they predict is left out. What a saved state lacks is received
        again, or as it is before the first round.
        """
        fresh, method = self.state, self.method
        memory = {n: t for n, t in state.clients.memory.items() if n in fresh.clients.memory}
        clients = dataclasses.replace(state.clients, memory=memory)
        resumed = copy.deepcopy(dataclasses.replace(state, clients=clients))
        own = dict(resumed.clients.groups())
        everyone = Participants(torch.arange(len(self)), fresh.clients.sizes, state.round)
        received = method.broadcast(state.server, everyone)
        for group in ("params", "buffers", "memory"):
            for name, t in dict(fresh.clients.groups())[group].items():
                if name not in own[group]:
                    own[group][name] = t if group == "memory" else received.get(name, t).clone()
        resumed.clients.sizes = fresh.clients.sizes
        if not resumed.clients.moments:
            resumed.clients.moments = fresh.clients.moments
        resumed.clients.memory |= method.sample_memory(self.train_data)
        return resumed

    def train(self, ids: Tensor) -> Trained:
        """Train clients of increasing `ids` for a round; those that fail keep their state.

        Raises:
            InputError: if the method would send samples, or changes the server's state.
        """
        work = cohorts(ids, self.state.clients, self.cohort_size)
        server = {name: (t, t._version) for name, t in self.state.server.items()}
        trained = [t for part in self.workers.map(self._train, work) for t in part]
        for name, (t, version) in server.items():
            if t._version != version:
                raise InputError(
                    f"{self.method.name}: clients change {name!r} of the server in place; copy "
                    "what is received before changing it"
                )
        return Trained.merged(trained)

    def _train(self, method: Method, ids: Tensor) -> list[Trained]:
        """Train a cohort; if that fails, train client by client."""
        method.population.train()
        payload = method.broadcast(self.state.server, self.participants(ids))
        check_tensors(f"{method.name}, broadcast", payload, len(ids))
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
            why = reason(e, cohort.params, cohort.buffers, cohort.memory, n=1)
            return [Trained.nobody({int(ids[0]): why}, total_bytes(payload))]
        check_tensors(f"{method.name}, upload", upload, len(ids))
        samples = [*self.train_data.tensors.values(), *cohort.data.tensors.values()]
        kept = {t.untyped_storage().data_ptr() for t in samples}
        for name, t in upload.items():
            if t.untyped_storage().data_ptr() in kept:
                raise InputError(f"{self.method.name} would send a client's samples as {name!r}")
        return [self._write_back(cohort, payload, upload)]

    def _write_back(self, cohort: Cohort, payload: Payload, upload: Payload) -> Trained:
        """Keep the state of the clients that did not diverge, and encode their upload."""
        sound = sound_clients(cohort.params, cohort.buffers, cohort.memory, upload, n=len(cohort))
        failed, bytes_down = {int(i): DIVERGED for i in cohort.ids[~sound]}, total_bytes(payload)
        if not sound.any():
            return Trained.nobody(failed, bytes_down)
        ids, like = cohort.ids, like_of(upload)
        nothing = [torch.full((len(cohort),), math.nan)]
        loss, task_loss = (
            torch.stack(cohort.records.get(name, nothing)).mean(0) for name in ("loss", "task_loss")
        )
        if failed:
            ids, loss, task_loss = ids[sound], loss[sound], task_loss[sound]
            upload = {name: t[sound] for name, t in upload.items()}
        cohort.write_back(sound)
        if not self.uplink.plain:
            secret = self.secret_noise
            generators = [None if secret else self._generator(int(i), UPLINK) for i in ids]
            with torch.no_grad():
                received = take(self.state.received, ids)
                upload = self.uplink.encode(upload, received, generators)
        return Trained(ids, upload, like, loss, task_loss, bytes_down, failed)

    def _cohort(self, state: State, ids: Tensor, *, copied: bool = False) -> Cohort:
        return Cohort(
            state.clients,
            ids,
            self.train_data.take(ids),
            self.method.training,
            state.seed,
            state.round,
            copied=copied,
            stage=self.place()[0],
            apart=self.method.clipped_apart,
            first=self.first,
            found=self.found,
            model=self._model,
            secret=self.secret_noise,
        )

    def _generator(self, i: int, purpose: int) -> torch.Generator:
        return generator(self.state.seed, self.state.round, self.first + i, purpose)

    @contextmanager
    def _seeded(self, method: Method, ids: Tensor) -> Iterator[None]:
        """Key each client's dropout to the run, the round and the client.

        Layers that draw from torch's global generators are keyed to the cohort.
        """
        with ExitStack() as stack:
            if method.population.dropout:
                own = [self._generator(int(i), DROPOUT) for i in ids]
                stack.enter_context(method.population.drawing(own))
            if self.workers.draws:
                seed = self._generator(int(ids[0]), DROPOUT).initial_seed()
                stack.enter_context(seeded(seed, self.device))
            yield

    def ready(self) -> State:
        """Return the state that predicts, personalised if the method does so.

        A client without samples in this stage predicts with what it receives.
        """
        if not self.method.personalises:
            return self.state
        state = self.unfitted()
        self.method.population.train()
        work = cohorts(torch.arange(len(self)), state.clients, self.cohort_size)
        for ids in noting(work, f"round {state.round}: fitting each client's own part"):
            cohort = self._cohort(state, ids)
            payload = self.method.broadcast(state.server, self.participants(ids))
            with self._seeded(self.method, ids):
                self.method.personalise(cohort, payload)
            cohort.write_back()
            sizing.release_pages(state.clients.memory.values())
        return state

    def unfitted(self) -> State:
        """Return a copy of the state for `personalise`, with the memory that it fits."""
        state = copy.deepcopy(self.state)
        like = self.method.fitted_memory(len(self), torch.device("meta"))
        if self.device.type == "cpu" and total_bytes(like) > IN_FILES:
            store = self._store or Store()
            state.clients.memory |= {name: store.zeros(t) for name, t in like.items()}
        else:
            state.clients.memory |= self.method.fitted_memory(len(self), self.device)
        return state

    def score(self, data: ClientData, state: State) -> tuple[float, float]:
        """Return the task's score over all samples of all clients as total and count."""
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
