"""An image run on disk: settings, accuracies, rounds, partition and model.

A run folder holds

- `run.json`: settings, data, versions, seconds; written last, so it marks the run as complete;
- `metrics.csv`: one row per accuracy in long form, columns `METRIC_COLUMNS`;
- `rounds.csv`: one row per round: losses, bytes, seconds, accuracy by model and mask;
- `partition.csv`: images by client, part, (stage,) domain and class;
- `stages.csv`: for task streams, correct predictions by round, stage, model, mask and client;
- `model/`: the saved learner, which `Learner.load` reads.

An unfinished run holds `settings.json` and `checkpoints/`, from which `UnfinishedImageRun.resume`
continues. On the same machine, the results equal an uninterrupted run's, bit for bit.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from data_prep.base.errors import InputError, Words, choose
from stforecast.bench.run_groups import ALL
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import Run, write_csv
from stforecast.federated.runs.unfinished_run import (
    AfterRound,
    Checkpointer,
    UnfinishedRun,
    new_folder,
)
from stforecast.federated.uploads.uplink import guarantee
from vision.datasets.image_set import ImageSet
from vision.evaluation import MASKS, STAGE_COLUMNS, TRAINED, column, last_best_mean, last_stage
from vision.learner import ROUNDS, Learner, load_images, prepared

log = logging.getLogger(__name__)

METRIC_COLUMNS = ("view", "mask", "selection", "client", "domain", "class", "accuracy", "samples")
"""Columns of `metrics.csv`; client `all` is the mean over clients of their accuracies."""


@dataclass(frozen=True)
class ImageRun(Run):
    """A finished run of a learner."""

    command = "stforecast vision run"
    entries = MappingProxyType(
        {"views": list, "data": str, "classes": list, "domains": list, "clients": int}
    )
    no_difference = Run.no_difference | {"images"}

    @property
    def data_name(self) -> str:
        """Name of the images and, if it has one, of their scenario."""
        return ", ".join(filter(None, self.facts().values()))

    def facts(self) -> dict[str, str]:
        """Name of the images and of their partition."""
        return {"data": self.about["data"], "scenario": self.about.get("scenario", "")}

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the judged models; the first is the default."""
        return tuple(self.about["views"])

    @property
    def local_view(self) -> str:
        """Name of the clients' own models."""
        return "personal" if "personal" in self.views else TRAINED

    def judged(self, view: str) -> str:
        """Return `own` or `averaged`: the clients' model that predicts; "" if none is averaged."""
        return str(self.about["judged"][view])

    def tags_of(self, view: str) -> tuple[str, ...]:
        """Return the name of one of the method's models as a tag; none for the first."""
        return () if view == self.views[0] else (view,)

    @property
    def masks(self) -> tuple[str, ...]:
        """Classes that its predictions choose from."""
        return tuple(self.about["masks"])

    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`; clients are text."""
        return self.read_table("metrics.csv", METRIC_COLUMNS[-2:], METRIC_COLUMNS[:-2])

    def rounds(self) -> pd.DataFrame:
        """`rounds.csv`."""
        accuracies = [column(view, mask) for view in self.views for mask in self.masks]
        known = ("round", "participants", "bytes_down", "bytes_up")
        return self.read_table(ROUNDS, (*known, *accuracies))

    def partition(self) -> pd.DataFrame:
        """`partition.csv`."""
        numbers = ("client", "samples", *(["stage"] if "stages" in self.about else []))
        return self.read_table("partition.csv", numbers, ("part", "domain", "class"))

    def stages(self) -> pd.DataFrame:
        """`stages.csv`, for `vision.streams.measures`.

        Raises:
            InputError: if the run had no task stream.
        """
        if "stages" not in self.about:
            stream = Words("draw runs with a task stream, such as {partition:gldp-shards}")
            raise InputError(f"{self.folder}: has no stages; ", stream)
        text = ("view", "mask")
        numbers = [name for name in STAGE_COLUMNS if name not in (*text, "participant")]
        return self.read_table("stages.csv", numbers, text)

    def images(self) -> ImageSet:
        """Read the images of the clients again; a warning tells if they have changed."""
        config = Learner.recorded(self.settings).config
        found, _ = prepared(load_images(config), config)
        if len(found.domain_names) == 1:  # It may be the name of the folder.
            found = dataclasses.replace(found, domain_names=tuple(self.about["domains"][:1]))
        if fingerprint(*found.identity()) != self.about.get("content"):
            log.warning(
                "%s: its images have changed since the training (they were %s, now %s), so clients "
                "may have others; restore them or run again",
                self.folder,
                self.about.get("images"),
                len(found),
            )
        return found

    def accuracy(
        self, selection: str = "last", view: str | None = None, mask: str = MASKS[0]
    ) -> float:
        """Return the mean test accuracy over clients; for a task stream, after its last stage.

        Args:
            selection: `last` round, `best` round (by the test itself) or mean of the `last ten`.
            view: one of the run's models; by default its first.
            mask: classes that a prediction chooses from.

        Raises:
            InputError: for an unknown selection.
        """
        accuracies = last_stage(self.rounds())[column(view or self.views[0], mask)].dropna()
        found = last_best_mean(accuracies.tolist())
        if selection not in found:
            raise choose("selection", selection, found)
        return found[selection]


def run_images(
    method: str,
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    label: str | None = None,
    facts: Mapping[str, Any] | None = None,
    after_round: AfterRound | None = None,
) -> ImageRun:
    """Fit a learner, evaluate it and write the run folder.

    Args:
        method: name of a method.
        out: run folder; created if it does not exist.
        settings: flat settings, see `vision.config`.
        label: name of the run in tables and legends; by default the method.
        facts: further entries of `run.json`.
        after_round: called with each round's report.

    Raises:
        InputError: if data or settings do not fit, or `out` is a file or holds a finished run.
    """
    out = Path(out)
    with new_folder(out, ImageRun.command):
        begun = {
            "task": "images",
            "settings": Learner(method, **settings).config.flat(),
            "label": label or method,
            "facts": dict(facts or {}),
        }
        return UnfinishedImageRun(out, begun).complete(after_round)


class UnfinishedImageRun(UnfinishedRun[ImageRun]):
    """An unfinished run of a learner."""

    kind = ImageRun
    needed = ("facts", "label")

    def __init__(self, folder: Path, begun: dict[str, Any]) -> None:
        super().__init__(folder, begun)
        self.learner = Learner.recorded(begun["settings"])

    def train(self, checkpointer: Checkpointer, after_round: AfterRound | None) -> None:
        """Fit the learner."""
        self.learner.fit(after_round=after_round, checkpointer=checkpointer)

    def write_results(self) -> None:
        """Write the model, the accuracies, the rounds and the partition."""
        learner, out = self.learner, self.folder
        learner.save(out / "model")
        write_csv(metrics_table(learner), out / "metrics.csv")
        write_csv(learner.rounds_, out / ROUNDS)
        write_csv(learner.partition.table(learner.images), out / "partition.csv")
        if learner.stages_ is not None:
            write_csv(learner.stages_, out / "stages.csv")

    def describe(self) -> dict[str, Any]:
        """Return settings, images and results for `run.json`."""
        learner, begun = self.learner, self.begun
        images, stages = learner.images, learner.stages_
        return {
            "task": "images",
            "settings": learner.config.flat(),
            "label": begun["label"],
            **begun["facts"],
            **({} if stages is None else {"stages": int(stages["stage"].max()) + 1}),
            **guarantee(learner.config.uplink, len(learner.rounds_), "a client's training images"),
            "views": learner.counts_.views,
            "judged": learner.judged_,
            "masks": learner.counts_.masks,
            "data": images.name,
            "source": images.source,
            "content": fingerprint(*learner.images.identity()),
            "images": len(images),
            "classes": images.class_names,
            "domains": images.domain_names,
            "clients": len(learner.counts_.total),
        }


def metrics_table(learner: Learner) -> pd.DataFrame:
    """Tabulate accuracies over rounds, and of the last round by client, domain and class."""
    counts, images = learner.counts_, learner.images
    names: dict[str, Sequence[object]] = {
        "client": range(len(counts.total)),
        "domain": images.domain_names,
        "class": images.class_names,
    }
    rows: list[dict[str, Any]] = []
    for view in counts.views:
        for mask in counts.masks:
            base = {"view": view, "mask": mask, "client": ALL, "domain": ALL, "class": ALL}
            base["selection"] = "last"
            evaluated = last_stage(learner.rounds_)[column(view, mask)].dropna()
            selections = last_best_mean(evaluated.tolist())
            everything = int(counts.total.sum())
            rows += [
                {**base, "selection": s, "accuracy": a, "samples": everything}
                for s, a in selections.items()
            ]
            for axis, parts in names.items():
                accuracies, samples = counts.accuracies(view, mask, axis), counts.samples(axis)
                rows += [
                    {**base, axis: part, "accuracy": float(a), "samples": int(n)}
                    for part, a, n in zip(parts, accuracies, samples, strict=True)
                    if n
                ]
    return pd.DataFrame(rows)[list(METRIC_COLUMNS)]
