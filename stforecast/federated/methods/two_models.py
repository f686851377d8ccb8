"""Bases of methods with a model for each client, beside the global model or instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Params, Payload, without_prefix
from stforecast.federated.methods.fedavg import FedAvg

PERSONAL = "personal."
"""Prefix of the names of a client's personal model."""


class TwoModels(FedAvg):
    """FedAvg on clients that also keep a personal model, under prefixed names."""

    name = ""
    views = ("personal", "global")
    clipped_apart: ClassVar[tuple[str, ...]] = (PERSONAL,)

    @property
    def trainable(self) -> list[str]:
        """Names of the model's parameters, without its buffers."""
        return [name for name, _ in self.population.model.named_parameters()]

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
    keeps_apart = True
    keeps_own = True
    needs: ClassVar[tuple[str, ...]] = ("equal initial weights",)

    def set_up(self) -> None:
        """Find the names of the parameters that are sent."""
        model = self.population.model
        names = [name for name, _ in model.named_parameters()]
        self.shared = [name for name in names if not name.startswith(model.own)]

    def upload(self, cohort: Cohort) -> Payload:
        """Return the trained model."""
        return {name: cohort.params[name].detach() for name in self.shared}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the client's own model, as it was trained."""
        return super().predict(state, {}, x, view)


def personal_copies(tensors: Mapping[str, Tensor]) -> Params:
    """Return copies of a model's tensors under the names of a personal model."""
    return {PERSONAL + name: t.clone() for name, t in tensors.items()}


def personal_model(tensors: Mapping[str, Tensor]) -> Params:
    """Return the tensors of the personal model among `tensors`, under the model's own names."""
    return without_prefix(tensors, PERSONAL)
