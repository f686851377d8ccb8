"""Interface of a kind of run, such as forecasts or images, to benchmarks and to the command line.

An installed package brings a kind by an entry point of the group `stforecast.kinds`, named after
the kind, and its benchmarks as TOML files in the folder `configs` of its top package.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from data_prep.base.errors import InputError
from data_prep.base.registry import find

if TYPE_CHECKING:
    from stforecast.bench.figures import Plots
    from stforecast.bench.grid import Grid
    from stforecast.bench.grid_file import Entry, Keys
    from stforecast.bench.jobs import Job
    from stforecast.bench.tables import Compared, Part
    from stforecast.federated.core.options import Settings
    from stforecast.federated.nodes.run_settings import FederationSettings
    from stforecast.federated.runs.run_folder import Run
    from stforecast.federated.runs.unfinished_run import AfterRound

R = TypeVar("R", bound="Run")


@dataclass(frozen=True)
class Scenario:
    """A variant of each data set, such as one of its services; the only one may have no name."""

    name: str | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class Fold:
    """A fold of a backtest.

    Attributes:
        number: number of the fold, from 1.
        settings: its flat settings, such as the split.
        description: number of folds and lengths of their spans, such as "3 folds of 7 days".
    """

    number: int
    settings: dict[str, Any]
    description: str


class Kind(ABC, Generic[R]):
    """Adapter of one kind of run; it has no state, so processes may copy it."""

    name: ClassVar[str]
    """Name, such as "images"; the key `task` in files of benchmarks and runs."""

    metric: ClassVar[str | None] = None
    """Metric of comparisons by default; None if there is no choice."""

    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `stforecast bench` that it has: `service` or `images`."""

    run_type: type[R]
    """Type of its finished runs."""

    keys: ClassVar[Keys]
    """Keys of a benchmark's file, with their types and descriptions."""

    needed: ClassVar[frozenset[str]]
    """Keys that a file must have."""

    plots: ClassVar[Plots]
    """Plot functions by name."""

    @property
    @abstractmethod
    def settings(self) -> Settings[Any]:
        """Its settings."""

    @abstractmethod
    def results_parts(
        self, grid: Grid[R], runs: Sequence[R], failures: Mapping[str, str]
    ) -> Sequence[Part]:
        """Tabulate the finished runs of a grid, and the errors of failed ones."""

    def check(self, method: str, **settings: Any) -> None:
        """Refuse invalid settings."""
        self.settings.resolve(method, **settings)

    def shared_settings(self, grid: Grid[R]) -> Iterator[dict[str, Any]]:
        """Yield the settings that all rows share, for each scenario."""
        for scenario in grid.scenarios:
            yield {**grid.settings, **scenario.settings}

    def settings_of(
        self, method: str, shared: Mapping[str, Any], own: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the shared settings that a row's method reads, and the row's own."""
        return self.settings.read_by(method, {**shared, **own}) | dict(own)

    def check_grid(self, grid: Grid[R]) -> None:
        """Refuse a benchmark whose keys contradict each other."""
        return

    @abstractmethod
    def scenarios(self, found: Mapping[str, Any]) -> tuple[Scenario, ...]:
        """Return the scenarios of a benchmark, from the values of its file's keys."""

    def row_labels(self, entries: Sequence[Entry]) -> list[str]:
        """Return the possible labels of the table's rows."""
        return [entry.label for entry in entries]

    @abstractmethod
    def places(self, grid: Grid[R], out: Path, *, progress: bool) -> Iterator[tuple[Any, Scenario]]:
        """Yield each data set and scenario of a grid in order, creating data if necessary.

        A data set has the name of its file without the suffix, or its own.
        """

    def backtest(self, found: Mapping[str, Any]) -> Any:
        """Return the options of a backtest's folds, from the values of a file's keys, or None."""
        return None

    def claims(self, found: Mapping[str, Any], labels: Sequence[str]) -> Sequence[Any]:
        """Return the claims of a paper, from the values of a file's keys and its rows' labels."""
        return ()

    def folds(self, grid: Grid[R], scenario: Scenario, data: Any) -> Sequence[Fold | None]:
        """Return the folds of a data set, oldest first; a single None without a backtest."""
        return (None,)

    @abstractmethod
    def job_settings(
        self, grid: Grid[R], entry: Entry, scenario: Scenario, data: Any
    ) -> dict[str, Any]:
        """Return the flat settings of a run, except its seed."""

    @abstractmethod
    def check_data(self, job: Job[R]) -> None:
        """Refuse missing data."""

    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that identify a run, besides its settings."""
        return {}

    @abstractmethod
    def content(self, job: Job[R]) -> str | None:
        """Return the fingerprint of a job's data, as `run.json` has it; None without the data."""

    def probe(self, method: str, run: R) -> str:
        """Return what shows whether the code still computes what it did for such runs, or ""."""
        return ""

    def keep(self, run: R, folder: Path) -> None:
        """Write what tables read of a run, besides `run.json`, into a folder."""
        for path in run.folder.glob("*.csv"):
            shutil.copy(path, folder)

    @abstractmethod
    def begin(self, job: Job[R], after_round: AfterRound) -> R:
        """Execute a new run."""

    @abstractmethod
    def go_on(self, job: Job[R], after_round: AfterRound) -> R:
        """Resume a run."""

    @abstractmethod
    def compare(
        self, folders: Sequence[Path], metric: str | None, reference: str | None
    ) -> Compared:
        """Compare the finished runs in folders, which must be tested on the same data."""

    @abstractmethod
    def add_to_page(
        self, page: Any, runs: Sequence[R], metric: str | None, reference: str | None
    ) -> None:
        """Add what is shown of runs to a page of `stforecast.report.write`."""

    def node_settings(self) -> type[FederationSettings]:
        """Return the type of the settings of its runs on nodes."""
        raise InputError(f"nodes cannot run {self.name}; they run {DEFAULT}")

    @abstractmethod
    def describe(self, run: R) -> dict[str, Any]:
        """Return the facts of a run for `stforecast info`, besides the facts of every kind."""

    @abstractmethod
    def facts(self, about: Mapping[str, Any]) -> dict[str, str]:
        """Return the lines of `stforecast info`, from the facts of a run."""


DEFAULT = "forecasts"
"""Kind of the files without a key `task`."""


def kind_named(about: Mapping[str, Any]) -> Kind[Any]:
    """Return the kind that a benchmark's file or the description of a run names."""
    known = _kinds()
    if not known:
        raise InputError("the package stforecast is not installed whole; run pip install again")
    kind: Kind[Any] = find("task", str(about.get("task", DEFAULT)), known).load()
    return kind


def usual_settings(run: Run) -> dict[str, Any]:
    """Return the settings that a run's method has if none is given, with the run's own model.

    Raises:
        InputError: if the method, or the model, is of a package that is not installed here.
    """
    settings = kind_named(run.about).settings
    chosen = {n: run.settings[n] for n in settings.depends_on if run.settings.get(n)}
    found: dict[str, Any] = settings.resolve(run.method, **chosen).flat()
    return found


def packaged() -> dict[str, Path]:
    """Return the benchmarks that come with the installed kinds, by name."""
    folders = {
        Path(str(resources.files(point.module.partition(".")[0]))) / "configs"
        for point in _kinds().values()
    }
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.glob("**/*.toml")
    }
    return dict(sorted(files.items()))


@cache
def _kinds() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group="stforecast.kinds"))}
