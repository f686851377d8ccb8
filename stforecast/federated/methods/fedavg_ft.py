"""Fine-tuned FedAvg: each client fits the global model to its own data before it predicts.

The rounds are FedAvg's (McMahan et al., AISTATS 2017, arXiv 1602.05629). They are followed by plain
personalisation, a baseline for stronger methods: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage:
Federated Evaluation of On-device Personalization, 2019, arXiv 1910.10252; FedAvg + FT in FedRep
(Collins et al., ICML 2021, arXiv 2102.07078, section 6).

A client takes the current global model, trains it on its own training samples for some epochs, and
predicts with the result. The result is not sent, and the next round starts from the global model.
Each fine-tuning uses the run's optimiser with fresh moments and a constant learning rate,
independent of the schedule of the rounds.

The validation loss of a round is that of the fine-tuned models, so the round that is kept is the
best by the metric that is reported. Every client is therefore fine-tuned once after every round
that is validated: with one epoch that is about as much work as the round itself. The models of the
best round are kept and not trained again.

Running statistics follow the fine-tuning, in a copy.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Payload
from stforecast.federated.core.training import Optimizer, zero_moments
from stforecast.federated.methods.fedper import HEAD
from stforecast.federated.methods.two_models import FittedModels
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class FedAvgFTOptions(CheckedOptions):
    """Settings of fine-tuned FedAvg.

    Attributes:
        personal_epochs: epochs of fine-tuning; 1 is our choice.
        personal_lr: learning rate of fine-tuning; by default lr.
        personal_part: part to fine-tune: the whole model (all) or only its head (head).
    """

    personal_epochs: PositiveInt = 1
    personal_lr: PositiveFloat | None = None
    personal_part: Literal["all", "head"] = "all"


class FedAvgFT(FittedModels):
    """FedAvg; `personalise` turns the global model into the client's personal one."""

    name = "fedavg_ft"
    summary = "FedAvg; each client fine-tunes the global model before it predicts"
    paper = "Wang et al., arXiv 2019"
    attacked = Attacked(guards=RULES)
    Options = FedAvgFTOptions
    options: FedAvgFTOptions

    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Train the global model for `personal_epochs` on the clients' own batches."""
        self.receive(cohort, payload)
        lr = self.options.personal_lr or self.training.lr
        training = dataclasses.replace(self.training, lr=lr, schedule="constant")
        optimizer = Optimizer(cohort.params, zero_moments(cohort.params, training), training)
        part = HEAD if self.options.personal_part == "head" else ""
        with cohort.training_only(part):
            for batch in cohort.batches(self.options.personal_epochs):
                optimizer.step(self.local_loss(cohort, batch, payload))
