"""A node's part of a federation: some of the clients, with their samples and all their state.

What a `Shard` takes and gives are payloads; it knows no network. Its clients have the numbers
`first, first + 1, …` of the whole federation, which key all that is random, so they train as they
would in one process.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated import sizing
from stforecast.federated.data import ClientData, take
from stforecast.federated.faults import DIVERGED, NOT_THE_CLIENTS, sound_clients, told
from stforecast.federated.method import Method, Participants
from stforecast.federated.predictions import predictions
from stforecast.federated.state import Clients, Cohort, State, cohorts, generator
from stforecast.federated.training import kept_moments
from stforecast.federated.uploads.payload import Payload, joined
from stforecast.federated.uploads.uplink import Uplink
from stforecast.federated.workers import has_dropout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """What clients send after a round.

    Attributes:
        ids: `(n,)` increasing rows of the node: those that did not fail.
        upload: what they send, one row a client, as the method made it.
        loss: `(n,)` mean of the whole local loss.
        task_loss: `(n,)` the same of the task's loss alone.
    """

    ids: Tensor
    upload: Payload
    loss: Tensor
    task_loss: Tensor


class Shard:
    """Some clients of a federation, on one node.

    Args:
        method: the method, with its model, task and settings.
        train: training samples of these clients.
        validation: samples to choose the best round by, or None.
        first: number of the first of them in the whole federation.
        n_clients: clients of the whole federation.
        seed: seed of the run.
        uplink: what is done to uploads on their way.
        device: where to compute.

    Attributes:
        state: everything that survives a round; its server is the latest payload received.

    Raises:
        InputError: if there is a client without a whole batch, or the clients' numbers do not fit.
    """

    def __init__(
        self,
        method: Method,
        train: ClientData,
        validation: ClientData | None = None,
        *,
        first: int,
        n_clients: int,
        seed: int,
        uplink: Uplink | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0 <= first <= n_clients - len(train):
            raise InputError(
                f"this node's {len(train)} clients begin at number {first}, which does not fit a "
                f"federation of {n_clients}; set first-client or the number of clients right"
            )
        self.method, self.first, self.seed = _receiving(method), first, seed
        self.train_data = train.to(device)
        self.validation = validation.to(device) if validation else None
        self.uplink = uplink or Uplink()
        self.cohort_size = sizing.cohort_size(
            method.population, len(train), method.training.batch_size, torch.device(device)
        )
        _check_sizes(train.sizes, method)
        self.state = State(self._initial(n_clients, device), {}, 0, seed)

    def __len__(self) -> int:
        return len(self.train_data)

    @property
    def numbers(self) -> range:
        """The clients' numbers in the whole federation."""
        return range(self.first, self.first + len(self))

    def _initial(self, n_clients: int, device: torch.device | str) -> Clients:
        """The rows of these clients of what the method gives to all of them."""
        population, training = self.method.population, self.method.training
        own = self.train_data.sizes
        sizes = own.min().repeat(n_clients)  # Nobody told this node those of the others.
        ids = torch.tensor(self.numbers)
        sizes[ids] = own
        one = (population.parameters(1, device), population.buffers(1, device))
        params, buffers = (
            {name: t.expand(n_clients, *t.shape[1:]) for name, t in group.items()} for group in one
        )
        everyone = Clients(params, buffers, moments={}, sizes=sizes)
        self.method.init(everyone, sizes, self.seed)
        params, buffers, memory = (
            {name: t.clone() for name, t in take(group, ids).items()}
            for group in (everyone.params, everyone.buffers, everyone.memory)
        )
        return Clients(params, buffers, kept_moments(params, training), own, memory)

    def receive(self, payload: Payload, round: int) -> None:
        """Take what the server sends before a round.

        Args:
            payload: one row for each of this node's clients.
            round: index of the round, from 0.
        """
        self.state.server, self.state.round = payload, round

    def train(self, ids: Tensor) -> Trained:
        """Train some of the clients for a round on what was received.

        A client that fails is left out, as in one process, and keeps its state.

        Args:
            ids: `(n,)` increasing rows of this node, at least one.

        Raises:
            ValueError: if the method would send samples.
        """
        parts = [t for part in cohorts(ids, self.state.clients, self.cohort_size)
                 for t in self._train(part)]  # fmt: skip
        found = [part for part in parts if len(part.ids)]
        if not found:
            return parts[0]
        trained, upload = joined([(part.ids, part.upload) for part in found])
        losses = [(p.ids, {"loss": p.loss, "task_loss": p.task_loss}) for p in found]
        return Trained(trained, upload, **joined(losses)[1])

    @torch.no_grad()
    def encode(self, trained: Trained) -> Payload:
        """What is sent, as it travels."""
        generators = [self._generator(int(i), 3) for i in trained.ids]
        return self.uplink.encode(trained.upload, {}, generators)

    def _train(self, ids: Tensor) -> list[Trained]:
        """A cohort's part; if it fails, client by client."""
        self.method.population.train()
        cohort = self._cohort(self.state, ids, copied=True)
        try:
            with self._own_randomness(int(ids[0])):
                upload = self.method.local_update(cohort, take(self.state.server, ids))
        except NOT_THE_CLIENTS:
            raise
        except Exception as e:
            if len(ids) > 1:
                return [t for i in ids for t in self._train(i[None])]
            log.warning("left out %s", told({self.first + int(ids[0]): f"{type(e).__name__}: {e}"}))
            return [Trained(ids[:0], {}, torch.empty(0), torch.empty(0))]
        self._refuse_samples(upload)
        sound = sound_clients(cohort.params, cohort.buffers, cohort.memory, upload, n=len(ids))
        if failed := {self.first + int(i): DIVERGED for i in ids[~sound]}:
            log.warning("left out %s", told(failed))
        if sound.any():
            cohort.write_back(sound)
        losses = (_mean_record(cohort, name)[sound] for name in ("loss", "task_loss"))
        return [Trained(ids[sound], {n: t[sound] for n, t in upload.items()}, *losses)]

    def _cohort(self, state: State, ids: Tensor, copied: bool = False) -> Cohort:
        data, training = self.train_data.take(ids), self.method.training
        cohort = Cohort(
            state.clients, ids, data, training, self.seed, state.round, copied,
            apart=self.method.clipped_apart,
        )  # fmt: skip
        cohort.generators = [self._generator(int(i)) for i in ids]
        return cohort

    def _generator(self, row: int, *purpose: int) -> torch.Generator:
        return generator(self.seed, self.state.round, self.first + row, *purpose)

    @contextmanager
    def _own_randomness(self, row: int) -> Iterator[None]:
        """Key torch's global generators, which dropout uses, as the in-process executor does."""
        if not has_dropout(self.method):
            yield
            return
        with torch.random.fork_rng():
            torch.manual_seed(self._generator(row, 2).initial_seed())
            yield

    def _refuse_samples(self, upload: Payload) -> None:
        kept = {t.untyped_storage().data_ptr() for t in self.train_data.tensors.values()}
        for name, t in upload.items():
            if t.untyped_storage().data_ptr() in kept:
                raise ValueError(f"{self.method.name} would send a client's samples as {name!r}")

    def ready(self) -> State:
        """The state as it predicts: where the method says so, fitted to each client's own data."""
        if not self.method.personalises:
            return self.state
        state = copy.deepcopy(self.state)
        self.method.population.train()
        for ids in cohorts(torch.arange(len(self)), state.clients, self.cohort_size):
            cohort = self._cohort(state, ids)
            with self._own_randomness(int(ids[0])):
                self.method.personalise(cohort, take(state.server, ids))
            cohort.write_back()
        return state

    @torch.no_grad()
    def score(self, state: State) -> tuple[float, float]:
        """The task's score on the validation samples: total and count, both 0 without any.

        Args:
            state: the state that predicts, as `ready` gives it.
        """
        if self.validation is None:
            return 0.0, 0.0
        sums = []
        for batch, prediction in predictions(self.method, state, self.validation):
            of_samples = self.method.task.score(prediction, batch)
            sums.append([float(torch.where(batch["valid"], v, 0).sum()) for v in of_samples])
        total, count = zip(*sums, strict=True)
        return math.fsum(total), math.fsum(count)


def _receiving(method: Method) -> Method:
    """The method for a state whose server is what a node received: one row for each client."""
    here = copy.copy(method)
    here.broadcast = received  # type: ignore[method-assign]  # Of this one instance.
    return here


def received(server: dict[str, Tensor], to: Participants) -> Payload:
    """What a node's clients `to` received."""
    return take(server, to.ids)


def _mean_record(cohort: Cohort, name: str) -> Tensor:
    """Mean of what the cohort noted under `name`, `(clients,)`; NaN if it noted nothing."""
    return torch.stack(cohort.records.get(name, [torch.full((len(cohort),), math.nan)])).mean(0)


def _check_sizes(sizes: Tensor, method: Method) -> None:
    needed = method.training.batch_size if method.training.drop_last else 1
    if bool((sizes < needed).any()):
        raise InputError(
            f"client {int(sizes.argmin())} of this node has {int(sizes.min())} training samples, "
            f"fewer than one batch of {needed}; use longer data or a smaller batch_size"
        )
