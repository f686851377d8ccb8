"""FedRep: one shared representation, a head of its own for every client.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, arXiv 2102.07078, Algorithm 1.

A client that takes part trains its head on the representation it received, then the representation
under that head, and sends back the representation alone. Here that is the encoder with its running
statistics, which move in both phases since the model trains in both. The optimiser's state belongs
to each parameter and outlives the round.

The paper and the released code differ in three places:

- The paper averages evenly, for clients of equal size; the code weights by samples. So does this.
- The code fits all heads for at least ten more epochs after the last round; the algorithm does not.
  `personal_epochs` does, before every evaluation; by default it is 0.
- The code starts the optimiser anew in every round and keeps weight decay from biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from stforecast.federated.method import Task
from stforecast.federated.methods.fedper import HEAD, REPRESENTATION, FedPer
from stforecast.federated.options import CheckedOptions
from stforecast.federated.population import Population
from stforecast.federated.state import Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload


@dataclass(frozen=True)
class FedRepOptions(CheckedOptions):
    """Settings of FedRep.

    Attributes:
        head_epochs: epochs for the head in each round, before the run's local epochs for the
            representation; by default as many as those. The paper uses 10, before 1 or 5.
        personal_epochs: further epochs for the head before a client predicts, which leave the
            federation as it is (released code: 10 after the last round).
    """

    head_epochs: PositiveInt | None = None
    personal_epochs: NonNegativeInt = 0


class FedRep(FedPer):
    """FedPer that trains head and encoder in turns."""

    name = "fedrep"
    summary = "averages the encoder; each client has its own head, trained first"
    paper = "Collins et al., ICML 2021"
    Options = FedRepOptions
    options: FedRepOptions

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        # Without epochs to fit, the core need not copy all clients before each evaluation.
        self.personalises = self.options.personal_epochs > 0

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Algorithm 1, client update: the head, then the representation."""
        self.receive(cohort, payload)
        self.train(cohort, payload, HEAD, self.options.head_epochs)
        self.train(cohort, payload, REPRESENTATION, None)
        return self.upload(cohort)

    def train(self, cohort: Cohort, payload: Payload, part: str, epochs: int | None) -> None:
        """Some epochs, by default the run's, in which only one part of the model is trained."""
        with cohort.training_only(part):
            for batch in cohort.batches(epochs):
                cohort.step(self.local_loss(cohort, batch, payload))

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Fit the heads to the representation as it is now."""
        self.receive(cohort, payload)
        self.train(cohort, payload, HEAD, self.options.personal_epochs)
