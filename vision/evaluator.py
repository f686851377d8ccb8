"""Judging a run while it trains: accuracies by round, and by stage of a task stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.method import Participants
from stforecast.federated.rounds import Federation
from stforecast.federated.server import RoundReport
from stforecast.federated.state import State
from vision.clients import client_data
from vision.datasets import ImageSet
from vision.evaluation import MASKS, TASK, TRAINED, Counts, evaluate
from vision.streams import TaskStream

STAGE_COLUMNS = (
    "round", "stage", "test_stage", "view", "mask", "client", "participant", "right", "samples",
)  # fmt: skip
"""Columns of the table of stages."""


class ImageFederation(Federation):
    """A federation that remembers who took part in its latest round."""

    latest: Participants

    def participants(self) -> Participants:
        """The clients of the coming round, as drawn by the core.

        Raises:
            InputError: if none of those drawn has images in the stage.
        """
        self.latest = super().participants()
        if not len(self.latest.ids):
            raise InputError(
                f"no client that was drawn for round {self.state.round + 1} has images in stage "
                f"{self.latest.stage}; let more take part (participation) or spread stages less"
            )
        return self.latest


class Judge:
    """Judges every round, or some, on the clients' test images.

    Of a task stream, all stages of a global round are judged or none (order `inside`), and after a
    stage the test images of this and of all former ones.

    Args:
        federation: whose state is judged.
        stream: who has which images.
        images: the set that was split.
        every: (global) rounds from one judgement to the next; the last is always judged, of every
            stage.
        by_stage: whether to note the counts of each client and stage, and what the clients' models
            know before they are averaged.

    Attributes:
        counts: of the last round that was judged.
        views: models that are judged.
        masks: classes that predictions choose from; with `by_stage` those of the task too.
    """

    counts: Counts

    def __init__(
        self,
        federation: ImageFederation,
        stream: TaskStream,
        images: ImageSet,
        every: int,
        *,
        by_stage: bool = False,
    ) -> None:
        self._federation, self._every, self._by_stage = federation, every, by_stage
        self._tests = [
            client_data(images, ids).to(federation.trainer.device) for ids in stream.test
        ]
        self._own, self._task = stream.own_classes(images), stream.task_classes(images)
        self._n_domains = len(images.domain_names)
        views = federation.method.views
        self.views = (*views, TRAINED) if by_stage and "personal" not in views else views
        self.masks = (*MASKS, TASK) if by_stage else MASKS
        self._rows: list[dict[str, float]] = []
        self._stages: list[pd.DataFrame] = []

    def __call__(self, report: RoundReport) -> None:
        """Judge the round that this report is of, if it is one to judge."""
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
        state = self._federation.ready()
        by_test = [self._evaluate(state, stage, on) for on in range(stage + 1)]
        self.counts = sum(by_test[1:], start=by_test[0])
        if self._by_stage:
            self._stages += [
                self._stage_table(report.round, stage, on, counts)
                for on, counts in enumerate(by_test)
            ]
        row |= {column(v, m): self.counts.accuracy(v, m) for v in self.views for m in self.masks}

    def _evaluate(self, state: State, stage: int, on: int) -> Counts:
        f = self._federation
        test, own = self._tests[on], self._own[stage]
        task = self._task[on] if self._by_stage else None
        return evaluate(
            f.method, state, test, own, self._n_domains, f.trainer.cohort_size, self.views, task
        )

    def _stage_table(self, round: int, stage: int, on: int, counts: Counts) -> pd.DataFrame:
        """Right predictions of each client on one stage's test images, in `STAGE_COLUMNS`."""
        n_clients = len(counts.total)
        axes = [counts.views, counts.masks, range(n_clients)]
        index = pd.MultiIndex.from_product(axes, names=["view", "mask", "client"])
        right = counts.right.sum((-2, -1))
        samples = counts.total.sum((-2, -1)).expand(right.shape)
        took_part = torch.isin(torch.arange(n_clients), self._federation.latest.ids)
        values = {"right": right, "samples": samples, "participant": took_part.expand(right.shape)}
        table = pd.DataFrame({name: t.flatten().numpy() for name, t in values.items()}, index=index)
        table = table[table["samples"] > 0].reset_index()
        return table.assign(round=round, stage=stage, test_stage=on)[list(STAGE_COLUMNS)]

    def table(self) -> pd.DataFrame:
        """The rounds' reports beside their accuracies, NaN where a round was not judged."""
        reports = pd.DataFrame(self._federation.history()).drop(columns="validation_loss")
        return reports.merge(pd.DataFrame(self._rows), on="round")

    def notes(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What it has seen so far, for a checkpoint."""
        counts = getattr(self, "counts", None)
        tensors = {} if counts is None else {"right": counts.right, "total": counts.total}
        return {"rows": self._rows, "stages": [t.to_dict("list") for t in self._stages]}, tensors

    def restore(self, notes: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take up what `notes` gave."""
        self._rows = list(notes["rows"])
        self._stages = [pd.DataFrame(table) for table in notes["stages"]]
        if tensors:
            self.counts = Counts(self.views, self.masks, tensors["right"], tensors["total"])

    def stages(self) -> pd.DataFrame | None:
        """Counts by judged round, stage of the test images, view, mask and client, if noted."""
        return pd.concat(self._stages, ignore_index=True) if self._by_stage else None


def column(view: str, mask: str) -> str:
    """Name of a model's accuracy in the table of rounds.

    >>> column("personal", "own classes")
    'accuracy (personal, own classes)'
    """
    return f"accuracy ({view}, {mask})"


def last_stage(rounds: pd.DataFrame) -> pd.DataFrame:
    """The judged rounds of a stream's last stage, after which all has been seen; else all rounds.

    Args:
        rounds: the table of rounds.
    """
    if "stage" not in rounds:
        return rounds
    return rounds[rounds["stage"] == rounds["stage"].max()]
