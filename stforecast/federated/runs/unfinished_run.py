"""An unfinished run of any kind: train with checkpoints, resume and write results.

A lock on its folder lets one process at a time write to it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Generic, TypeVar

from data_prep.base.files import file_lock
from stforecast.federated.engine.server import RoundReport
from stforecast.federated.runs import run_folder
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.run_folder import Run

LOCK = ".lock"
"""Name of the file that is locked; it contains the process's id."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the lock of a folder within the context.

    A folder that is created for it and stays empty is removed. A warning is logged if the file
    system has no locks.
    """
    run_folder.check_folder(out)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, made)
        with run_folder.writing(out):
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(out / LOCK, out))
        yield


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # Raised for a folder that is not empty.
        for folder in folders:
            folder.rmdir()


R = TypeVar("R", bound=Run)

AfterRound = Callable[[RoundReport], None]
"""Called with each round's report."""


@contextmanager
def new_folder(out: Path, command: str) -> Iterator[None]:
    """Lock a folder for a new run within the context."""
    with locked(out):
        run_folder.check_new(out, command)
        yield


class UnfinishedRun(ABC, Generic[R]):
    """Base of unfinished runs, with one subclass for each kind of run.

    What `begun` holds is that of `settings.json`: `settings`, `label` and what else resuming needs.
    """

    kind: type[R]
    """Class of the finished run."""

    needed: ClassVar[tuple[str, ...]] = ("label",)
    """Entries of `settings.json` that resuming needs besides the settings."""

    def __init__(self, folder: Path, begun: dict[str, Any]) -> None:
        self.folder, self.begun = folder, begun

    @abstractmethod
    def train(self, checkpointer: Checkpointer, after_round: AfterRound | None) -> None:
        """Train from the newest checkpoint, or from the beginning."""

    @abstractmethod
    def write_results(self) -> None:
        """Write everything but `run.json`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the contents of `run.json`."""

    def complete(self, after_round: AfterRound | None = None) -> R:
        """Finish the run, from its newest checkpoint if there is one."""
        start = time.perf_counter()
        again = f"go on with: {self.kind.command} --resume {quote(str(self.folder))}"
        every = self.begun["settings"].get("checkpoint_every")
        with Checkpointer(self.folder, self.begun, every, again) as checkpointer:
            self.train(checkpointer, after_round)
            with run_folder.writing(self.folder, "do the same again"):
                self.write_results()
                seconds = round(time.perf_counter() - start, 3)
                run_folder.write_about(self.folder, {**self.describe(), "seconds": seconds})
        run_folder.finish(self.folder)
        return self.kind.open(self.folder)

    @classmethod
    def resume(
        cls,
        folder: Path,
        after_round: AfterRound | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> R:
        """Resume a stopped run from its newest intact checkpoint; `changes` replace its settings.

        Raises:
            InputError: if no run was begun there, or results cannot be written.
            Stopped: on SIGINT or SIGTERM, after the round.
        """
        run_folder.check_begun(folder, cls.kind.command)
        with locked(folder):
            if run_folder.is_finished(folder):
                run_folder.finish(folder)
                return cls.kind.open(folder)
            begun = run_folder.read_begun(folder, cls.kind.command, cls.needed)
            return cls(folder, {**begun, **(changes or {})}).complete(after_round)
