"""Accuracy of every client and model, by domain and class, with and without class masks.

If a method averages the models that predict, its views are judged in two ways: with the client's
own model, as it was after its latest local training, and with the averaged one. If clients do not
keep their own models, only the averaged one is judged. An `Evaluator` does so during training, by
round and by stage of a task stream.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method, Way, overridden, predictions, predictions_of
from stforecast.federated.core.state import Participants, State
from stforecast.federated.core.tensors import Payload
from stforecast.federated.engine.rounds import Federation, RoundReport
from vision.datasets.image_set import ImageSet
from vision.streams.base import TaskStream
from vision.task import for_everyone, stacked_images

log = logging.getLogger(__name__)

MASKS = ("all classes", "own classes")
"""Classes that a prediction chooses from: all, or the classes of the client's training samples.

In a task stream, the latter are the classes of the stages so far."""

TASK = "task classes"
"""A further mask for task streams: the classes that the client had in the stage of the test image.

It gives predictions the task, as in task-incremental learning; the other masks do not."""

TRAINED = "trained"
"""Name of the clients' own models if a method's first view predicts with averaged ones."""


@dataclass(frozen=True)
class JudgedModel:
    """A model of the clients whose accuracy is counted.

    Attributes:
        name: the method's view, and the way if that is not the method's: `local`, `trained` or
            `local averaged`.
        view: the method's view.
        way: whether the clients' own models predict or averaged ones; None if the server averages
            nothing that the view predicts with.
        method_way: whether the way is the method's.
    """

    name: str
    view: str
    way: Way | None = None
    method_way: bool = True


def judged_models(method: Method, state: State, data: ClientData) -> tuple[JudgedModel, ...]:
    """Return a method's views, each followed by the same in the other way if that differs."""
    found: list[JudgedModel] = []
    for view in method.views:
        reads = _reads_averages(method, state, data, view)
        found += _in_both_ways(method, view) if reads else [JudgedModel(view, view)]
    return tuple(found)


def possible_names(method: type[Method]) -> list[str]:
    """Return the names of all models of a method that may be judged."""
    return [model.name for view in method.views for model in _in_both_ways(method, view)]


def _in_both_ways(method: Method | type[Method], view: str) -> list[JudgedModel]:
    """Return a view that reads averages in the method's way, and in the other if there is one.

    There is none if clients do not keep the model that they trained until they receive the next.
    """
    usual, other = _ways(method)
    found = [JudgedModel(view, view, usual)]
    if getattr(method, "keeps_trained", True):
        name = TRAINED if other == "own" else other
        name = name if view == method.views[0] else f"{view} {name}"
        found.append(JudgedModel(name, view, other, method_way=False))
    return found


def _ways(method: Method | type[Method]) -> tuple[Way, Way]:
    """Return how a method predicts, with own models or averaged ones, and the other way."""
    as_trained = getattr(method, "predicts_as_trained", False)
    return ("own", "averaged") if as_trained else ("averaged", "own")


def _reads_averages(method: Method, state: State, data: ClientData, view: str) -> bool:
    """Return whether predictions depend on the received parameters and running statistics."""
    clients = state.clients

    def broadcast(server: dict[str, Tensor], to: Participants) -> Payload:
        """Change each received tensor of the model."""
        return {
            name: 1 - 3 * t if name in clients.params or name in clients.buffers else t
            for name, t in method.broadcast(server, to).items()
        }

    changed = overridden(method, broadcast=broadcast)
    way: Way | None = "averaged" if _ways(method)[0] == "own" else None
    some = data.sizes.nonzero()[0]
    one, other = (
        next(predictions_of(m, state, data, some, view, way))[1] for m in (method, changed)
    )
    return not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Counts:
    """Correct predictions and test samples by view, mask, client, domain and class.

    Attributes:
        views: names of the judged models, in order.
        masks: classes that predictions choose from, in order.
        right: `(views, masks, clients, domains, classes)` correctly predicted samples. If n
            classes are equally likely for a sample, it counts 1 / n if its class is among them.
        total: `(clients, domains, classes)` samples.
    """

    views: tuple[str, ...]
    masks: tuple[str, ...]
    right: Tensor
    total: Tensor

    def __add__(self, other: Counts) -> Counts:
        """Add two counts, e.g. of the test images of two stages."""
        return replace(self, right=self.right + other.right, total=self.total + other.total)

    def accuracy(self, view: str, mask: str) -> float:
        """Return the mean accuracy over clients; clients without test samples do not count."""
        return float(self.accuracies(view, mask, "client").nanmean())

    def accuracies(self, view: str, mask: str, axis: str) -> Tensor:
        """Return the accuracy of each `client`, `domain` or `class`, NaN without test samples."""
        right = self.right[self.views.index(view), self.masks.index(mask)]
        return right.sum(self._others(axis)) / self.samples(axis)

    def samples(self, axis: str) -> Tensor:
        """Return the test samples of each `client`, `domain` or `class`."""
        return self.total.sum(self._others(axis))

    def _others(self, axis: str) -> list[int]:
        return [i for i, name in enumerate(("client", "domain", "class")) if name != axis]


