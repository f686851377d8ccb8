"""What methods share whose clients remember the global model before their present task."""

from __future__ import annotations

import torch
from torch import Tensor

from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.population import Params
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.uploads.payload import Payload
from vision.methods.prompts import present_classes

TEACHER = "teacher."


class TaughtFedAvg(FedAvg):
    """FedAvg whose clients keep, in each stage, the model that they received at its start.

    In a client's memory are the model (`teacher.…`), and which classes it had in former stages
    (`former`) and has in this one (`present`), `(clients, classes)`.
    """

    name = ""

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Clients have seen no class and have no teacher."""
        server = super().init(clients, sizes, seed)
        device = next(iter(clients.params.values())).device
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
        """FedAvg's, after a new stage has been noticed."""
        self.enter_stage(cohort, payload)
        return super().local_update(cohort, payload)

    def enter_stage(self, cohort: Cohort, payload: Payload) -> None:
        """As a stage begins for a client, keep a model and the former classes."""
        memory, new = cohort.memory, self.begins(cohort, payload)
        memory["former"] |= memory["present"] & new[:, None]
        memory["present"] &= ~new[:, None]
        memory["present"] |= present_classes(self, cohort)
        with torch.no_grad():
            for name, t in self.lesson(payload).items():
                memory[TEACHER + name][new] = t[new]

    def begins(self, cohort: Cohort, payload: Payload) -> Tensor:
        """Whether a stage begins for a client with this round, `(clients,)`."""
        stage = cohort.memory["stage"]
        new = stage != cohort.stage
        stage.fill_(cohort.stage)
        return new

    def lesson(self, payload: Payload) -> Payload:
        """The model that is kept, under the model's names; here the one that was received."""
        return payload

    def teacher(self, cohort: Cohort) -> Params:
        """The model before the stage, under the model's names."""
        return {name: cohort.memory[TEACHER + name] for name in self.population.names}

    def teach(self, cohort: Cohort, x: Tensor) -> Tensor:
        """The teacher's logits, by its running statistics."""
        model = self.teacher(cohort)
        self.population.train(False)
        with torch.no_grad():
            logits = self.population.decode(model, self.population.encode(model, x))
        self.population.train()
        return logits
