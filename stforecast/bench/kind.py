"""What each kind of run brings to a benchmark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from stforecast.bench.figures import Plots
from stforecast.bench.grid_file import Entry, Keys
from stforecast.bench.published import Published
from stforecast.bench.run_groups import R
from stforecast.federated.runs.unfinished_run import AfterRound

if TYPE_CHECKING:
    from stforecast.bench.grid import Grid
    from stforecast.bench.jobs import Job


@dataclass(frozen=True)
class Scenario:
    """What is run on each data set, such as one of its services or a way to divide it.

    Attributes:
        name: name; None, or none at all, where there is but one.
        settings: flat settings of its own.
    """

    name: str | None
    settings: dict[str, Any]


class Kind(ABC, Generic[R]):
    """The adapter of one kind of run; it holds nothing, so a process may copy it."""

    run_type: type[R]
    """Its finished runs."""

    keys: ClassVar[Keys]
    """Keys of a benchmark's file, their types and what to tell people about them."""

    needed: ClassVar[frozenset[str]]
    """Keys that a file must have."""

    plots: ClassVar[Plots]
    """What can be drawn."""

    resolve: Callable[..., Any]
    """A config of a method and its flat settings."""

    results_table: Callable[[Sequence[R], Mapping[str, str], Published | None], str]
    """Markdown of finished runs, errors by name of the failed ones, and a paper's numbers."""

    def check(self, method: str, **settings: Any) -> None:
        """Refuse settings that do not fit.

        Raises:
            InputError: naming one.
        """
        self.resolve(method, **settings)

    def read_by(self, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings without those that a method does not read."""
        return dict(settings)

    @abstractmethod
    def scenarios(self, found: Mapping[str, Any]) -> tuple[Scenario, ...]:
        """Scenarios of a benchmark, from the values of its file's keys."""

    def row_labels(self, entries: Sequence[Entry]) -> list[str]:
        """What the rows of the table may be called."""
        return [entry.label for entry in entries]

    @abstractmethod
    def places(self, grid: Grid[R], out: Path, progress: bool) -> Iterator[tuple[Any, Scenario]]:
        """Each data set and scenario of a grid, in order; data are made here if they must be."""

    @abstractmethod
    def data_name(self, data: Any) -> str:
        """What to call a data set."""

    @abstractmethod
    def job_settings(
        self, grid: Grid[R], entry: Entry, scenario: Scenario, data: Any
    ) -> dict[str, Any]:
        """Flat settings of a run, but for its seed."""

    @abstractmethod
    def check_data(self, job: Job[R]) -> None:
        """Refuse data that are not there.

        Raises:
            InputError: naming them.
        """

    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What tells runs apart besides their settings."""
        return {}

    def rounds(self, config: Any) -> int:
        """Number of rounds, for a progress bar; 0 if there are none."""
        return int(config.training.rounds)

    @abstractmethod
    def begin(self, job: Job[R], after_round: AfterRound) -> R:
        """Do a run."""

    @abstractmethod
    def go_on(self, job: Job[R], after_round: AfterRound) -> R:
        """Do what is left of a run."""
