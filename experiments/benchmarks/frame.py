"""The frame of all benchmarks: `python -m experiments.benchmarks NAME [options] --out FOLDER`.

A benchmark is a function marked by `benchmark` in a module of this package. It gets `Results`, adds
what it measures, and returns the text to print. Its keyword-only parameters are options of the
command, described in its docstring. Everything else is here: to run sides in turns and in
processes of their own, to time them, to compare them, and to write, read and tabulate what was
measured.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import json
import logging
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import numpy as np
import pandas as pd
import psutil
import tabulate
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from data_prep.base.registry import help_text
from stforecast.bench.statistics.estimate import ErrorSums, Estimate, Variation
from stforecast.cli.commands import SuggestingGroup
from stforecast.cli.options import HELP, PATH, from_function
from stforecast.federated.runs.run_folder import commit, processor

T = TypeVar("T")
Key = TypeVar("Key")


@click.group(cls=SuggestingGroup, context_settings=HELP)
def main() -> None:
    """Measure speed, memory and robustness, and compare with other implementations."""


def benchmark(file: str = "", *, goes_on: bool = False) -> Callable[[T], T]:
    """Make a function a command of `main`.

    The function has the parameters `results`, options, and `*data` for paths that the command takes
    as arguments; it returns text. The results record all options but paths.

    Args:
        file: name of the results' file, with options in braces; by default the benchmark's name.
        goes_on: whether to begin with the results of an earlier call.
    """

    def register(function: Any) -> Any:
        name = function.__name__.replace("_", "-")

        def command(out: Path | None, data: tuple[Path, ...] = (), **options: Any) -> None:
            path = out / (file or f"{name}.json").format(**options) if out else None
            about = {n: v for n, v in options.items() if not isinstance(v, Path | None)}
            click.echo(f"{processor()}, {CORES} cores")
            try:
                click.echo(function(Results(path, about, goes_on=goes_on), *data, **options))
            except InputError as e:
                raise click.ClickException(str(e)) from e

        kinds = [p.kind for p in inspect.signature(function).parameters.values()]
        params: list[click.Parameter] = [*from_function(function)]
        params.append(click.Option(["--out"], type=PATH, required=goes_on, help="Results' folder."))
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            exists = click.Path(exists=True, path_type=Path)
            params.append(click.Argument(["data"], nargs=-1, required=True, type=exists))
        text = help_text(function.__doc__)
        main.add_command(click.Command(name, HELP, command, params, text))
        return function

    return register


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log nothing within the context."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def hourly_table(path: Path, span: str = ":") -> pd.DataFrame:
    """Read times and a column for each cell, of days such as 2025-03-01:2025-05-31."""
    first, _, last = span.partition(":")
    return pd.read_csv(path, index_col=0, parse_dates=True).loc[first or None : last or None]


def squares_by_day(
    found: xr.Dataset, kind_of: Callable[[pd.Timestamp], str] = lambda _: "all"
) -> dict[str, ErrorSums]:
    """Return squared errors of z-scores by cell and day of the target, for each kind of day."""
    squares = ((found["y_hat"] - found["y"]) / found["std"]) ** 2
    hours = np.add.outer(found["time"].values, pd.to_timedelta(found["horizon"].values - 1, "h"))
    table = squares.transpose("time", "horizon", "cell").values.reshape(hours.size, -1)
    by_day = pd.DataFrame(table).groupby(pd.DatetimeIndex(hours.ravel()).normalize())
    parts = [by_day.sum(), by_day.count()]
    kinds = parts[0].index.map(kind_of).to_numpy()
    values = [part.to_numpy(float).T[None] for part in parts]
    return {kind: ErrorSums(*(v[..., kinds == kind] for v in values)) for kind in sorted({*kinds})}


class Results:
    """What a benchmark has measured, in a file that is written after each addition.

    A `.json` file has the machine, `about` and the rows; a `.csv` file has only the rows.

    Args:
        path: the file; None writes nothing.
        about: the options of this call, which replace the file's.
        goes_on: whether to begin with the content of the file.
    """

    def __init__(
        self, path: Path | None, about: Mapping[str, Any] | None = None, *, goes_on: bool = False
    ) -> None:
        self.path, self.rows = path, list[dict[str, Any]]()
        self._begun: dict[str, Any] = {}
        if goes_on and path and path.exists():
            if path.suffix == ".csv":
                self.rows = pd.read_csv(path).to_dict("records")  # type: ignore[assignment]
            else:
                self._begun = json.loads(path.read_text())
                self._begun.pop("machine", None)
                self.rows = self._begun.pop("rows", [])
        self.about = {**self._begun, **(about or {})}

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Add rows, and write the file."""
        self.rows += map(dict, rows)
        if not self.path:
            return
        if self.path.suffix == ".csv":
            # `write_csv` would put a ' before the - of a run in which nobody lies.
            text = pd.DataFrame(self.rows).to_csv(index=False)
        else:
            found = {"machine": machine(), **self.about}
            if self.rows:
                found["rows"] = self.rows
            text = json.dumps(found, indent=2) + "\n"
        with atomic_path(self.path) as part:
            part.write_text(text)

    def settings(self, data: Path, *without: str) -> str:
        """Return the name of the data and the options of this call, but for some."""
        options = {n: v for n, v in self.about.items() if v and n not in without}
        return " ".join([data.name, *(f"--{n.replace('_', '-')} {v}" for n, v in options.items())])

    def fix(self, **values: Any) -> None:
        """Note options that hold for all rows; refuse others than the file's rows had."""
        for name, value in values.items():
            if (begun := self._begun.get(name, value)) != value:
                raise InputError(
                    f"{self.path}: was begun with {begun!r} for {name}, not {value!r}; give that, "
                    "or another folder"
                )
            self.about[name] = value

    def has(self, **values: Any) -> bool:
        """Return whether a row has these values, 0 for those that it lacks."""
        return any(all(row.get(n, 0) == v for n, v in values.items()) for row in self.rows)


