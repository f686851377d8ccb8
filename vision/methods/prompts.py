"""Common parts of prompt methods: FedAvg of prompts and a head, and training of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stforecast.federated.data import Batch, ClientData
from stforecast.federated.method import Method, Task
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.population import Population
from stforecast.federated.prototypes import key_counts
from stforecast.federated.state import Clients, Cohort, generator
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.backbones import Backbone
from vision.models.vit import backbone_of

PROMPT = "prompt."
"""Prefix of the tensors that a prompt method adds and averages."""

HEAD = "head."
"""Prefix of the head's parameters."""

INIT = (0, 0, 9)
"""Key of the random generator of the initial values."""

DEFAULTS: dict[str, Any] = {
    "model": "vit",
    "rounds": 5,
    "epochs": 5,
    "batch_size": 16,
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "optimizer_state": "round",
    "clip_gradients": 1.0,
    "within_task": True,
}
"""FedTA's settings in its related code, for all methods on a frozen backbone.

That code also uses a weight decay of 1e-3 in its first stage, and tests among a task's classes only
(`vision.evaluation.TASK`). The decay is left out: Adam applies it in full steps to a head's other
classes, which have no gradient, so they would be forgotten.
"""


class PromptedFedAvg(FedAvg):
    """FedAvg of a head and of prompts for a frozen backbone.

    A subclass defines the prompts (`prompts`) and the features under them (`prompted`, `features`).
    """

    name = ""
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        self.backbone: Backbone = backbone_of(population, self.name)

    def prompts(self, n_clients: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return trainable tensors `(n_clients, …)` other than the head, named `prompt.…`."""
        raise NotImplementedError

    def prompted(self, cohort: Cohort, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return training features `(clients, batch, d)` and a loss of the prompts `(clients,)`."""
        raise NotImplementedError

    def features(self, params: Payload, x: Tensor) -> Tensor:
        """Return features `(clients, batch, d)` for predictions."""
        raise NotImplementedError

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Give all clients the same head and prompts."""
        server = super().init(clients, sizes, seed)
        prompts = self.prompts(len(clients), generator(seed, *INIT))
        add_parameters(clients, prompts)
        return {**server, **{name: clients.params[name][0].clone() for name in prompts}}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Query each image once and train; then train the head alone if it has further epochs."""
        self.receive(cohort, payload)
        data = queried(cohort, self.backbone)
        train_parts(
            cohort, (PROMPT, HEAD), None, data, lambda b: self.local_loss(cohort, b, payload)
        )
        train_head(
            cohort,
            HEAD,
            self.options.head_epochs,
            data,
            lambda: self.features(cohort.params, data["x"]),
            lambda b: self.task_loss(cohort, b["feature"], b),
        )
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss under prompts, and the prompts' own."""
        features, loss = self.prompted(cohort, batch)
        return self.task_loss(cohort, features, batch) + loss

    def upload(self, cohort: Cohort) -> Payload:
        """Return the head and the prompts."""
        prompts = {n: t.detach() for n, t in cohort.params.items() if n.startswith(PROMPT)}
        return {**super().upload(cohort), **prompts}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the head on features under prompts."""
        params = {**state, **payload}
        return self.population.decode(params, self.features(params, x))


def queried(cohort: Cohort, backbone: Backbone) -> Batch:
    """Return the cohort's samples with their frozen features `query`, without augmentation."""
    size = int(cohort.data.sizes[0])
    data = {name: t[:, :size] for name, t in cohort.data.tensors.items()}
    return {**data, "query": backbone.query(data["x"])}


def train_parts(
    cohort: Cohort,
    parts: tuple[str, ...],
    epochs: int | None,
    data: Batch,
    loss: Callable[[Batch], Tensor],
) -> None:
    """Train only the parameters with some prefixes.

    Args:
        cohort: clients of equal sizes.
        parts: prefixes of the names of parameters.
        epochs: number of epochs; None takes the run's.
        data: training samples `(clients, samples, …)`.
        loss: loss of each client on a batch, `(clients,)`.
    """
    whole = cohort.data
    cohort.data = ClientData(data, whole.sizes)
    with cohort.training_only(*parts):
        for batch in cohort.batches(epochs):
            cohort.step(loss(batch))
    cohort.data = whole


def train_head(
    cohort: Cohort,
    head: str,
    epochs: int | None,
    data: Batch,
    features: Callable[[], Tensor],
    loss: Callable[[Batch], Tensor],
) -> None:
    """Train a head alone for its epochs beyond those of the run, in which the prompts train too.

    Args:
        cohort: clients of equal sizes.
        head: prefix of the head's parameters.
        epochs: epochs of the head in a round; None for the run's.
        data: training samples.
        features: returns the head's inputs `(clients, samples, d)`, computed once and without
            gradients.
        loss: loss of each client on a batch with these inputs as `feature`.
    """
    further = (epochs or 0) - cohort.training.epochs
    if further <= 0:
        return
    with torch.no_grad():
        inputs = {n: t for n, t in data.items() if n != "x"} | {"feature": features()}
    train_parts(cohort, (head,), further, inputs, loss)


def add_parameters(clients: Clients, tensors: Mapping[str, Tensor]) -> None:
    """Add trainable tensors to the clients, on the device of the others."""
    clients.params.update({name: t.to(clients.device) for name, t in tensors.items()})


def present_classes(method: Method, cohort: Cohort) -> Tensor:
    """Return `(clients, classes)` whether a client has samples of a class in its present task."""
    if "present" not in cohort.scratch:
        cohort.scratch["present"] = key_counts(method.task, cohort) > 0
    present: Tensor = cohort.scratch["present"]
    return present