def count_correct(
    method: Method,
    state: State,
    test: ClientData,
    own: Tensor,
    n_domains: int,
    cohort_size: int = 1,
    models: Sequence[JudgedModel] | None = None,
    task: Tensor | None = None,
    trained: State | None = None,
) -> Counts:
    """Count the correct predictions of each client's models on its own test samples.

    The samples `x`, `y` and `domain` are on the state's device. `own` and `task` `(clients,
    classes)` are the classes of a client's training samples, and of the test samples' task,
    for the mask `TASK`. `trained` is the state after the latest training, for models that are not
    judged in the method's way, which clients do not first fit to their data; by default `state`.
    """
    models = judged_models(method, state, test) if models is None else models
    masks = dict(zip(MASKS, (torch.ones_like(own), own), strict=True))
    masks |= {} if task is None else {TASK: task}
    shape = (len(own), n_domains, own.shape[1])
    n_cells = math.prod(shape)
    client = torch.arange(len(own))[:, None].expand_as(test.tensors["y"])
    data = ClientData({**test.tensors, "client": client.to(test.tensors["y"].device)}, test.sizes)
    broken = False
    right = torch.zeros(len(models), len(masks), n_cells, dtype=torch.float64)
    total = torch.zeros(n_cells, dtype=torch.long)
    for v, model in enumerate(models):
        total.zero_()
        judged = state if model.method_way or trained is None else trained
        way = None if model.method_way else model.way
        predicted = predictions(
            method, judged, data, view=model.view, cohort_size=cohort_size, way=way
        )
        for batch, logits in predicted:
            y, valid = batch["y"], batch["valid"]
            cell = (batch["client"] * n_domains + batch["domain"]) * own.shape[1] + y
            cell = cell[valid].cpu()
            broken |= bool(logits[valid].isnan().any())
            for m, allowed in enumerate(masks.values()):
                others = ~allowed.to(y.device)[batch["client"]]
                chosen = logits.masked_fill(others, -torch.inf)
                best = chosen == chosen.amax(-1, keepdim=True)
                hits = best.gather(-1, y[..., None])[..., 0].double()
                hits = (hits / best.sum(-1).clamp(min=1))[valid].cpu()
                right[v, m] += cell.bincount(hits, minlength=n_cells)
            total += cell.bincount(minlength=n_cells)
    if broken:
        log.warning("some predictions are not finite, and count as wrong; a smaller lr may help")
    names = tuple(model.name for model in models)
    return Counts(names, tuple(masks), right.view(-1, len(masks), *shape), total.view(shape))


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


STAGE_COLUMNS = (
    *("round", "stage", "test_stage", "view", "mask"),
    *("client", "participant", "right", "samples"),
)
"""Columns of the table of stages."""


