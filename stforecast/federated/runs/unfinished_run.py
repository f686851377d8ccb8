"""A run of any kind while it is done: begun, trained with checkpoints, gone on with, written."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.run import Run
from stforecast.federated.runs.run_folder import (
    check_begun,
    check_new,
    finish,
    is_finished,
    read_begun,
    write_about,
    writing,
)
from stforecast.federated.runs.run_lock import locked
from stforecast.federated.server import RoundReport

R = TypeVar("R", bound=Run)

AfterRound = Callable[[RoundReport], None]
"""Called with each round's report."""


@contextmanager
def new_folder(out: Path, command: str) -> Iterator[None]:
    """Within the context a run may be begun in a folder that holds none.

    Args:
        out: the run's folder; made if it is not there.
        command: that writes such folders, for messages.

    Raises:
        InputError: if `out` is a file or holds a run.
    """
    with locked(out):
        check_new(out, command)
        yield


class UnfinishedRun(ABC, Generic[R]):
    """A run that is being done: the adapter that each kind of run has.

    Args:
        folder: the run's.
        begun: contents of `settings.json`: `settings`, `label` and what else going on needs.
    """

    kind: type[R]
    """What it is when it is finished."""

    needed: ClassVar[tuple[str, ...]] = ("label",)
    """Entries of `settings.json` without which a run cannot go on, besides the settings."""

    def __init__(self, folder: Path, begun: dict[str, Any]) -> None:
        self.folder, self.begun = folder, begun

    @abstractmethod
    def train(self, checkpointer: Checkpointer, after_round: AfterRound | None) -> None:
        """Train from the newest checkpoint on, or from the beginning."""

    @abstractmethod
    def write_results(self) -> None:
        """Write everything but `run.json`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What `run.json` says of the run."""

    def complete(self, after_round: AfterRound | None = None) -> R:
        """Do what was begun, or the rest of it."""
        start = time.perf_counter()
        again = f"go on with: {self.kind.command} --resume {self.folder}"
        every = self.begun["settings"].get("checkpoint_every")
        with Checkpointer(self.folder, self.begun, every, again) as checkpointer:
            self.train(checkpointer, after_round)
            with writing(self.folder, "free some space, then do the same again"):
                self.write_results()
                seconds = round(time.perf_counter() - start, 3)
                write_about(self.folder, {**self.describe(), "seconds": seconds})
        finish(self.folder)
        return self.kind.open(self.folder)

    @classmethod
    def resume(
        cls,
        folder: Path,
        after_round: AfterRound | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> R:
        """Go on with a run that was stopped, from its newest sound checkpoint.

        Args:
            folder: the run's; that of a finished run is opened.
            after_round: called with each round's report.
            changes: entries that replace those of `settings.json`.

        Raises:
            InputError: if no run was begun there, or results cannot be written.
            Stopped: on SIGINT or SIGTERM, after the round.
        """
        check_begun(folder, cls.kind.command)
        with locked(folder):
            if is_finished(folder):
                finish(folder)
                return cls.kind.open(folder)
            begun = read_begun(folder, cls.kind.command, cls.needed)
            return cls(folder, {**begun, **(changes or {})}).complete(after_round)
