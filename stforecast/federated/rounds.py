"""The in-process executor: rounds of broadcast, local training and aggregation over cohorts."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from data_prep import limits
from data_prep.errors import InputError
from stforecast.federated import sizing
from stforecast.federated.data import ClientData, take
from stforecast.federated.faults import DIVERGED, NOT_THE_CLIENTS, sound_clients, told
from stforecast.federated.method import Method, Participants
from stforecast.federated.predictions import predictions_of
from stforecast.federated.state import Clients, Cohort, State, cohorts, generator
from stforecast.federated.store import Store
from stforecast.federated.stream import Stream
from stforecast.federated.training import STEPS, Training, kept_moments, moment_names
from stforecast.federated.uploads.payload import Payload, joined, total_bytes
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.federated.workers import Workers, has_dropout

log = logging.getLogger(__name__)

WORTH_TELLING = 10**9
"""Predicted bytes from which a run says before it starts what it will take."""


@dataclass(frozen=True)
class RoundReport:
    """One line of `rounds.csv`.

    Attributes:
        round: number of the round, from 1.
        train_loss: mean of the whole local loss over clients and batches.
        train_task_loss: mean of the task's loss alone.
        validation_loss: pooled over clients after the round's aggregation; NaN without a
            validation part.
        participants: clients that took part.
        bytes_down: bytes sent to clients, counted from the payloads.
        bytes_up: bytes sent by clients.
        seconds: wall-clock seconds of the round, validation included.
        failed: participants that were left out, see `stforecast.federated.faults`; the losses and
            `bytes_up` are those of the others.
    """

    round: int
    train_loss: float
    train_task_loss: float
    validation_loss: float
    participants: int
    bytes_down: int
    bytes_up: int
    seconds: float
    failed: int = 0


@dataclass(frozen=True)
class _Trained:
    """A cohort's part of a round: tensors are those of the clients `ids`, which did not fail."""

    ids: Tensor
    upload: Payload
    bytes_down: int
    bytes_up: int
    loss: Tensor
    task_loss: Tensor
    failed: dict[int, str] = field(default_factory=dict)