class Evaluator:
    """Callback that evaluates rounds on the clients' test images.

    In a task stream of order `inside`, either all stages of a global round are evaluated or none.
    Each stage is evaluated on the test images of all stages so far.

    Args:
        federation: federation to evaluate.
        stream: images of each client and stage.
        images: the set that was split.
        every: (global) rounds between two evaluations; the last round of every stage is always
            evaluated.
        by_stage: whether to record the counts of each client and stage.

    Attributes:
        counts: counts of the last evaluated round.
        models: models to evaluate, known after the first evaluation.
        masks: classes that predictions choose from; with `by_stage` and several stages also the
            task's.
    """

    counts: Counts

    def __init__(
        self,
        federation: Federation,
        stream: TaskStream,
        images: ImageSet,
        every: int,
        *,
        by_stage: bool = False,
    ) -> None:
        self._federation, self._every, self._by_stage = federation, every, by_stage
        self._tests = [
            stacked_images(images, ids).to(federation.trainer.device) for ids in stream.test
        ]
        self._own, self._task = stream.own_classes(images), stream.task_classes(images)
        self._n_domains = len(images.domain_names)
        self.models: tuple[JudgedModel, ...] = ()
        self._of_task = by_stage and len(stream.train) > 1
        self.masks = (*MASKS, TASK) if self._of_task else MASKS
        self._rows: list[dict[str, float]] = []
        self._stages: list[pd.DataFrame] = []

    def __call__(self, report: RoundReport) -> None:
        """Evaluate the reported round if it is due."""
        stream, rounds = self._federation.trainer.stream, self._federation.method.training.rounds
        index = report.round - 1
        stage, _ = stream.place(index, rounds)
        done = 1 + (index // len(stream) if stream.order == "inside" else index % rounds)
        row: dict[str, float] = {"round": report.round}
        if self._by_stage:
            row["stage"] = stage
        self._rows.append(row)
        if done % self._every and done != rounds:
            return
        f = self._federation
        state = f.ready()
        if f.method.pooled:
            state = for_everyone(state, len(self._own[stage]))
        self.models = self.models or judged_models(f.method, state, self._tests[stage])
        by_test = [
            count_correct(
                f.method,
                state,
                test,
                self._own[stage],
                self._n_domains,
                f.trainer.cohort_size,
                self.models,
                task if self._of_task else None,
                f.state,
            )
            for test, task in zip(self._tests[: stage + 1], self._task, strict=False)
        ]
        self.counts = sum(by_test[1:], start=by_test[0])
        if self._by_stage:
            self._stages += [
                self._stage_table(report.round, stage, on, counts)
                for on, counts in enumerate(by_test)
            ]
        row |= {
            column(v, m): self.counts.accuracy(v, m) for v in self.counts.views for m in self.masks
        }

    def _stage_table(self, round: int, stage: int, on: int, counts: Counts) -> pd.DataFrame:
        """Tabulate each client's correct predictions on one stage's test images."""
        n_clients = len(counts.total)
        axes = [counts.views, counts.masks, range(n_clients)]
        index = pd.MultiIndex.from_product(axes, names=["view", "mask", "client"])
        right = counts.right.sum((-2, -1))
        samples = counts.total.sum((-2, -1)).expand(right.shape)
        took_part = torch.isin(torch.arange(n_clients), self._federation.latest.ids)
        took_part |= self._federation.method.pooled
        values = {"right": right, "samples": samples, "participant": took_part.expand(right.shape)}
        table = pd.DataFrame({name: t.flatten().numpy() for name, t in values.items()}, index=index)
        table = table[table["samples"] > 0].reset_index()
        return table.assign(round=round, stage=stage, test_stage=on)[list(STAGE_COLUMNS)]

    def table(self) -> pd.DataFrame:
        """Return the reports of the rounds with their accuracies, NaN if not evaluated."""
        reports = pd.DataFrame(self._federation.history()).drop(columns="validation_loss")
        return reports.merge(pd.DataFrame(self._rows), on="round")

    def notes(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the results so far, for a checkpoint."""
        counts = getattr(self, "counts", None)
        tensors = {} if counts is None else {"right": counts.right, "total": counts.total}
        notes = {
            "rows": self._rows,
            "stages": [t.to_dict("list") for t in self._stages],
            "models": [dataclasses.asdict(model) for model in self.models],
        }
        return notes, tensors

    def restore(self, notes: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the results that `notes` returned."""
        self._rows = list(notes["rows"])
        self._stages = [pd.DataFrame(table) for table in notes["stages"]]
        self.models = tuple(JudgedModel(**model) for model in notes["models"])
        if tensors:
            views = tuple(model.name for model in self.models)
            self.counts = Counts(views, self.masks, tensors["right"], tensors["total"])

    def stages(self) -> pd.DataFrame | None:
        """Return the counts in `STAGE_COLUMNS`, or None without `by_stage`."""
        return pd.concat(self._stages, ignore_index=True) if self._by_stage else None


def column(view: str, mask: str) -> str:
    """Return the name of a model's accuracy in the table of rounds.

    >>> column("personal", "own classes")
    'accuracy (personal, own classes)'
    """
    return f"accuracy ({view}, {mask})"


def last_stage(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds of a stream's last stage, or all rounds without stages."""
    if "stage" not in rounds:
        return rounds
    return rounds[rounds["stage"] == rounds["stage"].max()]
