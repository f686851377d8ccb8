"""Rows of a comparison: groups of runs that were tested on the same targets, and their errors.

The folds of a backtest stand for one test part for each seed.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words
from data_prep.base.progress import noting
from stforecast.bench.run_groups import RunGroup, grouped
from stforecast.bench.statistics.estimate import ErrorSums
from stforecast.bench.tables import marked
from stforecast.comparison import errors
from stforecast.comparison.sums import METRIC, sums_of
from stforecast.forecasting.results import ForecastRun, without_bounds
from stforecast.metrics.metric import joined_sums


def folds_of(runs: Iterable[ForecastRun]) -> dict[int, ForecastRun]:
    """Return the first run of each fold by its number; of plain runs, the first has number 0."""
    found: dict[int, ForecastRun] = {}
    for run in runs:
        found.setdefault(run.fold, run)
    return dict(sorted(found.items()))


def by_seed(runs: Iterable[ForecastRun]) -> list[list[ForecastRun]]:
    """Return the runs of each seed: one run, or one of each fold."""
    return list(grouped(runs, lambda run: run.seed).values())


def in_one_client(run: ForecastRun) -> bool:
    """Return whether a federated method's run has all cells in one client."""
    from stforecast.methods import METHODS  # imports torch

    method = METHODS.get(run.method)
    return method is not None and (method.pooled or run.settings.get("clients") == "all")


def is_pooled(run: ForecastRun) -> bool:
    """Return whether the run's method pooled the records of all cells."""
    from stforecast.baselines import BASELINES  # imports torch

    return in_one_client(run) or bool(getattr(BASELINES.get(run.method), "pooled", False))


def joined_targets(runs: Iterable[ForecastRun]) -> xr.Dataset:
    """Return the observed targets `y` of all folds, one after the other."""
    return xr.concat([run.means()[["y"]] for run in folds_of(runs).values()], "time")


def joined_errors(
    runs: Iterable[ForecastRun], metric: str, selection: str | None = None
) -> errors.ModelErrors:
    """Compute the `model_errors` of one seed's runs on the test parts of all folds."""
    found = (run.means() for run in folds_of(runs).values())
    return join_errors([errors.model_errors(forecasts, metric, selection) for forecasts in found])


def join_errors(parts: Sequence[errors.ModelErrors]) -> errors.ModelErrors:
    """Return the errors on several test parts of the same cells as those on one."""
    return dataclasses.replace(
        parts[0],
        total=np.concatenate([part.total for part in parts], axis=1),
        weight=np.concatenate([part.weight for part in parts], axis=1),
        times=pd.DatetimeIndex(parts[0].times.append([part.times for part in parts[1:]])),
    )


log = logging.getLogger(__name__)


FURTHER_MODELS = "Further models"
"""Title of the table of methods' other models, such as the global one."""


@dataclass(frozen=True)
class Row:
    """A method in a comparison.

    Attributes:
        group: its runs, which differ in the seed and, in a backtest, in the fold.
        view: "" or one of the method's further models, such as "(global)".
    """

    group: RunGroup[ForecastRun]
    view: str = ""

    @property
    def name(self) -> str:
        """Name, unique in its comparison."""
        return f"{self.group.name} {self.view}".strip()

    @property
    def marked_name(self) -> str:
        """Name, with a mark if its method pooled the records of all cells."""
        return marked(self.name, pools=is_pooled(self.first))

    @property
    def table(self) -> str:
        """Title of its table of comparisons; empty for main methods."""
        return FURTHER_MODELS if self.view else self.first.table

    @property
    def first(self) -> ForecastRun:
        """One of its runs, for settings and facts that all share."""
        return self.group.runs[0]

    def complete_seeds(self, folds: Collection[int]) -> list[int]:
        """Return the seeds that have a run of every fold."""
        done = {(run.seed, run.fold) for run in self.group.runs}
        seeds = dict.fromkeys(run.seed for run in self.group.runs)
        return [seed for seed in seeds if all((seed, fold) in done for fold in folds)]

    def mean_of(self, fact: str) -> float:
        """Return the mean of a number in `run.json` over the runs; NaN where one lacks it."""
        return float(np.mean([run.about.get(fact, np.nan) for run in self.group.runs]))

    @property
    def selection(self) -> str:
        """Name of the row's model, which all tables judge; its runs keep the same round."""
        return self.first.selection(self.view)