class Federation:
    """Trains a method on many clients in this process.

    Args:
        method: the method, with its model, task and settings.
        train: training samples, or a stream of them, stage after stage.
        validation: samples to choose the best round by, or None.
        seed: seed of the run.
        device: where to compute.
        cohort_size: most clients trained together; None takes what fits the caches of a CPU or
            the free memory of a GPU, and one by one where the model runs client by client.
        uplink: what is done to uploads on their way.
        robust: how the server guards itself against bad uploads.
        workers: cohorts that train at the same time, on a CPU.
        memory: bytes that the run may take; where it needs more, the clients' states are kept in
            files. By default what the machine has left.

    Raises:
        InputError: if the data do not fit the settings, or the run not the memory.

    Attributes:
        state: everything that survives a round.
        best: copy of the state that predicted after the round of the lowest validation loss,
            without the optimiser's moments (None at the start and without a validation part).
        reports: one entry a round.
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
        robust: Robust | None = None,
        workers: int = 1,
        memory: int | None = None,
    ) -> None:
        self.method, self.seed, self.device = method, seed, torch.device(device)
        self.stream = train if isinstance(train, Stream) else Stream([train])
        _check_stream(self.stream, method.training)
        self.train = self.stream.stages[0].to(device)
        self.validation = validation.to(device) if validation is not None else None
        self.uplink, self.robust = uplink or Uplink(), robust or Robust()
        self.best: State | None = None
        self.reports: list[RoundReport] = []
        self._draws = has_dropout(method)
        self._workers = Workers(method, workers if self.device.type == "cpu" else 1)
        n_workers = len(self._workers.methods)
        self.cohort_size = cohort_size or sizing.cohort_size(
            method.population, len(self.train), method.training.batch_size, self.device, n_workers
        )
        sizing.keep_freed_memory()
        self._store = self._make_store(memory)
        self.state = self._initial_state()

    def predicted_memory(self) -> sizing.Memory:
        """What the run will need, whatever the method adds."""
        n, training = len(self.train), self.method.training
        of_client = sizing.total_bytes(self.method.population.initial())
        copies = 1 + sum(name != STEPS for name in moment_names(training))
        kept = copies if training.optimizer_state == "keep" else 1
        in_training = len(self._workers.methods) * min(n, self.cohort_size)
        data = [*self.stream.stages, *([self.validation] if self.validation else [])]
        return sizing.Memory(
            clients=n * of_client * kept,
            best=n * of_client if self.validation else 0,
            training=in_training * of_client * (copies + sizing.COPIES),
            data=sum(t.untyped_storage().nbytes() for d in data for t in d.tensors.values()),
        )

    def _make_store(self, memory: int | None) -> Store | None:
        """Files for the clients' states, where memory has no room for them."""
        if self.device.type != "cpu":
            return None
        needed = self.predicted_memory()
        level = logging.INFO if needed.total > WORTH_TELLING else logging.DEBUG
        log.log(level, "%d clients in cohorts of %d: %s", len(self.train), self.cohort_size, needed)
        allowed = memory or limits.memory()
        if needed.total <= allowed:
            return None
        if needed.resident > allowed:
            raise InputError(
                f"the run needs {needed.resident / 1e9:.1f} GB besides the clients' states, of "
                f"{allowed / 1e9:.1f} GB; allow more memory, or take a smaller --cohort or fewer "
                "cells"
            )
        store = Store()
        log.info("%.1f GB allowed: clients' states are in %s", allowed / 1e9, store.folder)
        return store

    def _initial_state(self) -> State:
        n, population, store = len(self.train), self.method.population, self._store
        clients = Clients(
            params=population.parameters(n, self.device, store),
            buffers=population.buffers(n, self.device, store),
            moments={},
            sizes=self.train.sizes,
        )
        server = self.method.init(clients, self.train.sizes, self.seed)
        if store:
            for group in (clients.params, clients.memory):
                added = [name for name in group if name not in population.names]
                group |= {name: store.copy(group[name]) for name in added}
        zeros = store.zeros if store else torch.zeros_like
        clients.moments = kept_moments(clients.params, self.method.training, zeros)
        return State(clients, server, round=0, seed=self.seed)

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> None:
        """Train until the settings' number of rounds, or until patience runs out.

        Args:
            after_round: called with each round's report, e.g. to draw a progress bar.
        """
        while not self.finished:
            report = self.run_round()
            if after_round:
                after_round(report)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or patience has run out."""
        training, done = self.method.training, self.state.round
        if done >= training.rounds * len(self.stream):
            return True
        if self.best and 0 < training.patience <= done - self.best.round:
            log.info("no better validation loss for %d rounds: stopped", training.patience)
            return True
        return False

    def restore(self, state: State, best: State | None, reports: list[RoundReport]) -> None:
        """Take up what another federation of the same run had after a round.

        Args:
            state: its state.
            best: its state of the best round.
            reports: its reports.

        Raises:
            InputError: if the state's clients are not those of this federation.
        """
        own, given = self.state.clients.flat(), state.clients.flat()
        for name in own.keys() | given.keys():
            shapes = [ts[name].shape if name in ts else None for ts in (own, given)]
            if shapes[0] != shapes[1]:
                raise InputError(f"a state with {name} {shapes[1]} is of another run: {shapes[0]}")
        if best:
            self._keep(self._moved(best))
        for name, t in own.items():
            if name != "sizes":  # Those may be the data's own.
                t.copy_(given[name])
        clients = dataclasses.replace(self.state.clients, sizes=given["sizes"])
        self.state = self._moved(dataclasses.replace(state, clients=clients))
        self.reports = list(reports)
        if state.round:
            self._enter(self.stream.place(state.round - 1, self.method.training.rounds)[0])

    def _moved(self, state: State) -> State:
        """A state where this federation's tensors lie, all but clients' copied.

        Some of the server's stay on the CPU.
        """
        now = self.state.flat()
        tensors = {
            name: t.to(
                now[name].device if name in now else self.device,
                copy=not name.startswith("clients/"),
            )
            for name, t in state.flat().items()
        }
        return State.from_flat(tensors, state.round, state.seed)

    def run_round(self) -> RoundReport:
        """Do one round and return its report."""
        start = time.perf_counter()
        self._enter(self.stage)
        participants = self.participants()
        parts = self._workers.map(
            self._train, cohorts(participants.ids, self.state.clients, self.cohort_size)
        )
        trained = [t for part in parts for t in part]
        failed = {i: reason for t in trained for i, reason in t.failed.items()}
        self._tell(failed, len(participants.ids))
        self._aggregate([(t.ids, t.upload) for t in trained if len(t.ids)])
        self.state.round += 1
        report = RoundReport(
            round=self.state.round,
            train_loss=_mean([t.loss for t in trained]),
            train_task_loss=_mean([t.task_loss for t in trained]),
            validation_loss=self._validate(),
            participants=len(participants.ids),
            bytes_down=sum(t.bytes_down for t in trained),
            bytes_up=sum(t.bytes_up for t in trained),
            seconds=time.perf_counter() - start,
            failed=len(failed),
        )
        if not math.isfinite(report.train_loss):
            loss = report.train_loss
            log.warning("round %d: the training loss is %s; try a smaller lr", report.round, loss)
        self.reports.append(report)
        return report

    def _tell(self, failed: dict[int, str], participants: int) -> None:
        """Warn of failures, the first time.

        Raises:
            InputError: if nobody is left.
        """
        if failed and len(failed) == participants:
            diverged = DIVERGED in failed.values()
            raise InputError(
                f"round {self.state.round + 1}: all participants failed: {told(failed)}"
                + ("; a smaller --lr keeps values finite" if diverged else "")
            )
        if failed and not any(r.failed for r in self.reports):
            log.warning(
                "round %d: left out %s; rounds.csv counts failures",
                self.state.round + 1, told(failed),
            )  # fmt: skip

    def _train(self, method: Method, ids: Tensor) -> list[_Trained]:
        """What a cohort sends after its local training; if it fails, client by client."""
        method.population.train()
        payload = method.broadcast(self.state.server, self._some(ids))
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
            nothing = torch.empty(0)
            return [_Trained(ids[:0], {}, total_bytes(payload), 0, nothing, nothing, failed)]
        return [self._returned(cohort, payload, upload)]

    def _returned(self, cohort: Cohort, payload: Payload, upload: Payload) -> _Trained:
        """What the clients that did not diverge send; only their state is kept."""
        of_client = (cohort.params, cohort.buffers, cohort.memory, upload)
        sound = sound_clients(*of_client, n=len(cohort))
        failed = {int(i): DIVERGED for i in cohort.ids[~sound]}
        ids, wire = cohort.ids, Payload()
        loss, task_loss = (_mean_record(cohort, name) for name in ("loss", "task_loss"))
        if failed:
            ids, loss, task_loss = ids[sound], loss[sound], task_loss[sound]
            upload = {name: t[sound] for name, t in upload.items()}
        if len(ids):
            cohort.write_back(sound)
            wire, upload = self._send(ids, upload)
        down, up = total_bytes(payload), total_bytes(wire)
        return _Trained(ids, upload, down, up, loss, task_loss, failed)

    @contextmanager
    def _own_randomness(self, first: int) -> Iterator[None]:
        """Key torch's global generators, which dropout uses, to the run, round and cohort."""
        if not self._draws:
            yield
            return
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(generator(self.seed, self.state.round, first, 2).initial_seed())
            yield

    @property
    def stage(self) -> int:
        """Stage of the task stream to which the coming round belongs."""
        return self._place()[0]

    def _place(self) -> tuple[int, int]:
        return self.stream.place(self.state.round, self.method.training.rounds)

    def _enter(self, stage: int) -> None:
        """Turn to the data of a stage."""
        if len(self.stream) > 1:
            self.train = self.stream.stages[stage].to(self.device)
            self.state.clients.sizes = self.train.sizes

    def participants(self) -> Participants:
        """The clients of the coming round: a random share α of those that have samples."""
        n, training = len(self.train), self.method.training
        ids, draw = torch.arange(n), self._place()[1]
        if training.participation < 1 and (draw > 0 or not training.full_start):
            drawn = torch.randperm(n, generator=generator(self.seed, draw))
            ids = drawn[: max(1, round(training.participation * n))].sort().values
        return self._some(ids[self.train.sizes[ids] > 0])

    def _cohort(self, state: State, ids: Tensor, copied: bool = False) -> Cohort:
        data, training, stage = self.train.take(ids), self.method.training, self.stage
        apart = self.method.clipped_apart
        return Cohort(
            state.clients, ids, data, training, self.seed, state.round, copied, stage, apart
        )

    def _some(self, ids: Tensor) -> Participants:
        return Participants(ids, self.train.sizes[ids], self.state.round, self.stage)

    @torch.no_grad()
    def _send(self, ids: Tensor, upload: Payload) -> tuple[Payload, Payload]:
        """What travels of an upload, and the upload as the server reads it."""
        if self.uplink == Uplink():
            return upload, upload
        known = take(self.state.received, ids)
        generators = [generator(self.seed, self.state.round, int(i), 3) for i in ids]
        wire = self.uplink.encode(upload, known, generators)
        upload = self.uplink.decode(wire, known, like=upload)
        return wire, upload

    def _aggregate(self, uploads: list[tuple[Tensor, Payload]]) -> None:
        """Put the cohorts' uploads in order of client ids and hand them to the method."""
        ids, upload = joined(uploads)
        if self.uplink.delta_coding:
            for name, t in upload.items():
                self.state.received.setdefault(name, t.new_zeros(len(self.train), *t.shape[1:]))
                self.state.received[name][ids] = t
        method = self.method
        with torch.no_grad():
            upload = self.robust.guard(upload, method.keeps_apart, method.population.names)
            server = method.aggregate(self.state.server, self._some(ids), upload)
        # Checkpoints keep no strides, and sums may depend on them.
        self.state.server = {name: t.contiguous() for name, t in server.items()}

    def _validate(self) -> float:
        """Validation loss now; keeps a copy of the state if it is the best so far."""
        if self.validation is None:
            return math.nan
        state = self.ready()
        loss = self.evaluate(self.validation, state)
        if not any(r.validation_loss <= loss for r in self.reports) and not math.isnan(loss):
            self._keep(state)
        return loss

    def _keep(self, state: State) -> None:
        """Make `best` a copy of a state, in the memory that it has already where that fits."""
        clients = dataclasses.replace(state.clients, moments={})
        state, old = dataclasses.replace(state, clients=clients), self.best
        now, kept = state.flat(), old.flat() if old else {}
        copies = {}
        for name, t in now.items():
            if name in kept and kept[name].shape == t.shape and kept[name].dtype == t.dtype:
                copies[name] = kept[name].copy_(t)
            elif self._store and name.startswith("clients/"):
                copies[name] = self._store.copy(t)
            else:
                copies[name] = t.clone()
        self.best = State.from_flat(copies, state.round, state.seed)

    def ready(self) -> State:
        """The state as it predicts: where the method says so, fitted to each client's own data.

        A client without samples in this stage predicts with what it receives.
        """
        if not self.method.personalises:
            return self.state
        state = copy.deepcopy(self.state)
        self.method.population.train()
        everyone = torch.arange(len(self.train))
        for ids in cohorts(everyone, state.clients, self.cohort_size):
            cohort = self._cohort(state, ids)
            payload = self.method.broadcast(state.server, self._some(ids))
            with self._own_randomness(int(ids[0])):
                self.method.personalise(cohort, payload)
            cohort.write_back()
        return state

    def evaluate(self, data: ClientData, state: State | None = None) -> float:
        """The task's score over all samples of all clients: total sum over total count.

        Args:
            data: samples of all clients.
            state: the state that predicts; by default what `ready` gives now.
        """
        state = state or self.ready()

        @torch.no_grad()
        def score(method: Method, ids: Tensor) -> tuple[float, float]:
            total, count = 0.0, 0.0
            for batch, prediction in predictions_of(method, state, data, ids):
                of_samples = method.task.score(prediction, batch)
                s, c = (torch.where(batch["valid"], v, 0).sum() for v in of_samples)
                total, count = total + float(s), count + float(c)
            return total, count

        scored = self._workers.map(score, torch.arange(len(data)).split(self.cohort_size))
        total, count = (math.fsum(part) for part in zip(*scored, strict=True))
        return total / count if count else math.nan

    def history(self) -> list[dict[str, float]]:
        """The rounds' reports as rows of a table."""
        return [dataclasses.asdict(r) for r in self.reports]


def _check_stream(stream: Stream, training: Training) -> None:
    several = len(stream) > 1
    if several and training.schedule != "constant":
        raise InputError(f"schedule is {training.schedule}; a stream of stages needs constant")
    needed = training.batch_size if training.drop_last else 1
    for i, stage in enumerate(stream.stages):
        sizes = stage.sizes
        if bool(((sizes < needed) & ((sizes > 0) | (not several))).any()):
            where = f" in stage {i}" if several else ""
            raise InputError(
                f"client {int(sizes.argmin())} has {int(sizes.min())} training samples{where}, "
                f"fewer than one batch of {needed}; use longer data, another split or a smaller "
                "--batch-size"
            )
        if not sizes.any():
            raise InputError(f"no client has training samples in stage {i}; leave the stage out")


def _mean_record(cohort: Cohort, name: str) -> Tensor:
    """Mean of what the cohort noted under `name`, `(clients,)`; NaN if it noted nothing."""
    nothing = [torch.full((len(cohort),), math.nan)]
    return torch.stack(cohort.records.get(name, nothing)).mean(0)


def _mean(values: list[Tensor]) -> float:
    return float(torch.cat(values).mean())
