"""FedRep: one shared representation, and a head for each client.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning, ICML 2021, arXiv 2102.07078, Algorithm 1.

A participating client trains its head on the received representation, then the representation
under that head, and sends back only the representation. Here that is the encoder with its running
statistics, which change in both phases because the model is in training mode in both. The
optimiser's state belongs to each parameter; by default it is kept across rounds with forecasts,
and reset in each round with images (`optimizer_state`).

The paper and the released code differ in three places:

- The paper counts clients of equal size equally; the code, and this, weight by samples.
- The code fits all heads for at least ten more epochs after the last round; the algorithm does not.
  Here `personal_epochs` does so before every evaluation; by default it is 0.
- The code resets the optimiser in every round and applies no weight decay to biases.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveInt

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Payload
from stforecast.federated.methods.fedper import HEAD, REPRESENTATION, FedPer
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class FedRepOptions(CheckedOptions):
    """Settings of FedRep.

    Attributes:
        head_epochs: epochs for the head in each round, before the run's local epochs for the
            representation; by default the same number. The paper uses 10, before 1 or 5.
        personal_epochs: further epochs for the head before a client predicts; they do not change
            the federation (released code: 10 after the last round).
    """

    head_epochs: PositiveInt | None = None
    personal_epochs: NonNegativeInt = 0


class FedRep(FedPer):
    """FedPer that trains first the head, then the encoder."""

    name = "fedrep"
    summary = "averages the encoder; each client has its own head, trained first"
    paper = "Collins et al., ICML 2021"
    attacked = Attacked(guards=RULES)
    Options = FedRepOptions
    options: FedRepOptions

    def set_up(self) -> None:
        """Fit the head before predictions only if it has epochs for that."""
        # Without epochs to fit, the core need not copy all clients before each evaluation.
        self.personalises = self.options.personal_epochs > 0

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run the client update of Algorithm 1: the head, then the representation."""
        self.receive(cohort, payload)
        self.train(cohort, payload, HEAD, self.options.head_epochs)
        self.train(cohort, payload, REPRESENTATION, None)
        return self.upload(cohort)

    def train(self, cohort: Cohort, payload: Payload, part: str, epochs: int | None) -> None:
        """Train only one part of the model for some epochs, by default the run's."""
        with cohort.training_only(part):
            for batch in cohort.batches(epochs):
                cohort.step(self.local_loss(cohort, batch, payload))

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Fit the heads to the current representation."""
        self.receive(cohort, payload)
        self.train(cohort, payload, HEAD, self.options.personal_epochs)
