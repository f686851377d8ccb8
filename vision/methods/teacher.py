"""Base of methods whose clients keep the global model from before their present task."""

from __future__ import annotations

import torch
from torch import Tensor

from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Params, Payload
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods.prompts import present_classes

TEACHER = "teacher."


class TaughtFedAvg(FedAvg):
    """FedAvg whose clients keep the model that they received at the start of a stage.

    A client's memory has this model (`teacher.…`) and flags of the classes of its former stages
    (`former`) and of its present stage (`present`), `(clients, classes)`.
    """

    name = ""

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, without former classes."""
        server = super().init(clients, sizes, seed)
        device = clients.device
        n, c = len(clients), self.task.n_keys
        model = {**clients.params, **clients.buffers}
        clients.memory |= {TEACHER + name: t.clone() for name, t in model.items()}
        clients.memory |= {
            "stage": torch.full((n,), -1, device=device),
            "former": torch.zeros(n, c, dtype=torch.bool, device=device),
            "present": torch.zeros(n, c, dtype=torch.bool, device=device),
        }
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Enter a new stage if one begins, then train as FedAvg does."""
        self.enter_stage(cohort, payload)
        return super().local_update(cohort, payload)

    def enter_stage(self, cohort: Cohort, payload: Payload) -> None:
        """Store the teacher and the former classes of clients whose stage begins."""
        memory, new = cohort.memory, self.begins(cohort, payload)
        memory["former"] |= memory["present"] & new[:, None]
        memory["present"] &= ~new[:, None]
        memory["present"] |= present_classes(self, cohort)
        with torch.no_grad():
            for name, t in self.lesson(payload).items():
                memory[TEACHER + name][new] = t[new]

    def begins(self, cohort: Cohort, payload: Payload) -> Tensor:
        """Return whether a stage begins for each client in this round, `(clients,)`."""
        stage = cohort.memory["stage"]
        new = stage != cohort.stage
        stage.fill_(cohort.stage)
        return new

    def lesson(self, payload: Payload) -> Payload:
        """Return the model to keep as the teacher, by parameter name; here the received one."""
        return payload

    def teacher(self, cohort: Cohort) -> Params:
        """Return the teacher by parameter name."""
        return {name: cohort.memory[TEACHER + name] for name in self.population.names}

    def teach(self, cohort: Cohort, x: Tensor) -> Tensor:
        """Return the teacher's logits in evaluation mode."""
        model = self.teacher(cohort)
        self.population.train(False)
        with torch.no_grad():
            logits = self.population.decode(model, self.population.encode(model, x))
        self.population.train()
        return logits