def listed_numbers(text: str) -> list[int]:
    """Return comma-separated whole numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as e:
        raise InputError(f"{text!r}: give whole numbers such as 10,100") from e


class Timed(NamedTuple):
    """A result with the wall-clock seconds and CPU seconds that it took."""

    value: Any
    seconds: float
    cpu_seconds: float


def timed(
    work: Callable[..., Any], *args: Any, cpu: Callable[[], float] = time.process_time
) -> Timed:
    """Call a function with arguments; `cpu` returns the CPU seconds of its processes so far."""
    wall, used = time.perf_counter(), cpu()
    value = work(*args)
    return Timed(value, time.perf_counter() - wall, cpu() - used)


def in_turns(sides: Mapping[Key, Callable[[], T]], repeats: int) -> dict[Key, list[T]]:
    """Return the results of calling each side in turns, so that other load affects all equally."""
    turns = [[side() for side in sides.values()] for _ in range(repeats)]
    return dict(zip(sides, map(list, zip(*turns, strict=True)), strict=True))


def processes_in_turns(
    make: Callable[..., Callable[[], T]], sides: Mapping[Key, tuple[Any, ...]], repeats: int
) -> dict[Key, list[T]]:
    """Call what `make` returns for the arguments of each side in turns, in a process for each."""
    with contextlib.ExitStack() as stack:
        own = {key: stack.enter_context(own_process(make, *args)) for key, args in sides.items()}
        return in_turns(own, repeats)


def largest_difference(values: Iterable[float], expected: Iterable[float]) -> float:
    """Return the largest relative difference of numbers from the expected ones."""
    return max(abs(a / b - 1) for a, b in zip(values, expected, strict=True))


def geometric_mean(logs: Sequence[float], unit: Callable[[float], float] = math.exp) -> Estimate:
    """Return the mean of logarithms with its 95 % interval of Student's t, in another unit."""
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    if not freedom:
        return Estimate(unit(mean), math.nan, math.nan)
    variance = statistics.variance(logs) / len(logs)
    return Variation(mean, variance, ((variance, freedom),)).estimate(0.95, unit)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Estimate:
    """Return the geometric mean of the ratios of two sides' turns, with its 95 % interval."""
    return geometric_mean([math.log(a / b) for a, b in zip(slow, fast, strict=True)])


def per_cent_above(logs: Sequence[float]) -> Estimate:
    """Return by how many per cent ratios are above 1 in the geometric mean, from their logarithms.

    The interval of 95 % is Student's t's.
    """
    return geometric_mean(logs, lambda mean: 100 * math.expm1(mean))


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> str:
    """Tabulate rows; `columns` has the head and format of each column, by name of the value."""
    values = [[row.get(name) for name in columns] for row in rows]
    heads, formats = zip(*columns.values(), strict=True)
    return tabulate.tabulate(values, heads, "github", floatfmt=formats, intfmt=",", missingval="-")


CORES = os.cpu_count() or 1

_made: Callable[[], Any]


def machine() -> dict[str, str]:
    """Return the processor, the commit, the versions that matter, and today's date."""
    return {
        "processor": f"{processor()}, {CORES} cores",
        "commit": commit(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


@contextlib.contextmanager
def own_process(make: Callable[..., Callable[[], T]], *args: Any) -> Iterator[Callable[[], T]]:
    """Yield what `make(*args)` returns, made and called in a new process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (make, *args)) as pool:
        pool.submit(int)  # The first task starts the process, so that several start together.
        yield lambda: pool.submit(_call).result()


def _prepare(make: Callable[..., Callable[[], Any]], *args: Any) -> None:
    global _made
    _made = make(*args)


def _call() -> Any:
    return _made()


def in_own_process(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a new process, to measure its own memory and CPU time."""
    with own_process(partial, function, *args) as call:
        return call()


def own_memory(kind: str) -> int:
    """Return this process's memory in kB: `RssAnon`, now and without files, or `VmHWM`, peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[kind].split()[0])


def memory(pids: Collection[int]) -> float:
    """Return the proportional set size of processes and all that they started, in MB."""
    return _sum(pids, lambda process: process.memory_full_info().pss) / 1e6


def processor_time(pids: Collection[int]) -> float:
    """Return the seconds that processes and all that they started have had, ended ones too."""
    # Its own, and that of children that ended and were waited for.
    return _sum(pids, lambda process: sum(process.cpu_times()[:4]))


def _sum(pids: Collection[int], value: Callable[[psutil.Process], float]) -> float:
    """Sum a value over processes and their descendants; any of them may end meanwhile."""
    found: set[psutil.Process] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
    total = 0.0
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += value(process)
    return total