@dataclass(frozen=True, eq=False)
class TaskErrors:
    """Errors of rows that were tested on the same targets.

    Attributes:
        sums: sums by seed, cell and day of each row by name; also of `SEASONAL` where it
            could forecast.
        days: local days of the test part; of all folds in a backtest, where a day that two folds
            share is one.
        locations: `(cells, 2)` longitude and latitude, or None if unknown.
        incomplete: names of rows that lack a fold in every seed, which are left out.
    """

    sums: dict[str, ErrorSums]
    days: pd.DatetimeIndex
    locations: np.ndarray | None
    incomplete: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    """Errors of one run by model, "" for its own: totals and weights `(cells, days)`."""

    sums: dict[str, tuple[np.ndarray, np.ndarray]]
    targets: xr.Dataset
    days: pd.DatetimeIndex


def read_errors(rows: Sequence[Row], metric: str) -> TaskErrors:
    """Read the errors in a metric of rows with different names from their runs' forecasts.

    Scaled errors, such as of z-scores, have the scales of the first run in all rows: scales of
    other training parts differ. Runs that were tested on different targets are refused.
    """
    tested = folds_of(run for row in rows for run in row.group.runs)
    folds = list(tested)
    if folds[0] == 0 < folds[-1]:
        raise InputError(
            f"{tested[folds[-1]].folder} is a fold of a backtest, but {tested[0].folder} is not: "
            "they were tested on different targets; compare them separately"
        )
    first: dict[int, _Part] = {}
    sums: dict[str, ErrorSums] = {}
    incomplete = []
    for row in noting(rows, "reading forecasts"):
        _refuse_twins(row)
        parts = {(run.seed, run.fold): _read(run, row, metric, first) for run in row.group.runs}
        seeds = row.complete_seeds(folds)
        if not seeds:
            incomplete.append(row.name)
            continue
        sums[row.name] = _joined([[parts[seed, fold] for fold in folds] for seed in seeds], "")
    whole = [first[fold] for fold in folds]
    if all(errors.SEASONAL in part.sums for part in whole):
        sums[errors.SEASONAL] = _joined([whole], errors.SEASONAL)
    places = errors.locations(whole[0].targets)
    return TaskErrors(sums, _days(whole).unique(), places, tuple(incomplete))


def _refuse_twins(row: Row) -> None:
    """Refuse two runs of one seed, such as before and after a change: one would hide the other."""
    known: dict[tuple[int, int], ForecastRun] = {}
    for run in row.group.runs:
        twin = known.setdefault((run.seed, run.fold), run)
        if twin is not run:
            raise InputError(
                f"{twin.folder} and {run.folder} are both {row.name} with seed {run.seed}; give "
                "one of them, or change the label in its run.json"
            )


def _read(run: ForecastRun, row: Row, metric: str, first: dict[int, _Part]) -> _Part:
    """Sum the errors of one run, which is read by blocks of cells.

    The first run of each fold also gives seasonal naive, and the targets and scales of the others.
    """
    if run.kept:
        return _read_kept(run, row, metric, first)
    leads, scale = run.fold not in first, errors.scale_variable(metric)
    scales = {scale} if scale else set()
    with run.open_forecasts() as forecasts:
        with run.reading(forecasts):
            # All but the forecasts, of which there are too many for the memory with many cells.
            held = {n: v.load() for n, v in forecasts.items() if n == "y" or v.dims == ("cell",)}
        forecasts = forecasts.assign(held)
        if not leads:
            check_targets(run, forecasts, first[run.fold].targets)
            forecasts = scaled_as(first[run.fold].targets, run, forecasts, scales)
        models = {"": run.selection(row.view)}
        if leads and errors.SEASONAL in errors.variables(forecasts):
            models[errors.SEASONAL] = errors.SEASONAL
        blocks = []
        for of_cells in run.in_blocks(without_bounds(forecasts)):
            found = {n: errors.model_errors(of_cells, metric, model) for n, model in models.items()}
            blocks.append({name: one.by_day() for name, one in found.items()})
            days = found[""].days
    part = _Part(joined_sums(blocks), forecasts[["y", *scales]], days)
    if leads:
        first[run.fold] = part
    return part


