"""Chance: all classes are equally likely, whatever the image.

Its accuracy is exactly 1 / n among n classes, as equal logits count as shares of a correct
prediction (`vision.evaluation.evaluate`). A row that is not above it has learned nothing. It serves
any model and trains none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from stforecast.federated.method import Method, Task
from stforecast.federated.population import Population
from stforecast.federated.state import Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.references.heads import OF_ROUNDS, once


class Chance(Method):
    """Equal logits for every class."""

    name = "chance"
    summary = "guesses: each class is equally likely"
    paper = "reference"
    unread = OF_ROUNDS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, once(training), options)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train nothing; report the cross-entropy of the guess."""
        cohort.record_loss(torch.full((len(cohort),), math.log(self.task.n_keys)))
        return {}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Return zeros."""
        return torch.zeros(*x.shape[:2], self.task.n_keys, device=x.device)
