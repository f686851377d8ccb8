"""Benchmarks of forecasts: methods × data × services × seeds from one TOML file.

    title = "A quick look"
    seeds = [1, 2, 3]
    services = ["internet"]
    data = ["milan.nc"]                    # cubes, relative to the working folder
    methods = [
        { method = "ridge", seeds = [1] }, # its seed changes nothing
        "solo",
        { method = "fuels", label = "w/o inter", inter = false, table = "Ablations" },
    ]
    reference = "solo"                     # row that the others are compared with
    figures = ["cdf", { plot = "predictions", methods = ["ridge", "solo"], seeds = [1] }]

    [settings]                             # of every method
    rounds = 50
    split = "days:20,5,5"

    [published]                            # numbers of a paper by label, shown next to ours
    source = "FUELS, Table 7"
    mse.internet = { "w/o inter" = 0.983 }

    [backtest]                             # in place of a split: k folds, each a run by itself
    folds = 3
    test = "7d"

    [presets.small]                        # `--preset small` replaces the keys above by these
    settings = { rounds = 2 }              # but for settings, which it adds

Files that a row names, such as `clients = "operators.csv"`, may lie next to the benchmark's file.

A cube that has only some of the services names them: `{ path = "roads.nc", services = ["speed"] }`.
In place of a cube's path, `{ name = "small-city", cells = 25, days = 21 }` simulates a city. A
figure may have a `name`, options of its plot, and `methods` (labels) and `seeds` to select runs.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import ConfigDict, StrictInt

from data_prep import DATA_SETS
from data_prep.base.errors import InputError, choose, counted, four_digits, slug
from data_prep.base.files import naming_full_disk
from data_prep.city.simulate import simulate
from data_prep.described import step_text, zone_text
from data_prep.netcdf import dump, netcdf_target
from stforecast.bench.grid_file import COMMON_KEYS, Entry
from stforecast.bench.kind import Fold, Kind, Scenario
from stforecast.bench.tables import Compared, Part
from stforecast.comparison.compared import compare_forecasts
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.results import results_parts
from stforecast.comparison.sums import errors_to_keep, sums_of
from stforecast.data.clock import Calendar
from stforecast.data.cubes import choose_service, name_of, open_cube
from stforecast.data.folds import FoldOptions, plan_folds
from stforecast.data.splits import parse_split
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.options import Settings, distribute
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.probe import days_like, probe
from stforecast.forecasting.results import SUMS, ForecastRun, data_of
from stforecast.plots import PLOTS

if TYPE_CHECKING:  # They import torch or matplotlib, and comparisons need no torch.
    from stforecast.bench.grid import Grid
    from stforecast.bench.jobs import Job
    from stforecast.federated.runs.unfinished_run import AfterRound
    from stforecast.forecasting.config import Config
    from stforecast.report.write import ReportPage


@dataclass(frozen=True)
class SimulatedCity:
    """A simulated city in place of a cube; see `data_prep.city.simulate`.

    Attributes:
        name: name of the data.
        city: city that provides the grid, milan or trentino.
        preset: heterogeneous, dense or sparse.
        cells: number of cells.
        days: number of days.
        seed: seed of the city, independent of the seeds of the runs.
    """

    name: str = "city"
    city: str = "milan"
    preset: str = "heterogeneous"
    cells: StrictInt = 25
    days: StrictInt = 28
    seed: StrictInt = 1

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class CubeOfServices:
    """A cube with only some of a benchmark's services.

    Attributes:
        path: path of the cube.
        services: names of its services.
    """

    path: str
    services: list[str]

    __pydantic_config__ = ConfigDict(extra="forbid")


def services(names: Iterable[str]) -> tuple[Scenario, ...]:
    """Return a scenario for each service."""
    return tuple(Scenario(name, {"service": name}) for name in names)


class ForecastKind(Kind[ForecastRun]):
    """Forecasts of cubes; scenarios are the services, optional if a cube has only one."""

    name = "forecasts"
    metric = "mase"
    options = frozenset({"service"})
    run_type = ForecastRun
    keys = COMMON_KEYS | {
        "data": (
            list[str | SimulatedCity | CubeOfServices],
            "a list of paths of cubes, { path, services } or { name, city, preset, cells, days, "
            "seed }",
        ),
        "services": (list[str], "a list of names"),
        "backtest": (dict[str, Any], "a table of folds, test, validation, gap and train"),
    }
    needed = frozenset({"data", "methods"})
    plots = PLOTS

    @property
    def settings(self) -> Settings[Any]:
        """Settings of forecasters."""
        from stforecast.forecasting.config import SETTINGS  # imports torch

        return SETTINGS

    def results_parts(
        self, grid: Grid[ForecastRun], runs: Sequence[ForecastRun], failures: Mapping[str, str]
    ) -> list[Part]:
        """Tabulate errors, and compare the methods."""
        return results_parts(runs, failures, grid.published, grid.reference)

    def check(self, method: str, **settings: Any) -> None:
        """Refuse invalid settings, including the split."""
        parse_split(self.settings.resolve(method, **settings).data.split)

    def check_grid(self, grid: Grid[ForecastRun]) -> None:
        """Refuse an unknown reference, and a split together with the folds of a backtest."""
        known = [SEASONAL, *(entry.label for entry in grid.entries if not entry.table)]
        if grid.reference is not None and grid.reference not in known:
            raise choose("reference", grid.reference, known)
        settings = [grid.settings, *(entry.settings for entry in grid.entries)]
        if grid.backtest and (splits := [s["split"] for s in settings if "split" in s]):
            raise InputError(
                f"split is {splits[0]!r}, but a backtest makes splits of its own: leave out split"
            )

    def scenarios(self, found: Mapping[str, Any]) -> tuple[Scenario, ...]:
        """Return the services, or a single scenario for the only one."""
        names = found.get("services", ())
        for item in found.get("data", ()):
            for service in item.services if isinstance(item, CubeOfServices) else ():
                if service not in names:
                    listed = ", ".join(names) or "none"
                    raise InputError(
                        f"{item.path}: the services of the benchmark ({listed}) lack {service!r}; "
                        "add it to services"
                    )
        return services(names) or (Scenario(None, {}),)

    def places(
        self, grid: Grid[ForecastRun], out: Path, *, progress: bool
    ) -> Iterator[tuple[Path, Scenario]]:
        """Yield each cube and service, after simulating cities."""
        for item in grid.data:
            scenarios = grid.scenarios
            if isinstance(item, CubeOfServices):
                scenarios = tuple(s for s in scenarios if s.name in item.services)
                item = item.path
            data = (
                simulated(item, out, progress=progress)
                if isinstance(item, SimulatedCity)
                else Path(item)
            )
            for scenario in scenarios:
                yield data, scenario

    def backtest(self, found: Mapping[str, Any]) -> FoldOptions | None:
        """Return the options of the folds, if it is a backtest."""
        if "backtest" not in found:
            return None
        made: FoldOptions
        made = distribute("backtest", {"folds": FoldOptions}, found["backtest"])["folds"]
        return made

    def folds(
        self, grid: Grid[ForecastRun], scenario: Scenario, data: Path
    ) -> Sequence[Fold | None]:
        """Return the folds of a cube, in which the windows of all methods fit.

        Raises:
            InputError: if rows of one table would be tested on other times.
        """
        configs = {
            entry.label: self.settings.resolve(
                entry.method, **self.job_settings(grid, entry, scenario, data)
            )
            for entry in grid.entries
        }
        if grid.backtest is None:
            moving = {n: c for n, c in configs.items() if not parse_split(c.data.split).by_clock}
            if moving and data.is_file():
                with open_cube(data) as cube:
                    step = Calendar.from_cube(cube).step
                _refuse_moved_parts(moving, {e.label: e.table for e in grid.entries}, step)
            return (None,)
        with open_cube(data) as cube:
            n_steps, calendar = cube.sizes["time"], Calendar.from_cube(cube)
        windows = {name: config.window for name, config in configs.items()}
        plan = plan_folds(n_steps, calendar, windows, grid.backtest)
        return [
            Fold(number, {"split": split}, plan.description)
            for number, split in enumerate(plan.splits, start=1)
        ]

    def job_settings(
        self, grid: Grid[ForecastRun], entry: Entry, scenario: Scenario, data: Path
    ) -> dict[str, Any]:
        """Return the shared settings that the method reads, its own, and the service."""
        return self.settings_of(entry.method, grid.settings, entry.settings | scenario.settings)

    def check_data(self, job: Job[ForecastRun]) -> None:
        """Refuse a missing cube or service."""
        changed = job.data.stat().st_mtime_ns if job.data.is_file() else 0
        _check_service(job.data, changed, job.settings.get("service"))

    def identity(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cube's path."""
        return {"data": data_of(about).resolve()}

    def content(self, job: Job[ForecastRun]) -> str | None:
        """Return the fingerprint of the series, what else the method reads, and the clients."""
        if not job.data.is_file():
            return None
        config = self.settings.resolve(job.entry.method, **job.settings)
        window, clients = config.window, config.data.clients
        files = filter(Path.is_file, (job.data, Path(window.events), Path(clients)))
        changed = tuple(path.stat().st_mtime_ns for path in files)
        return _fingerprint(job.data, changed, job.settings.get("service"), window, clients)

    def probe(self, method: str, run: ForecastRun) -> str:
        """Return the method's error on an invented series, see `stforecast.forecasting.probe`."""
        days = days_like((run.about.get("parts") or {}).get("training"))
        return f"{method}, {days} days: {probe(method, days):.6g}"

    def keep(self, run: ForecastRun, folder: Path) -> None:
        """Write the tables, with the errors that tables of benchmarks read, and the sums."""
        super().keep(run, folder)
        write_csv(errors_to_keep(run), folder / "metrics.csv")
        write_csv(run.rounds().round(4), folder / "rounds.csv")  # Tables show no loss.
        with netcdf_target(folder / SUMS) as target:
            dump(sums_of(run), target)

    def begin(self, job: Job[ForecastRun], after_round: AfterRound) -> ForecastRun:
        """Fit, evaluate and save a forecaster."""
        from stforecast.forecasting.runs import run  # imports torch

        entry, fold = job.entry, job.fold
        notes: dict[str, Any] = {"table": entry.table} if entry.table else {}
        if fold:
            notes |= {"fold": fold.number, "backtest": fold.description}
        return run(
            entry.method,
            job.data,
            job.folder,
            job.settings,
            label=entry.label,
            notes=notes,
            after_round=after_round,
        )

    def go_on(self, job: Job[ForecastRun], after_round: AfterRound) -> ForecastRun:
        """Resume the run of a forecaster."""
        from stforecast.forecasting.runs import resume  # imports torch

        return resume(job.folder, job.data, after_round=after_round)

    def compare(
        self, folders: Sequence[Path], metric: str | None, reference: str | None
    ) -> Compared:
        """Compare errors."""
        return compare_forecasts(ForecastRun.find(folders), metric or self.metric, reference)

    def add_to_page(
        self,
        page: ReportPage,
        runs: Sequence[ForecastRun],
        metric: str | None,
        reference: str | None,
    ) -> None:
        """Add a section for each data set."""
        page.add_forecasts(runs, metric or self.metric, reference)

    def describe(self, run: ForecastRun) -> dict[str, Any]:
        """Return the data, the windows and the errors on the test part, of all cells and steps."""
        names = "data", "service", "units", "step_minutes", "time_zone", "parts", "chosen"
        divided = "cells_of_clients", "heterogeneity_bits"
        metrics = ("mse", "mae", "raw_mae", "raw_rmse", "mase")
        errors = {metric: run.score(metric) for metric in metrics}
        return {
            **{name: run.about.get(name) for name in names},
            **{name: run.about[name] for name in divided if name in run.about},
            "cells": run.about.get("clients"),
            "horizon": run.settings.get("horizon", 1),
            "split": run.settings.get("split"),
            "errors": {metric: value for metric, value in errors.items() if value == value},
        }

    def facts(self, about: Mapping[str, Any]) -> dict[str, str]:
        """Return the data, the windows and the errors."""
        units = "" if about["units"] in (None, "1") else f" in {about['units']}"
        cells = counted(about["cells"] or 0, "cell")
        minutes = about["step_minutes"]
        lines = {
            "data": f"{about['data']}, {about['service']}{units}, {cells}",
            "ahead": f"{counted(about['horizon'], 'step')} of {step_text(minutes)}",
            "times": zone_text(about["time_zone"]),
        }
        if sizes := about.get("cells_of_clients"):
            low, high = min(sizes.values()), max(sizes.values())
            bits = about.get("heterogeneity_bits", {}).items()
            apart = "".join(f", {name} {value:.2g} bits apart" for name, value in bits)
            lines["clients"] = f"{len(sizes)} of {low} to {high} cells{apart}"
        for part, span in (about["parts"] or {}).items():
            lines[part] = f"{span['first'][:16]} to {span['last'][:16]}" if span else "none"
        errors = ", ".join(
            f"{name} {four_digits(value)}" for name, value in about["errors"].items()
        )
        return {**lines, "split": str(about["split"]), "errors": errors}


