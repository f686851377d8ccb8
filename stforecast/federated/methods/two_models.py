"""Bases of methods with a model for each client, beside the global model or instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Params, Payload, with_axes, without_prefix
from stforecast.federated.methods.fedavg import FedAvg

PERSONAL = "personal."
"""Prefix of the names of a client's personal model."""

SEEN, MIXTURE = "seen", "mixture"
"""Names of the server's tensors beside models: who has taken part, and how models are mixed."""


class TwoModels(FedAvg):
    """FedAvg on clients that also keep a personal model, under prefixed names."""

    name = ""
    views = ("personal", "global")
    clipped_apart: ClassVar[tuple[str, ...]] = (PERSONAL,)

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the client's personal model, or with the server's latest global model."""
        if view == "personal":
            return super().predict(personal_model(state), {}, x, view)
        return super().predict(state, payload, x, view)


class FittedModels(FedAvg):
    """FedAvg whose clients fit the global model to their own data before they predict."""

    name = ""
    views = ("personal", "global")
    personalises = True

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the client's model fitted by `personalise`, or with the global model."""
        return super().predict(state, payload if view == "global" else {}, x, view)


class OwnModels(Method):
    """Base of methods whose server keeps all clients' models, and mixes them for each client."""

    name = ""
    sends = Upload(apart=True)
    keeps_own = True
    needs = Needs(data=("equal initial weights",))

    def shares(self, name: str) -> bool:
        """Return True: whole models are sent."""
        return True

    def set_up(self) -> None:
        """Find the names of the parameters that are sent."""
        trainable = self.population.trainable
        self.shared = [name for name in self.population.common if name in trainable]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return all clients' models `(clients, …)`; none has taken part."""
        models = {name: clients.params[name].clone() for name in self.shared}
        return {**models, SEEN: torch.zeros(len(clients), dtype=torch.bool, device=clients.device)}

    def upload(self, cohort: Cohort) -> Payload:
        """Return the trained model."""
        return {name: cohort.params[name].detach() for name in self.shared}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the client's own model, as it was trained."""
        return super().predict(state, {}, x, view)

    def model_of_new(self, server: ServerState) -> Params:
        """Return the model of a new client `(…)`: the mean of all that have taken part."""
        models, seen = {name: server[name] for name in self.shared}, server[SEEN]
        return {n: t[seen].mean(0) if seen.any() else t[0] for n, t in models.items()}


class MixedModels(OwnModels):
    """Base of methods whose server mixes all models by weights that follow from the models."""

    name = ""

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return all clients' models `(clients, …)`, of which none is mixed yet."""
        server = super().init(clients, sizes, seed)
        return {**server, MIXTURE: torch.eye(len(clients), device=clients.device)}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return each client's mixture under the names of the model."""
        weights = server[MIXTURE][to.ids.to(server[MIXTURE].device)]
        return {name: torch.tensordot(weights, server[name], dims=1) for name in self.shared}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the models, and compute how they are mixed."""
        ids = of.ids.to(server[SEEN].device)
        after = {name: t.clone() for name, t in server.items()}
        for name, t in uploads.items():
            after[name][ids] = t
        after[SEEN][ids] = True
        return {**after, MIXTURE: self.mixture(after).to(server[MIXTURE])}

    def mixture(self, server: ServerState) -> Tensor:
        """Return the weights of all models for each client, `(clients, clients)`; rows sum to 1."""
        raise NotImplementedError

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; the model of a new one is the mean of all."""
        ids = ids.to(server[SEEN].device)
        known = ids >= 0
        rows = {**server, SEEN: known & server[SEEN][ids]}
        for name, mean in self.model_of_new(server).items():
            rows[name] = torch.where(with_axes(known, 1 + mean.ndim), server[name][ids], mean)
        return {**rows, MIXTURE: self.mixture(rows).to(server[MIXTURE])}


def inner_products(models: Mapping[str, Tensor]) -> Tensor:
    """Return the inner products of all pairs of models `(clients, …)`.

    They are `(clients, clients)`, in double precision.
    """
    rows = (t.reshape(len(t), -1).double() for t in models.values())
    return torch.stack([t @ t.T for t in rows]).sum(0)


def personal_copies(tensors: Mapping[str, Tensor]) -> Params:
    """Return copies of a model's tensors under the names of a personal model."""
    return {PERSONAL + name: t.clone() for name, t in tensors.items()}


def personal_model(tensors: Mapping[str, Tensor]) -> Params:
    """Return the tensors of the personal model among `tensors`, under the model's own names."""
    return without_prefix(tensors, PERSONAL)
