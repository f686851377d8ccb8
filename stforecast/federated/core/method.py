"""Base class of federated methods, which are functions over populations of clients.

Below it are the first state of a federation, and the predictions of its clients.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.options import Grid, NoOptions
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState, State
from stforecast.federated.core.tensors import Batch, Params, Payload, check_tensors, take
from stforecast.federated.core.training import Training


class Task(Protocol):
    """A learning task: loss, prototype keys and validation score, whatever the kind of data.

    Attributes:
        n_keys: number of prototype keys: classes, or slots of the period.
    """

    @property
    def n_keys(self) -> int: ...  # noqa: D102  described above

    def loss(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the mean training loss of each client over the batch, `(clients,)`."""
        ...

    def keys(self, batch: Batch) -> Tensor:
        """Return the prototype key of each sample, `(clients, batch)` integers below `n_keys`."""
        ...

    def score(self, prediction: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the validation loss of each sample as `(sum, count)`, each `(clients, batch)`."""
        ...


class Method:
    """Base of all methods: clients that train alone and send nothing.

    A method overrides what it changes, often only `local_loss`. All tensors have a leading client
    axis. Registries list the subclasses that have a `name`.

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
    """Models that can predict, `personal` or `global`; the first one is the default."""
    personalises: bool = False
    """Whether clients fit the model to their own data before they predict (`personalise`)."""
    keeps_own: ClassVar[bool] = False
    """Whether a client keeps its own values of a part of the tensors that it receives."""
    remembers: bool = True
    """Whether clients need their own copies of what they receive in a later round or to predict;
    otherwise their state has no parameters and buffers."""
    sums_first: ClassVar[bool] = False
    """Whether the first round sends sums, from which the server solves for what later rounds keep;
    a refit repeats it."""
    sends: Upload = Upload()
    """Content of a client's upload, and its use by the server."""
    attacked: ClassVar[Attacked] = Attacked()
    """Findings of attacks on it. Not inherited."""
    clipped_apart: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of a client's further models: `clip_gradients` clips each by itself."""
    pooled: ClassVar[bool] = False
    """Whether it trains one client on the pooled data of all, which is not federated."""
    needs: ClassVar[Needs] = Needs()
    """Its needs in training."""
    unread: ClassVar[Set[str]] = frozenset()
    """Names of the run's settings that it does not read; giving one is an error."""
    Options: ClassVar[type] = NoOptions
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the run's settings with this method, by name. If they name a model, those of its
    options hold only while that model is used."""
    grid: ClassVar[Grid] = {
        "lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        "schedule": ["constant", "cosine"],
    }
    """Values that the setting `tune` of a forecast tries, by the name of a setting; empty if there
    is nothing to choose. Methods that replace it keep ten candidates, so that budgets are equal."""

    def __init_subclass__(cls) -> None:
        """Begin unattacked, see `Attacked`."""
        super().__init_subclass__()
        if "attacked" not in vars(cls):
            cls.attacked = Attacked()

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        self.population = population
        self.task = task
        self.training = training
        self.options = self.Options() if options is None else options
        self.set_up()

    @classmethod
    def training_for(cls, training: Training, n_series: int, options: Any) -> Training:
        """Return the settings of training for so many series; here as they are."""
        return training

    def set_up(self) -> None:
        """Prepare what follows from the model, the task and the settings; here nothing."""

    def shares(self, name: str) -> bool:
        """Return whether clients send the model's parameter or buffer of this name; here none."""
        return False

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Add the method's own tensors to `clients` and return the server's state.

        Args:
            clients: clients with equal model parameters; tensors may be added.
            sizes: `(clients,)` training samples of each client.
            seed: seed of the run.
        """
        return {}

    def sample_memory(self, data: ClientData) -> Params:
        """Return initial tensors of the clients' memory whose shapes depend on training samples."""
        return {}

    def fitted_memory(self, n_clients: int, device: torch.device) -> Params:
        """Return tensors of the clients' memory that `personalise` fits, 0 before.

        They are of states that predict alone: rounds do without them.
        """
        return {}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return what the server sends to each of the clients `to`."""
        return {}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the cohort in place for the round's local epochs; return its upload."""
        self.receive(cohort, payload)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def receive(self, cohort: Cohort, payload: Payload) -> None:
        """Overwrite the cohort's parameters and buffers with the received ones."""
        with torch.no_grad():
            for name, t in cohort.state.items():
                if name in payload:
                    t.copy_(payload[name])

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of each client on a batch, `(clients,)`; here the task's loss."""
        features = self.population.encode(cohort.state, batch["x"])
        return self.task_loss(cohort, features, batch)

    def task_loss(self, cohort: Cohort, features: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss of the head on `features`, and record it for the report."""
        return self.recorded(cohort, self.population.decode(cohort.state, features), batch)

    def recorded(self, cohort: Cohort, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss of a prediction, and record it for the report."""
        loss = self.task.loss(prediction, batch)
        cohort.record("task_loss", loss)
        return loss

    def loss_of(self, model: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the task's loss on a batch, `(clients,)`, of any parameters and buffers."""
        features = self.population.encode(model, batch["x"])
        return self.task.loss(self.population.decode(model, features), batch)

    def upload(self, cohort: Cohort) -> Payload:
        """Return what the cohort sends to the server after local training."""
        return {}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return the server's next state, given the uploads of the clients `of`."""
        return server

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the server's state for other clients; here the same for all.

        Their `ids` `(n,)` are those in training; -1 for one that has never taken part.
        """
        return server

    def validates(self, round: int) -> bool:
        """Return whether to validate after a round, numbered from 1; the last one must be."""
        return True

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Fit a copy of the cohort to its own data before it predicts, if `personalises`.

        Args:
            cohort: copies of the clients' state; training them does not change the federation.
            payload: what `broadcast` would send to them now.
        """

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the clients' own state and the server's latest message.

        Args:
            state: the clients' parameters, buffers and memory `(clients, …)`.
            payload: what `broadcast` would send to them now.
            x: `(clients, batch, …)`.
            view: one of `views`.
        """
        params = {**state, **payload}
        return self.population.decode(params, self.population.encode(params, x))


M = TypeVar("M", bound=Method)


def overridden(method: M, **functions: Callable[..., Any]) -> M:
    """Return a copy of a method in which some functions are replaced by others without `self`.

    Only this instance changes, since the registries would list a subclass.
    """
    changed = copy.copy(method)
    vars(changed).update(functions)
    return changed


def of_clients(method: M, ids: Tensor) -> M:
    """Return a copy of a method whose server sends to the clients `ids`, counted from 0."""
    return overridden(method, broadcast=partial(_broadcast_to, method, ids))


def _broadcast_to(
    method: Method, ids: Tensor, server: dict[str, Tensor], to: Participants
) -> Payload:
    return method.broadcast(server, dataclasses.replace(to, ids=ids[to.ids]))


def initial_state(
    method: Method, sizes: Tensor, seed: int, device: torch.device | str = "cpu", first: int = 0
) -> State:
    """Return clients and server before the first round.

    The clients' tensors may be views of one client's; copy them before training. `sizes`
    `(clients,)` are numbers of training samples; `first` is the number of the first client whose
    initial tensors `Population.own` holds.
    """
    population = method.population
    params, buffers = (
        {name: t.expand(len(sizes), *t.shape[1:]) for name, t in group.items()}
        for group in (population.parameters(1, device), population.buffers(1, device))
    )
    for name, t in population.own.items():
        group = params if name in params else buffers
        group[name] = group[name].clone()
        group[name][first : first + len(t)] = t
    clients = Clients(params, buffers, moments={}, sizes=sizes)
    server = method.init(clients, sizes, seed)
    check_tensors(f"{method.name}, init", server)
    for kind, held in clients.groups():
        check_tensors(f"{method.name}, clients.{kind} after init", held, len(clients))
    return State(clients, server, round=0, seed=seed)


COHORT = 16
"""Default number of clients that predict together."""

ROWS_ON_CPU = 128
"""Samples of a client predicted at once on a CPU: activations then stay in cache."""

Way = Literal["own", "averaged"]
"""Which model of a client predicts if its method averages models: `own` is the client's model after
its latest local training; in `averaged`, the averaged parts of that model are the server's."""


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
    """Yield batches `(some clients, some samples, …)` with predictions, clients in order.

    Each client predicts from its own state and the server's latest message. `view` is by default
    the first of the method, `way` the one that the method chooses; at most `cohort_size` clients
    predict together.
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
    rows: Tensor | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the same as `predictions`, for the clients `ids` together.

    Where `data` are of some clients only, `rows` are their places in it.
    """
    method.population.train(False)
    clients = state.clients
    on_cpu = all(t.device.type == "cpu" for t in data.tensors.values())
    at_once = ROWS_ON_CPU if on_cpu else 4096  # A GPU needs large products.
    own = take({**clients.params, **clients.buffers, **clients.memory}, ids)
    payload = method.broadcast(state.server, state.participants(ids))
    averaged = payload.keys() & (clients.params.keys() | clients.buffers.keys())
    if way == "averaged":
        own |= {name: payload[name] for name in averaged}
    elif way == "own":
        payload = {name: t for name, t in payload.items() if name not in averaged}
    some = data.take(ids if rows is None else rows)
    for batch in some.chunks(at_once * min(some.group, COHORT)):
        prediction = method.predict(own, payload, batch["x"], view or method.views[0])
        if prediction.shape[:2] != batch["x"].shape[:2]:
            raise InputError(
                f"{method.name}, predict: found the shape {tuple(prediction.shape)}, expected "
                f"{tuple(batch['x'].shape[:2])} at the start: clients, samples"
            )
        yield batch, prediction
