"""Evaluation of a run during training: accuracies by round and by stage of a task stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from stforecast.federated.core.state import State
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.server import RoundReport
from vision.clients import for_everyone, stacked_images
from vision.datasets import ImageSet
from vision.evaluation import MASKS, TASK, Counts, JudgedModel, count_correct, judged_models
from vision.streams import TaskStream

STAGE_COLUMNS = (
    "round", "stage", "test_stage", "view", "mask", "client", "participant", "right", "samples",
)  # fmt: skip
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
        masks: classes that predictions choose from; with `by_stage` and several stages also those
            of the task.
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
        by_test = [self._evaluate(state, stage, on) for on in range(stage + 1)]
        self.counts = sum(by_test[1:], start=by_test[0])
        if self._by_stage:
            self._stages += [
                self._stage_table(report.round, stage, on, counts)
                for on, counts in enumerate(by_test)
            ]
        row |= {
            column(v, m): self.counts.accuracy(v, m) for v in self.counts.views for m in self.masks
        }

    def _evaluate(self, state: State, stage: int, on: int) -> Counts:
        f = self._federation
        test, own = self._tests[on], self._own[stage]
        task = self._task[on] if self._of_task else None
        sizes, models = f.trainer.cohort_size, self.models
        return count_correct(
            f.method, state, test, own, self._n_domains, sizes, models, task, f.state
        )

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
