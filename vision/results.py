"""An image run on disk: settings, accuracies, rounds, who had which images, and the model.

A run folder holds

- `run.json`: settings, data, versions, seconds; written last, so its presence says "complete";
- `metrics.csv`: one row an accuracy, long form, columns `METRIC_COLUMNS`;
- `rounds.csv`: one row a round: losses, bytes, seconds, accuracy by model and mask;
- `partition.csv`: images by client, part, (stage,) domain and class;
- `stages.csv`: of a task stream, right predictions by round, stage, model, mask and client;
- `model/`: what `Learner.load` reads.

Until it is finished it holds `settings.json` and `checkpoints/`, which `resume` goes on from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.errors import InputError, choose
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.run_folder import (
    check_begun,
    check_new,
    find_folders,
    finish,
    is_finished,
    read_about,
    read_begun,
    read_csv,
    write_about,
    write_csv,
    writing,
)
from stforecast.federated.runs.run_lock import locked
from stforecast.federated.server import RoundReport
from vision.config import resolve
from vision.evaluation import MASKS, last_best_mean
from vision.evaluator import STAGE_COLUMNS, column, last_stage
from vision.learner import Learner

COMMAND = "stforecast vision run"

ENTRIES: dict[str, type] = {
    "views": list, "data": str, "classes": list, "domains": list, "clients": int,
}  # fmt: skip
"""Entries of `run.json` that figures read besides the settings, and their types."""

ROUND_COLUMNS = ("round", "participants", "bytes_down", "bytes_up")
"""Columns of `rounds.csv` that figures and tables read, besides the accuracies."""

METRIC_COLUMNS = ("view", "mask", "selection", "client", "domain", "class", "accuracy", "samples")
"""Columns of `metrics.csv`. `all` stands for the mean over clients of a client's accuracy."""


