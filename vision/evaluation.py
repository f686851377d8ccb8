"""Accuracy of every client and model, by domain and class, with and without class masks."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stforecast.federated.data import ClientData
from stforecast.federated.method import Method
from stforecast.federated.predictions import predictions
from stforecast.federated.state import State

MASKS = ("all classes", "own classes")
"""Classes that a prediction chooses from: all, or those of the client's training samples.

In a task stream, the latter are the classes of the stages so far."""

TASK = "task classes"
"""A further mask for task streams: the classes that the client had in the stage of the test image.

It gives predictions the task, as in task-incremental learning; the other masks do not."""

TRAINED = "trained"
"""View of methods without personal models: each client's model after its latest training."""


@dataclass(frozen=True)
class Counts:
    """Correct predictions and test samples by view, mask, client, domain and class.

    Attributes:
        views: the method's models, in order.
        masks: classes that predictions choose from, in order.
        right: `(views, masks, clients, domains, classes)` correctly predicted samples; one of which
            n classes are equally likely counts 1 / n if its class is among them.
        total: `(clients, domains, classes)` samples.
    """

    views: tuple[str, ...]
    masks: tuple[str, ...]
    right: Tensor
    total: Tensor

    def __add__(self, other: Counts) -> Counts:
        """Add two counts, e.g. those of the test images of two stages."""
        return replace(self, right=self.right + other.right, total=self.total + other.total)

    def accuracy(self, view: str, mask: str) -> float:
        """Return the mean accuracy over clients; clients without test samples do not count."""
        return float(self.of_clients(view, mask).nanmean())

    def of_clients(self, view: str, mask: str) -> Tensor:
        """Return the accuracy of each client `(clients,)`, NaN without test samples."""
        return self._of(view, mask, (1, 2))

    def of_domains(self, view: str, mask: str) -> Tensor:
        """Return the accuracy of each domain `(domains,)` over all clients' samples."""
        return self._of(view, mask, (0, 2))

    def of_classes(self, view: str, mask: str) -> Tensor:
        """Return the accuracy of each class `(classes,)` over all clients' samples."""
        return self._of(view, mask, (0, 1))

    def _of(self, view: str, mask: str, over: tuple[int, int]) -> Tensor:
        right = self.right[self.views.index(view), self.masks.index(mask)]
        return right.sum(over) / self.total.sum(over)

    def table(self) -> pd.DataFrame:
        """Return rows of `view, mask, client, domain, class, right, total` with `total` above 0."""
        axes = [self.views, self.masks, *map(range, self.total.shape)]
        index = pd.MultiIndex.from_product(
            axes, names=["view", "mask", "client", "domain", "class"]
        )
        total = self.total.expand(self.right.shape).flatten().numpy()
        table = pd.DataFrame({"right": self.right.flatten().numpy(), "total": total}, index=index)
        return table[table["total"] > 0].reset_index()


def evaluate(
    method: Method,
    state: State,
    test: ClientData,
    own: Tensor,
    n_domains: int,
    cohort_size: int = 1,
    views: Sequence[str] | None = None,
    task: Tensor | None = None,
) -> Counts:
    """Count the correct predictions of each client's models on its own test samples.

    Args:
        method: the method.
        state: the state that predicts (`Federation.ready()`).
        test: `x`, `y` and `domain` of each client, on the state's device.
        own: `(clients, classes)` whether a client has training samples of a class.
        n_domains: number of domains over all clients.
        cohort_size: largest number of clients that predict together.
        views: models to evaluate, from the method's views and `TRAINED`; by default the method's.
        task: `(clients, classes)` classes of the test samples' task, for the mask `TASK`.
    """
    views = method.views if views is None else tuple(views)
    masks = dict(zip(MASKS, (torch.ones_like(own), own), strict=True))
    masks |= {} if task is None else {TASK: task}
    shape = (len(own), n_domains, own.shape[1])
    n_cells = math.prod(shape)
    client = torch.arange(len(own))[:, None].expand_as(test.tensors["y"])
    data = ClientData({**test.tensors, "client": client.to(test.tensors["y"].device)}, test.sizes)
    right = torch.zeros(len(views), len(masks), n_cells, dtype=torch.float64)
    total = torch.zeros(n_cells, dtype=torch.long)
    for v, view in enumerate(views):
        total.zero_()
        model, name = (_as_trained(method), None) if view == TRAINED else (method, view)
        for batch, logits in predictions(model, state, data, view=name, cohort_size=cohort_size):
            y, valid = batch["y"], batch["valid"]
            cell = (batch["client"] * n_domains + batch["domain"]) * own.shape[1] + y
            cell = cell[valid].cpu()
            for m, allowed in enumerate(masks.values()):
                others = ~allowed.to(y.device)[batch["client"]]
                hits = _hits(logits.masked_fill(others, -torch.inf), y)[valid].cpu()
                right[v, m] += cell.bincount(hits, minlength=n_cells)
            total += cell.bincount(minlength=n_cells)
    return Counts(views, tuple(masks), right.view(-1, len(masks), *shape), total.view(shape))


def _hits(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of the true class `y` `(…)` among the classes of the largest logit."""
    best = logits == logits.amax(-1, keepdim=True)
    mine = best.gather(-1, y[..., None]).squeeze(-1)
    return mine.double() / best.sum(-1).clamp(min=1)


def _as_trained(method: Method) -> Method:
    """Return the method without broadcasts: clients predict with their own state."""
    alone = copy.copy(method)
    vars(alone)["broadcast"] = lambda server, to: {}
    return alone


def last_best_mean(accuracies: list[float]) -> dict[str, float]:
    """Return the usual summary of a run: last round, best round, mean of the last ten rounds.

    The best round is chosen on the test samples, as in the papers, so it is optimistic.

    Example:
        >>> last_best_mean([0.1, 0.5, 0.3])
        {'last': 0.3, 'best': 0.5, 'last ten': 0.3}
    """
    a = np.asarray(accuracies)
    means = {"last": a[-1], "best": np.nanmax(a), "last ten": np.nanmean(a[-10:])}
    return {name: round(float(value), 12) for name, value in means.items()}