@cache
def _check_service(data: Path, changed: int, service: str | None) -> None:
    """Refuse a missing cube or service, once for all runs that read the same."""
    with open_cube(data) as cube:
        choose_service(cube, service, name_of(data))


def _refuse_moved_parts(
    configs: Mapping[str, Config], tables: Mapping[str, str], step: pd.Timedelta
) -> None:
    """Refuse rows of one table whose lags differ, where these move the parts of the split."""
    first: dict[tuple[str, str, int], tuple[str, int]] = {}
    for name, config in configs.items():
        key = (tables[name], config.data.split, config.window.horizon)
        lag = config.window.at(step).max_lag
        other, other_lag = first.setdefault(key, (name, lag))
        if lag != other_lag:
            raise InputError(
                f"under split={config.data.split}, parts begin later by the largest lag, so that "
                f"{name}, which looks back {lag} steps, would be tested on other times than "
                f"{other}, which looks back {other_lag}; give both the same lags, or choose a "
                "split by time: or days:"
            )


@cache
def _fingerprint(
    data: Path, changed: tuple[int, ...], service: str | None, window: WindowSpec, clients: str
) -> str:
    """Return the fingerprint of a series and its clients, once for all runs that read the same."""
    from stforecast.data.series import as_series  # imports torch
    from stforecast.forecasting.runs import content_of

    series = as_series(data, service, window).ordered()
    series = series.with_events(window.events) if window.events else series
    return content_of(series, clients)


def simulated(city: SimulatedCity, out: Path, *, progress: bool) -> Path:
    """Return the cube of a simulated city, which is simulated only once."""
    name = slug(city.name)
    cube, about = out / "data" / f"{name}.nc", out / "data" / f"{name}.json"
    options = dataclasses.asdict(city)
    text = json.dumps(options)
    if cube.exists():
        if not about.exists() or about.read_text() != text:
            raise InputError(f"{cube} is another city; delete it or choose another --out or name")
        return cube
    cube.parent.mkdir(parents=True, exist_ok=True)
    del options["name"]
    with tempfile.TemporaryDirectory(dir=cube.parent, prefix=f"{name}-raw-") as raw:
        simulate(Path(raw), progress=progress, **options)
        with naming_full_disk(about):
            about.write_text(text)
        DATA_SETS.find(city.city).prepare(Path(raw), cube, progress=progress)
    return cube


FORECAST_KIND = ForecastKind()