@dataclass(frozen=True)
class ImageRun:
    """A finished run.

    Attributes:
        folder: where it lies.
        about: contents of `run.json`.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.about["settings"]["method"])

    @property
    def label(self) -> str:
        """What to call the run in a legend."""
        return str(self.about.get("label", self.method))

    @property
    def views(self) -> tuple[str, ...]:
        """The method's models; the first is the one that a user gets."""
        return tuple(self.about["views"])

    def name_of(self, view: str) -> str:
        """What to call one of the method's models: the label alone means the first."""
        return self.label if view == self.views[0] else f"{self.label} ({view})"

    @property
    def masks(self) -> tuple[str, ...]:
        """Classes that its predictions choose from."""
        return tuple(self.about.get("masks", MASKS))

    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`; clients are text."""
        text = ("view", "mask", "selection", "client", "domain", "class")
        return read_csv(self.folder / "metrics.csv", ("accuracy", "samples"), text)

    def rounds(self) -> pd.DataFrame:
        """`rounds.csv`."""
        accuracies = [column(view, mask) for view in self.views for mask in self.masks]
        return read_csv(self.folder / "rounds.csv", (*ROUND_COLUMNS, *accuracies))

    def partition(self) -> pd.DataFrame:
        """`partition.csv`."""
        numbers = ("client", "samples", *(["stage"] if "stages" in self.about else []))
        return read_csv(self.folder / "partition.csv", numbers, ("part", "domain", "class"))

    def stages(self) -> pd.DataFrame:
        """`stages.csv`, for `vision.streams.measures`.

        Raises:
            InputError: if the run had no task stream.
        """
        if "stages" not in self.about:
            raise InputError(f"{self.folder}: has no stages; run it with a task stream")
        text = ("view", "mask")
        numbers = [name for name in STAGE_COLUMNS if name not in (*text, "participant")]
        return read_csv(self.folder / "stages.csv", numbers, text)

    def accuracy(
        self, selection: str = "last", view: str | None = None, mask: str = MASKS[0]
    ) -> float:
        """Mean over clients of the test accuracy; of a task stream, after its last stage.

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


def run(
    method: str,
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    label: str | None = None,
    facts: Mapping[str, Any] | None = None,
    after_round: Callable[[RoundReport], None] | None = None,
) -> ImageRun:
    """Fit a learner, judge it and write the run folder.

    Args:
        method: name of a method.
        out: run folder; made if it is not there.
        settings: flat settings, see `vision.config`.
        label: what to call the run in tables and legends; by default the method.
        facts: what `run.json` shall say besides.
        after_round: called with each round's report.

    Raises:
        InputError: if data or settings do not fit, or `out` is a file or holds a finished run.
    """
    out = Path(out)
    with locked(out):
        check_new(out, COMMAND)
        about = {
            "settings": resolve(method, **settings).flat(),
            "label": label or method,
            "facts": dict(facts or {}),
        }
        return _run(out, about, after_round)


def resume(
    folder: str | os.PathLike[str], *, after_round: Callable[[RoundReport], None] | None = None
) -> ImageRun:
    """Go on with a run that was stopped, from its newest sound checkpoint.

    Numbers are those of a run that is never stopped, bit for bit, on the same machine.

    Args:
        folder: the run's; that of a finished run is opened.
        after_round: called with each round's report.

    Raises:
        InputError: if no run was begun there, or results cannot be written.
        Stopped: on SIGINT or SIGTERM, after the round.
    """
    out = Path(folder)
    check_begun(out, COMMAND)
    with locked(out):
        if is_finished(out):
            finish(out)
            return open_image_run(out)
        return _run(out, read_begun(out, COMMAND, ("facts", "label")), after_round)


def _run(
    out: Path, begun: dict[str, Any], after_round: Callable[[RoundReport], None] | None
) -> ImageRun:
    """Do what was begun, or the rest of it."""
    start = time.perf_counter()
    learner = Learner(**begun["settings"])
    again = f"go on with: {COMMAND} --resume {out}"
    with Checkpointer(out, begun, learner.config.run.checkpoint_every, again) as checkpointer:
        learner.fit(after_round=after_round, checkpointer=checkpointer)
        with writing(out, "free some space, then do the same again"):
            _write_results(learner, out)
            seconds = round(time.perf_counter() - start, 3)
            write_about(out, {**_about(learner, begun), "seconds": seconds})
    finish(out)
    return open_image_run(out)


def _write_results(learner: Learner, out: Path) -> None:
    """Everything but `run.json`."""
    learner.save(out / "model")
    write_csv(_metrics(learner), out / "metrics.csv")
    write_csv(learner.rounds_, out / "rounds.csv")
    write_csv(learner.partition.table(learner.images), out / "partition.csv")
    if learner.stages_ is not None:
        write_csv(learner.stages_, out / "stages.csv")


def _about(learner: Learner, begun: dict[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run."""
    images, stages = learner.images, learner.stages_
    return {
        "task": "images",
        "settings": learner.config.flat(),
        "label": begun["label"],
        **begun["facts"],
        **({} if stages is None else {"stages": int(stages["stage"].max()) + 1}),
        "views": learner.counts_.views,
        "masks": learner.counts_.masks,
        "data": images.name,
        "source": images.source,
        "images": len(images),
        "classes": images.class_names,
        "domains": images.domain_names,
        "clients": len(learner.counts_.total),
    }


def _metrics(learner: Learner) -> pd.DataFrame:
    """Accuracies over rounds, then those of the last round by client, domain and class."""
    counts, images = learner.counts_, learner.images
    totals = {
        "client": counts.total.sum((1, 2)),
        "domain": counts.total.sum((0, 2)),
        "class": counts.total.sum((0, 1)),
    }
    names = {
        "client": range(len(counts.total)),
        "domain": images.domain_names,
        "class": images.class_names,
    }
    rows: list[dict[str, Any]] = []
    for view in counts.views:
        for mask in counts.masks:
            base = {"view": view, "mask": mask, "client": "all", "domain": "all", "class": "all"}
            judged = last_stage(learner.rounds_)[column(view, mask)].dropna()
            selections = last_best_mean(judged.tolist())
            everything = int(counts.total.sum())
            rows += [
                {**base, "selection": s, "accuracy": a, "samples": everything}
                for s, a in selections.items()
            ]
            parts = {
                "client": counts.of_clients(view, mask),
                "domain": counts.of_domains(view, mask),
                "class": counts.of_classes(view, mask),
            }
            rows += [
                {**base, "selection": "last", axis: name, "accuracy": float(a), "samples": int(n)}
                for axis, accuracies in parts.items()
                for name, a, n in zip(names[axis], accuracies, totals[axis], strict=True)
                if n
            ]
    return pd.DataFrame(rows)[list(METRIC_COLUMNS)]


def open_image_run(folder: str | os.PathLike[str]) -> ImageRun:
    """A finished run.

    Raises:
        InputError: if the folder is none.
    """
    return ImageRun(Path(folder), read_about(Path(folder), COMMAND, ENTRIES))


def find_image_runs(folders: Iterable[str | os.PathLike[str]]) -> list[ImageRun]:
    """Every finished image run in the given folders and below them, in order of name.

    Raises:
        InputError: naming a folder that holds none.
    """
    return [open_image_run(folder) for folder in find_folders(map(Path, folders), COMMAND)]