def _read_kept(run: ForecastRun, row: Row, metric: str, first: dict[int, _Part]) -> _Part:
    """Read the sums of a run whose forecasts are gone."""
    if metric != METRIC:
        raise InputError(
            f"{run.folder}: its forecasts are gone, and its sums are of {METRIC}, not {metric}; ",
            Words("give {metric} or run its row again", metric=METRIC),
        )
    leads, sums = run.fold not in first, sums_of(run)
    models = {"": run.selection(row.view)}
    if leads and errors.SEASONAL in sums["model"]:
        models[errors.SEASONAL] = errors.SEASONAL
    scaled = sums
    if not leads:
        check_targets(run, sums, first[run.fold].targets)
        scaled = scaled_as(first[run.fold].targets, run, sums, {"std"})
    by = (sums["std"] / scaled["std"]).to_numpy()[:, None] ** 2
    weight = sums["weight"].to_numpy()
    found = {n: (by * sums["total"].sel(model=m).to_numpy(), weight) for n, m in models.items()}
    part = _Part(found, sums, pd.DatetimeIndex(sums.indexes["day"]))
    if leads:
        first[run.fold] = part
    return part


def scaled_as(
    first: xr.Dataset, run: ForecastRun, forecasts: xr.Dataset, scales: Set[str]
) -> xr.Dataset:
    """Return a run's forecasts on the scales of the first run, with a warning where they differ."""
    other = {
        name: first[name]
        for name in sorted({*scales} & {*map(str, forecasts)} & {*map(str, first)})
        if not np.allclose(forecasts[name], first[name], rtol=1e-4, atol=0, equal_nan=True)
    }
    if other:
        log.warning(
            "%s: %s, and so does its scale (%s); its errors are divided by that of the first "
            "run, and differ from those in its metrics.csv",
            run.folder,
            Words("its training part or {scale} differs"),
            ", ".join(map(str, other)),
        )
    return forecasts.assign(other)


def _joined(of_seeds: Sequence[Sequence[_Part]], name: str) -> ErrorSums:
    """Stack a model's seeds, and join the days of their folds; a day may lie in two folds."""
    place, _ = pd.factorize(_days(of_seeds[0]))
    stacked = [
        np.stack([
            errors.summed_by(np.concatenate([p.sums[name][i] for p in parts], axis=1), place)
            for parts in of_seeds
        ])
        for i in (0, 1)
    ]  # fmt: skip
    return ErrorSums(*stacked)


def _days(parts: Sequence[_Part]) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(np.concatenate([part.days for part in parts]))


def check_targets(run: ForecastRun, forecasts: xr.Dataset, expected: xr.Dataset) -> None:
    """Refuse a run that was tested on other targets."""
    whole = "y" in forecasts and "y" in expected  # Else only sums are left of one.
    tested = {"cell": "cells"} | ({"time": "times", "horizon": "steps ahead"} if whole else {})
    for dim, what in tested.items():
        ours, others = forecasts.indexes[dim], expected.indexes[dim]
        if not ours.equals(others):
            raise InputError(
                f"{run.folder}: tested on other {what} ({_extent(ours)}) than the first run "
                f"({_extent(others)}); ",
                Words("compare runs of one {split} and {horizon}"),
                "; under windows: and steps:, the parts move with the lags, unlike under time:",
            )
    zones = [str(part.attrs.get("time_zone", "local time")) for part in (forecasts, expected)]
    if zones[0] != zones[1]:
        raise InputError(
            f"{run.folder}: its days and hours are those of {zones[0]}, those of the first run of "
            f"{zones[1]}; compare runs on data of one time zone"
        )
    units = [str(part.get("y", part).attrs.get("units", "1")) for part in (forecasts, expected)]
    if units[0] != units[1]:
        raise InputError(
            f"{run.folder}: its unit is {units[0]}, that of the first run {units[1]}; compare runs "
            "on data of one unit"
        )
    y, other = (forecasts["y"], expected["y"]) if whole else (0.0, 0.0)
    if not np.allclose(y, other, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise InputError(
            f"{run.folder}: its targets have other values than those of the first run; ",
            Words("compare runs of the same data and {outliers}"),
        )


def _extent(index: pd.Index) -> str:
    return f"{len(index)}, from {index[0]} to {index[-1]}"


def joined_coverages(runs: Iterable[ForecastRun]) -> dict[float, errors.ModelErrors]:
    """Return `coverages` on the test parts of all runs, seeds and folds."""
    parts = []
    for run in runs:
        parts.append(errors.coverages(run.forecasts()))
        if not parts[-1]:
            remedy = Words("train it with {intervals:normalised}")
            raise InputError(f"{run.folder}: a run without intervals; ", remedy)
    return {nominal: join_errors([part[nominal] for part in parts]) for nominal in parts[0]}
