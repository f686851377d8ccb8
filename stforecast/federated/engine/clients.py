"""Clients that this process trains: their samples and their state.

Clients' states in memory-mapped files, for more clients than fit in memory.

A tensor of the store is an ordinary tensor whose memory is a file: unused rows are not resident,
and the system writes back used ones. Methods and cohorts need no changes.

Parallel training of cohorts: threads of this process with one torch thread each.

The cohorts of a round have different clients, so no number changes. Two one-thread workers are
faster than two threads inside each small product, since they synchronise once a round.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor, nn

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method, Participants, initial_state
from stforecast.federated.core.population import Params
from stforecast.federated.core.state import Clients, State
from stforecast.federated.core.training import kept_moments
from stforecast.federated.engine import sizing
from stforecast.federated.engine.sizing import bfloat16_pays
from stforecast.federated.uploads.payload import Payload
from stforecast.federated.uploads.uplink import Uplink


class Store:
    """A folder of plain files, one per tensor, which is removed with this object.

    Args:
        folder: parent folder; by default the system's folder for temporary files.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stforecast-", dir=folder))
        self._names = itertools.count()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def zeros(self, like: Tensor) -> Tensor:
        """Return zeros of a tensor's shape and type, which take no space until they are written.

        Raises:
            InputError: if they do not fit on the disk.
        """
        size = like.numel() * like.element_size()
        if size > (free := shutil.disk_usage(self.folder).free):
            raise InputError(
                f"{self.folder.parent}: {free / 1e9:.1f} GB free, but the clients' states need "
                f"{size / 1e9:.1f} GB more; set TMPDIR to a folder on a larger disk"
            )
        path = self.folder / f"{next(self._names)}.bin"
        mapped = torch.from_file(str(path), shared=True, size=like.numel(), dtype=like.dtype)
        return mapped.view(like.shape)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in the store."""
        return self.zeros(tensor).copy_(tensor)


Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A method and its copies, one for each thread, since a model runs one cohort at a time.

    Args:
        method: the method.
        n: number of workers; a model with `nn.Dropout` has one, since threads share torch's
            generator, which it draws from.

    Attributes:
        draws: whether the model draws from torch's generator.
    """

    def __init__(self, method: Method, n: int) -> None:
        self.draws = has_dropout(method)
        n = 1 if self.draws else n
        self.methods = [method, *(copy.deepcopy(method) for _ in range(n - 1))]

    def __len__(self) -> int:
        return len(self.methods)

    @property
    def parallel(self) -> bool:
        """Return whether several cohorts train at the same time."""
        return len(self.methods) > 1

    def map(self, work: Callable[[Method, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return `[work(method, item) for item in items]`."""
        if not self.parallel or len(items) < 2:
            return [work(self.methods[0], item) for item in items]
        free: SimpleQueue[Method] = SimpleQueue()
        for method in self.methods:
            free.put(method)

        def run(item: Item) -> Result:
            method = free.get()
            try:
                return work(method, item)
            finally:
                free.put(method)

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # This also limits the math library, in all threads.
        try:
            with ThreadPoolExecutor(len(self.methods), initializer=_use_one_thread) as pool:
                return list(pool.map(run, items))
        finally:
            torch.set_num_threads(threads)


def has_dropout(method: Method) -> bool:
    """Return whether the method's model draws from torch's generator, judged by its layers."""
    modules = list(method.population.model.modules())
    by_name = any(getattr(m, name, 0) for m in modules for name in ("dropout", "drop_prob"))
    return by_name or any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p for m in modules)


def _use_one_thread() -> None:
    torch.set_num_threads(1)


log = logging.getLogger(__name__)


class LocalClients:
    """Samples and state of some clients, or of all of them.

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
        memory: bytes that the run may take; if it needs more, the clients' states are kept in
            files. By default the machine's free memory.
        first: number of the first of these clients in the whole federation.
        n_clients: clients of the whole federation; by default the number of these clients.

    Raises:
        InputError: if the data do not match the settings, the clients' numbers do not fit the
            federation, or the run does not fit the memory.

    Attributes:
        state: everything that is kept from round to round.
        train_data: samples of the current stage.
        workers: copies of the method, one for each cohort that trains at the same time.
        found: what was computed from each client's samples of this stage, see `Cohort.kept`.
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
        data = [*self.stream.stages, *([self.validation] if self.validation else [])]
        return sizing.predicted_memory(
            self.method.population, self.method.training, len(self),
            len(self.workers) * min(len(self), self.cohort_size), data, best=bool(self.validation),
        )  # fmt: skip

    def _make_store(self, memory: int | None) -> Store | None:
        """Return files for the clients' states if these do not fit in memory, else None."""
        if self.device.type != "cpu":
            return None
        needed = self.predicted_memory()
        level = logging.INFO if needed.total > sizing.WORTH_LOGGING else logging.DEBUG
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
        copy = store.copy if store else torch.clone
        for group in (clients.params, clients.buffers, clients.memory):
            for name in tuple(group):
                group[name] = copy(group[name][rows])
        clients.memory |= self.method.sample_memory(self.train_data)
        zeros = store.zeros if store else torch.zeros_like
        clients.moments = kept_moments(clients.params, self.method.training, zeros)
        clients.sizes = own
        return state

    def receive(self, server: Payload, round: int) -> None:
        """Receive the server's state before a round.

        Args:
            server: the tensors that the method's `broadcast` reads.
            round: index of the round, from 0.
        """
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

        Args:
            state: any state of these clients.
            into: an older copy, whose tensors are overwritten where the shapes match.
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

    def restore(self, state: State) -> None:
        """Restore the state that the same clients had after a round, maybe in another process.

        Raises:
            InputError: if the state is not of these clients.
        """
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
