"""An unfinished run of any kind: train with checkpoints, stop on a signal, resume, write results.

Resuming changes no number: a run that was killed at any time and resumed equals one that was not. A
lock on its folder lets one process at a time write to it.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from data_prep.base.errors import InputError, Stopped, Words
from data_prep.base.files import file_lock
from stforecast.federated.core.state import State
from stforecast.federated.core.tensors import total_bytes
from stforecast.federated.engine.rounds import Federation, RoundReport
from stforecast.federated.runs import run_folder
from stforecast.federated.runs.checkpoint import (
    Checkpoint,
    fingerprint,
    newest_sound,
    save_checkpoint,
)
from stforecast.federated.runs.run_folder import CHECKPOINTS, Run, begin, writing

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that a round may last on after a signal, where the system has timers."""

USUAL_SPEED = 100e6
"""Expected bytes per second of writing the first checkpoint and reading it for its checksum."""


class Observer(Protocol):
    """An observer of all rounds, whose notes are saved in checkpoints."""

    def notes(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return all notes so far, as JSON and as tensors."""
        ...

    def restore(self, notes: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `notes`."""
        ...


class Checkpointer:
    """Saves checkpoints of a run and resumes from them; a context that handles signals.

    Within the context SIGINT and SIGTERM end the run: during training after the round and a
    checkpoint, if the round ends within `GRACE`; otherwise, or at a second signal, at once.

    Args:
        out: the run's folder.
        about: JSON that resuming needs: `settings`, and further entries of the caller.
        every: rounds from one checkpoint to the next; 0 saves one only on a signal; None saves them
            as often as takes at most a 20th of the time, and none if the disk is too full.
        again: instructions to resume, for messages.
    """

    def __init__(
        self, out: Path, about: Mapping[str, Any], every: int | None = None, again: str = ""
    ) -> None:
        self.out, self.about, self.every, self.again = out, about, every, again
        self.folder = out / CHECKPOINTS
        self._run: dict[str, Any] = {}
        self._source = ""
        self._further: dict[str, str] = {}
        self._begun = "versions" in about  # `begin` wrote it.
        self._training, self._signal = False, 0
        self._place = "before the first round"
        self._since, self._cost = time.perf_counter(), math.nan
        self._warned_of_room = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._notice: threading.Thread | None = None

    def __enter__(self) -> Checkpointer:
        """Install the signal handlers if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            timer = [signal.SIGALRM] if hasattr(signal, "setitimer") else []
            signals = (signal.SIGINT, signal.SIGTERM, *timer)
            self._handlers = {s: signal.signal(s, self._on_signal) for s in signals}
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the signal handlers."""
        self._set_timer(0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._notice:
            self._notice.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._training or self._signal:
            raise self._stopped(self._signal or number)
        self._signal = number
        self._set_timer(GRACE)
        # In a thread, as the handler may interrupt a write to the same stream.
        self._notice = threading.Thread(
            target=log.warning,
            args=("finishing the round if it ends soon; a second signal stops at once",),
        )
        self._notice.start()

    def _set_timer(self, seconds: float) -> None:
        """Send a second signal so many seconds after the first; 0 for none."""
        if self._signal and getattr(signal, "SIGALRM", None) in self._handlers:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def note_data(
        self,
        tensors: Mapping[str, Tensor],
        *texts: object,
        further: Mapping[str, str] | None = None,
    ) -> None:
        """Record the source of the samples; resuming requires the same source and settings.

        Each entry of `further` is compared by itself; a message names it by its key.
        """
        self._source, self._further = fingerprint(tensors, *texts), dict(further or {})

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Keep the checkpoints of a part of the run in a folder of their own within the context."""
        whole = self.folder
        self.folder = whole / name
        try:
            yield
        finally:
            self.folder = whole

    def run(
        self,
        federation: Federation,
        after_round: Callable[[RoundReport], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Train from the newest intact checkpoint, or from the beginning.

        The observer's notes are saved and restored with the federation.

        Raises:
            InputError: if a checkpoint cannot be written, or is of another run.
            Stopped: on a signal.
        """
        data = [self._source]
        if not self._source:  # Fingerprints of the samples of each part.
            parts = [*federation.trainer.stream.stages, federation.validation]
            samples = [p.whole().tensors | {"sizes": p.sizes} for p in parts if p is not None]
            data = [*map(fingerprint, samples), ""]
        settings = json.loads(json.dumps(self.about["settings"]))
        self._run = {"settings": settings, "data": data, **self._further}
        self._restore(federation, observer)
        begin(self.out, self.about)
        self._begun = True
        self._since = time.perf_counter()

        def each_round(report: RoundReport) -> None:
            if after_round:
                after_round(report)
            self._place = f"after round {report.round}"
            self._set_timer(0)
            if self._signal or self._due(federation):
                self._save(federation, observer)
            self._stop_if_signalled()

        self._training = True
        try:
            federation.run(each_round)
        finally:
            self._training = False
        self._stop_if_signalled()

    def _stop_if_signalled(self) -> None:
        if self._signal:
            raise self._stopped(self._signal)

    def _stopped(self, number: int) -> Stopped:
        return Stopped(number, self._place, self.again if self._begun else "nothing was kept")

    def _restore(self, federation: Federation, observer: Observer | None) -> None:
        found = newest_sound(self.folder, self._run)
        if found is None:
            return
        rounds, seed, state = federation.server.rounds, federation.state.seed, found.state
        if state.round > rounds or state.seed != seed:
            raise InputError(
                f"{self.folder}: round {state.round} of seed {state.seed} is of another run, this "
                f"one has {rounds} rounds and seed {seed}; begin a new run in another folder"
            )
        federation.restore(found.state, found.best, found.reports)
        federation.trainer.cohort_size = found.cohort_size
        if observer:
            observer.restore(found.notes, found.extra)
        self._place = f"after round {found.state.round}"
        log.info("resuming %s", self._place)

    def _due(self, federation: Federation) -> bool:
        if self.every is not None:
            return self.every > 0 and federation.state.round % self.every == 0
        states = (federation.state, federation.best)
        return self._affordable(sum(total_bytes(s.flat()) for s in states if s))

    def _affordable(self, size: int) -> bool:
        """Return whether a checkpoint of `size` bytes is cheap enough and fits on the disk."""
        cost = size / USUAL_SPEED if math.isnan(self._cost) else self._cost
        if 0.05 * (time.perf_counter() - self._since) < cost:
            return False
        free = shutil.disk_usage(next(p for p in self.folder.parents if p.exists())).free
        if free > 2 * size:
            return True
        if not self._warned_of_room:
            log.warning(
                "%s: no checkpoints: one needs %.1f GB, %.1f GB are free; free some space, %s",
                self.folder,
                size / 1e9,
                free / 1e9,
                Words("or force them by {checkpoint_every}", checkpoint_every=1),
            )
        self._warned_of_room = True
        return False

    def _save(self, federation: Federation, observer: Observer | None) -> None:
        notes, extra = observer.notes() if observer else ({}, {})
        of_run = federation.state, federation.best, federation.reports
        cohort_size = federation.trainer.cohort_size
        self._write(Checkpoint(self._run, *of_run, cohort_size, notes, extra), self.folder)

    def _write(self, checkpoint: Checkpoint, folder: Path) -> None:
        start = time.perf_counter()
        with writing(folder, self.again):
            save_checkpoint(checkpoint, folder)
        self._since = time.perf_counter()
        self._cost = self._since - start

    def save_extra(
        self,
        name: str,
        of: Mapping[str, Any],
        state: State,
        notes: dict[str, Any],
        shown: str = "",
    ) -> None:
        """Save a step after the training, such as a refit, beside the checkpoints.

        It is skipped if checkpoints are, see `every`. `of` is the identity of the step
        besides settings and training data, as JSON; messages have the name `shown`.
        """
        if not (self._affordable(total_bytes(state.flat())) if self.every is None else self.every):
            return
        run = {**self._run, **of}
        checkpoint = Checkpoint(run, state, best=None, reports=[], cohort_size=0, notes=notes)
        self._write(checkpoint, self.folder / name)
        self._place = f"after {shown or name}"

    def load_extra(self, name: str, of: Mapping[str, Any]) -> Checkpoint | None:
        """Read what `save_extra` wrote under this name, if it is intact and of the same step."""
        return newest_sound(self.folder / name, {**self._run, **of})


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
    try:
        with ExitStack() as stack:
            with writing(out):
                out.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock(out / LOCK, out))
            yield
    finally:
        with suppress(OSError):  # Raised for a folder that is not empty.
            for folder in made:
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

    `begun` has the contents of `settings.json`: `settings`, `label` and what else resuming needs.
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
            with writing(self.folder, "do the same again"):
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
