"""What a federated method is: four functions over populations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from stforecast.federated.data import Batch
from stforecast.federated.population import Population
from stforecast.federated.state import Clients, Cohort, State
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload


class Task(Protocol):
    """What is learned. The core sees this, never a series or an image.

    Attributes:
        n_keys: number of prototype keys: classes, or slots of the period.
    """

    @property
    def n_keys(self) -> int: ...  # noqa: D102  described above

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Mean training loss of each client over the batch, `(clients,)`."""
        ...

    def keys(self, batch: Batch) -> Tensor:
        """Prototype key of each sample, `(clients, batch)` integers below `n_keys`."""
        ...

    def score(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Validation loss of each sample as `(sum, count)`, each `(clients, batch)`."""
        ...


@dataclass(frozen=True)
class Participants:
    """The clients that one message concerns.

    Attributes:
        ids: `(n,)` increasing client ids.
        sizes: `(n,)` training samples of each.
        round: index of the round, from 0.
        stage: index of the stage of the task stream, from 0.
    """

    ids: Tensor
    sizes: Tensor
    round: int
    stage: int = 0


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Method:
    """Base of all methods: clients that train alone and send nothing.

    A method overrides what it changes; `local_loss` alone is usual. Tensors have a leading client
    axis throughout. Registries list the subclasses that have a `name`.

    Args:
        population: the model.
        task: the task.
        training: settings that all methods share.
        options: the method's own settings, an instance of `Options`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    views: ClassVar[tuple[str, ...]] = ("personal",)
    """Which models predict, the first one chosen by default: `personal`, `global`."""
    personalises: bool = False
    """Whether clients fit the model to their own data before they predict (`personalise`)."""
    keeps_apart: ClassVar[bool] = False
    """Whether the server keeps uploads apart: see `stforecast.federated.uploads.robust`."""
    clipped_apart: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of a client's further models: `clip_gradients` clips each by itself."""
    reads_next: ClassVar[bool] = False
    """Whether it reads `x_next`, a training sample's inputs one step later, made for it alone."""
    pooled: ClassVar[bool] = False
    """Whether it is meant for one client that holds the data of all, which no federation allows."""
    Options: ClassVar[type] = NoOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings of the run that the method is made for, by name, where the user gives none."""

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        self.population = population
        self.task = task
        self.training = training
        self.options = self.Options() if options is None else options

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Add the method's own tensors to `clients` and return the server's state.

        Args:
            clients: with the model's parameters, the same for all; may be added to.
            sizes: `(clients,)` training samples of each client.
            seed: seed of the run.
        """
        return {}

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """What the server sends to each of the clients `to`."""
        return {}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the cohort in place for the round's local epochs; return what it sends back."""
        self.receive(cohort, payload)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def receive(self, cohort: Cohort, payload: Payload) -> None:
        """Overwrite the cohort's parameters and buffers with those that the server sent."""
        with torch.no_grad():
            for name, t in cohort.state.items():
                if name in payload:
                    t.copy_(payload[name])

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Loss of each client on a batch, `(clients,)`; here the task's own."""
        features = self.population.encode(cohort.state, batch["x"])
        return self.task_loss(cohort, features, batch)

    def task_loss(self, cohort: Cohort, features: Tensor, batch: Batch) -> Tensor:
        """The task's loss of the head on `features`, noted for the round's report."""
        loss = self.task.loss(self.population.decode(cohort.state, features), batch)
        cohort.record("task_loss", loss)
        return loss

    def loss_of(self, model: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The task's loss of any model on a batch, `(clients,)`.

        Args:
            model: parameters and buffers `(clients, …)` under the model's names.
            batch: samples of these clients.
        """
        features = self.population.encode(model, batch["x"])
        return self.task.loss(self.population.decode(model, features), batch)

    def upload(self, cohort: Cohort) -> Payload:
        """What the cohort sends back after its local training."""
        return {}

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """The server's next state, from the uploads of the clients `of`."""
        return server

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Fit a copy of the cohort to its own data before it predicts, where `personalises`.

        Args:
            cohort: copies of the clients' state; training them leaves the federation as it is.
            payload: what `broadcast` would send to them now.
        """

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predictions of clients from their own state and the server's latest message.

        Args:
            state: the clients' parameters, buffers and memory `(clients, …)`.
            payload: what `broadcast` would send to them now.
            x: `(clients, batch, …)`.
            view: one of `views`.
        """
        params = {**state, **payload}
        return self.population.decode(params, self.population.encode(params, x))


def initial_state(
    method: Method, sizes: Tensor, seed: int, device: torch.device | str = "cpu"
) -> State:
    """Clients and server before the first round.

    The clients' tensors may be views of one client's; whoever trains them needs copies.

    Args:
        method: the method.
        sizes: `(clients,)` training samples of each client.
        seed: seed of the run.
        device: where to put them.
    """
    population = method.population
    params, buffers = (
        {name: t.expand(len(sizes), *t.shape[1:]) for name, t in group.items()}
        for group in (population.parameters(1, device), population.buffers(1, device))
    )
    clients = Clients(params, buffers, moments={}, sizes=sizes)
    server = method.init(clients, sizes, seed)
    return State(clients, server, round=0, seed=seed)
