"""Scores of forecasts from any tool under a frozen protocol, compared with our own rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, counted, reading
from data_prep.base.registry import find
from stforecast.bench.run_groups import ALL, grouped
from stforecast.bench.statistics.estimate import ErrorSums, holm, permutation_test
from stforecast.bench.tables import number
from stforecast.comparison.leaderboard import resample
from stforecast.comparison.protocol import LEVELS, Protocol, ProtocolTask
from stforecast.comparison.table import resampled_units
from stforecast.forecasting.results import ForecastRun, bounds_of
from stforecast.metrics import METRICS
from stforecast.metrics.metric import Metric

log = logging.getLogger(__name__)

SUMS = ("task", "method", "metric", "step", "day", "total", "weight")
"""Columns of a file of sums: errors of a method, by day of the first target."""


@dataclass(frozen=True, eq=False)
class ScoredForecasts:
    """Forecasts of a task in the data's units.

    Attributes:
        name: name of their row.
        task: name of the task.
        levels: `(origins, steps, cells)` by level; 0.5 has the forecast itself.
    """

    name: str
    task: str
    levels: Mapping[float, np.ndarray]


def read_file(path: Path, values: xr.DataArray, protocol: Protocol) -> ScoredForecasts:
    """Read a table of forecasts, and check that it is whole and that its times can be right.

    Columns are `time` (begin of the target's step) or `origin` (begin of the newest step known) or
    both, `step` (from 1; or `horizon`), `cell`, `forecast`, and optional quantiles such as `q0.05`.

    Raises:
        InputError: if a column or a forecast is missing, or times, units or cells are others'.
    """
    with reading(path, "as a table", "give a CSV file with a header"):
        table = pd.read_csv(path, dtype={"cell": str})
    table = table if "step" in table else table.rename(columns={"horizon": "step"})
    lacking = {"step", "cell", "forecast"} - {*table}
    if lacking or not {"time", "origin"} & {*table}:
        raise InputError(
            f"{path}: no column {min(lacking, default='time')!r} in {', '.join([*table][:8])}; "
            "give time or origin, step, cell, forecast, and q0.05 and the like for quantiles"
        )
    name = protocol.task_of(table["step"].to_numpy(), str(path))
    task = protocol.tasks[name]
    place = _places(table, values, str(path))
    begin = place - (table["step"].to_numpy(int) - 1)
    _check_begins(begin, task, values, str(path))
    cells = pd.Index(values["cell"].to_numpy()).get_indexer(pd.Index(table["cell"]))
    if (cells < 0).any():
        raise InputError(
            f"{path}: unknown cell {table['cell'][cells < 0].iloc[0]!r}; give names of the data, "
            f"as {str(values['cell'].to_numpy()[0])!r}"
        )
    where = (begin - task.first) // task.every, np.searchsorted(task.steps, table["step"]), cells
    times = np.zeros((task.count, len(task.steps), len(values["cell"])), int)
    np.add.at(times, where, 1)
    if (times != 1).any():
        k, j, cell = np.argwhere(times != 1)[0]
        n, what = int((times == 0).sum()), "missing"
        if times[k, j, cell] > 1:
            n, what = int((times > 1).sum()), "given twice"
        when = values.indexes["time"][task.targets[k, j]]
        raise InputError(
            f"{path}: {counted(n, 'forecast')} of {times.size} {what}, such as that of cell "
            f"{values['cell'].to_numpy()[cell]} at {when}, step {task.steps[j]}"
        )
    levels = {level: f"q{level:g}" for level in LEVELS if f"q{level:g}" in table}
    found = {}
    for level, column in {**levels, 0.5: "forecast"}.items():
        array = np.full(times.shape, np.nan)
        array[where] = pd.to_numeric(table[column], errors="coerce")
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {column} has values that are not finite numbers")
        found[level] = array
    if any(str(column).startswith("q") for column in table) and len(found) < len(LEVELS):
        wanted = ", ".join(f"q{level:g}" for level in LEVELS if level not in found)
        log.warning("%s: no pinball loss, as there is no column %s", path, wanted)
    _check_values(found, values, task, str(path))
    return ScoredForecasts(path.stem, name, found)


def _places(table: pd.DataFrame, values: xr.DataArray, path: str) -> np.ndarray:
    """Return the place in time of each row's target, from its time, or its origin and step."""
    times = values.indexes["time"]
    step = times[1] - times[0]

    def local(column: str) -> pd.Series:
        with reading(path, f"at {column}", "give times as 2013-12-15 00:00"):
            found = pd.to_datetime(table[column].astype(str), format="ISO8601")
        zone = values.attrs["time_zone"]
        return found.dt.tz_convert(zone).dt.tz_localize(None) if found.dt.tz else found

    target = local("time") if "time" in table else local("origin") + step * table["step"]
    if "origin" in table:
        origin = local("origin")
        if (late := origin >= target).any():
            raise InputError(
                f"{path}: leak: {int(late.sum())} rows have an origin at or after their target, "
                f"such as {origin[late].iloc[0]} for {target[late].iloc[0]}; origin is the newest "
                "step that the forecast knew"
            )
        if (origin + step * table["step"] != target).any():
            raise InputError(f"{path}: time is not origin + step × {step}; give one of the two")
    found = (target - times[0]) / step
    if (found % 1 != 0).any():
        raise InputError(
            f"{path}: {target[found % 1 != 0].iloc[0]} is no begin of a step of {step}"
        )
    return found.to_numpy().astype(int)


def _check_begins(begin: np.ndarray, task: ProtocolTask, values: xr.DataArray, path: str) -> None:
    """Refuse forecasts from other origins than the task's; name a shift of all."""
    wanted = task.first + task.every * np.arange(task.count)
    if np.isin(begin, wanted).all():
        return
    shift, times = int(begin.min() - task.first), values.indexes["time"]
    first = times[0] + (times[1] - times[0]) * int(begin.min())
    zone = values.attrs["time_zone"]
    if np.isin(begin - shift, wanted).all():
        late = "late" if shift > 0 else "early"
        raise InputError(
            f"{path}: all times are {counted(abs(shift), 'step')} {late}: the first target is "
            f"{first}, expected {times[task.first]}; give the begins of steps in {zone}, or times "
            "with their offset"
        )
    raise InputError(
        f"{path}: {int((~np.isin(begin, wanted)).sum())} rows are of no origin of the protocol; "
        f"first targets are {times[task.first]} to {times[wanted[-1]]} ({zone}), every "
        f"{counted(task.every, 'step')}"
    )


def _check_values(
    levels: Mapping[float, np.ndarray], values: xr.DataArray, task: ProtocolTask, path: str
) -> None:
    """Refuse other units and crossing quantiles; note a shift that fits the values better."""
    y_hat, y = levels[0.5], values.to_numpy()
    seen = y[task.targets]
    ratio = float(y_hat.mean() / np.nanmean(seen))
    if not 1 / 3 < ratio < 3:
        raise InputError(
            f"{path}: the mean of forecasts is {y_hat.mean():.3g}, of the values "
            f"{np.nanmean(seen):.3g}; give forecasts in the data's units, not as z-scores or shares"
        )
    ordered = [levels[level] for level in sorted(levels)]
    if any((low > high + 1e-9).any() for low, high in pairwise(ordered)):
        raise InputError(f"{path}: quantiles cross: one is above that of a higher level")
    mse = {
        shift: np.nanmean((y_hat - y[np.clip(task.targets + shift, 0, len(y) - 1)]) ** 2)
        for shift in (-1, 0, 1)
    }
    for shift, why in {
        -1: "as those that repeat the last value do, or times are one step late",
        1: "times may be one step early, or the tool saw its targets",
    }.items():
        if mse[shift] < 0.5 * mse[0]:
            side = "before" if shift < 0 else "after"
            log.warning("%s: forecasts fit the values one step %s far better, %s", path, side, why)


def read_runs(folder: Path, values: xr.DataArray, protocol: Protocol) -> list[ScoredForecasts]:
    """Read the forecasts of finished runs, one row for each label; folds are joined.

    Raises:
        InputError: if a run lacks targets of the protocol, or has other cells or values.
    """
    found = []
    times = values.indexes["time"]
    for label, runs in grouped(ForecastRun.find([folder]), lambda run: run.label).items():
        folds = [run.forecasts() for run in runs]
        kept = [ds[[n for n, v in ds.items() if v.dims == ds["y"].dims]] for ds in folds]
        forecasts = xr.concat(kept, "time")
        horizon = forecasts.sizes["horizon"]
        scored = (task.steps for task in protocol.tasks.values() if task.steps[-1] == horizon)
        name = protocol.task_of(np.array(next(scored, [horizon])), f"{folder}, {label}")
        task = protocol.tasks[name]
        first = pd.DatetimeIndex(forecasts.indexes["time"]).tz_localize("UTC")
        local = first.tz_convert(values.attrs["time_zone"]).tz_localize(None)
        origins = times[task.first + task.every * np.arange(task.count)]
        remedy = "make the run with the data and test part of the protocol, see docs/compare.md"
        if not local.is_unique:
            raise InputError(f"{folder}, {label}: runs of the same origins; give one seed")
        if not origins.isin(local).all():
            raise InputError(f"{folder}, {label}: lacks origins of {protocol.name}; {remedy}")
        place = {"time": local.get_indexer(origins), "horizon": np.array(task.steps) - 1}
        tested = forecasts.isel(place).transpose("time", "horizon", "cell")
        same = [*map(str, tested.indexes["cell"])] == [*map(str, values.indexes["cell"])]
        y = values.to_numpy()[task.targets]
        if not same or not np.allclose(np.where(np.isfinite(y), tested["y"], y), y, equal_nan=True):
            raise InputError(
                f"{folder}, {label}: its cells or values are not those of {protocol.name}; {remedy}"
            )
        levels = {0.5: tested["y_hat"].to_numpy()}
        for coverage, ends in bounds_of(tested).items():
            for level, end in zip(((1 - coverage) / 2, (1 + coverage) / 2), ends, strict=True):
                levels[round(level, 6)] = end.to_numpy()
        found.append(ScoredForecasts(label, name, {k: v for k, v in levels.items() if k in LEVELS}))
    return found


def day_sums(forecasts: ScoredForecasts, values: xr.DataArray, protocol: Protocol) -> pd.DataFrame:
    """Return the sums of errors by metric, step and day, see `SUMS`."""
    task, y_all = protocol.tasks[forecasts.task], values.to_numpy()
    y = y_all[task.targets]
    before = y_all[: task.first]
    center, scale = np.nanmean(before, axis=0), np.nanstd(before, axis=0)
    seen, days = np.isfinite(y), values.indexes["time"][task.targets[:, 0]].strftime("%Y-%m-%d")
    parts = []
    for metric in protocol.metrics:
        by = 1.0 if metric.startswith("raw_") else scale
        if metric == "pinball":
            if {*LEVELS} - {*forecasts.levels}:
                continue
            losses = [
                np.maximum(level * (y - q), (level - 1) * (y - q)) / by
                for level, q in forecasts.levels.items()
            ]
            total, weight = np.where(seen, np.mean(losses, axis=0), 0.0), seen
        else:
            shift = 0.0 if metric.startswith("raw_") else center
            y_hat, target = (forecasts.levels[0.5] - shift) / by, (y - shift) / by
            update = _metric(metric).update
            total, weight = update(y_hat, np.where(seen, target, 0.0), seen, ())
        for step in [*(task.steps if protocol.by_step else ()), ALL]:
            place = slice(None) if step == ALL else [task.steps.index(step)]
            sums = [np.asarray(v, float)[:, place].sum(axis=(1, 2)) for v in (total, weight)]
            part = pd.DataFrame({"day": days, "total": sums[0], "weight": sums[1]})
            part = part.groupby("day", as_index=False).sum()
            parts.append(part.assign(metric=metric, step=str(step)))
    return pd.concat(parts).assign(task=forecasts.task, method=forecasts.name)[list(SUMS)]


def _metric(name: str) -> Metric:
    """Return a metric; the pinball loss is a mean, as MAE is."""
    return METRICS.find("mae" if name == "pinball" else name.removeprefix("raw_"))


def tabulate_scores(
    sums: pd.DataFrame, protocol: Protocol, reference: str | None = None
) -> dict[str, list[dict[str, str]]]:
    """Return a table for each task, from the lowest first metric.

    Intervals are of a bootstrap over blocks of two test days; p-values swap days, with Holm's
    correction. A difference is significant only if both say so.

    Args:
        sums: sums of all methods, see `SUMS`.
        protocol: their protocol.
        reference: method to compare the others with; by default, and in tasks without it, the one
            with the lowest error.

    Raises:
        InputError: if no task has the reference.
    """
    if reference is not None:
        find("reference", reference, dict.fromkeys(sums["method"]))
    found = {}
    for task, some in sums.groupby("task", sort=False):
        cells: dict[str, dict[str, str]] = {name: {"method": name} for name in some["method"]}
        for (metric, step), part in some.groupby(["metric", "step"], sort=False):
            head = str(metric) if step == ALL else f"{metric}, step {step}"
            for name, own in part.groupby("method", sort=False):
                sums_of_all = (own[[n]].to_numpy().sum(axis=0) for n in ("total", "weight"))
                (value,) = _metric(str(metric)).finalise(*sums_of_all)
                cells[str(name)][head] = number(float(value), ".4f")
        errors = _errors(some[(some["metric"] == protocol.metrics[0]) & (some["step"] == ALL)])
        everyone = resample(errors, protocol.metrics[0], None)
        known = sorted(errors, key=lambda name: everyone.error(name).value)
        best = reference if reference in errors else known[0]
        tests = [permutation_test(errors[n], errors[best]).p_value for n in known if n != best]
        p_values = dict(zip([n for n in known if n != best], holm(tests), strict=True))
        for name in known:
            cells[name][f"{protocol.metrics[0]} [95 %]"] = everyone.error(name).cell()
            against = everyone.relative_difference(name, best).cell() if name != best else "-"
            cells[name][f"against {best}, %"] = against
            cells[name]["p"] = number(p_values.get(name, math.nan), ".2g")
        found[str(task)] = [cells[name] for name in known]
    return found


def score_legend(sums: pd.DataFrame, protocol: Protocol) -> str:
    """Return the meaning of the columns of `tabulate_scores`, which has the same arguments."""
    metric = protocol.metrics[0]
    units: dict[str, None] = {}
    for _, part in sums[(sums["metric"] == metric) & (sums["step"] == ALL)].groupby("task"):
        units[resampled_units(resample(_errors(part), metric, None), part["day"].nunique())] = None
    return (
        "mse, mae and pinball are of z-scores by cell, raw_… in the data's units. [95 %]: interval "
        f"from a bootstrap over {' or '.join(units)}; an origin counts for the day of its first "
        "target. p: of a test that swaps two rows' errors day by day, with Holm's correction. A "
        "difference is significant only if both the interval and p say so."
    )


def _errors(part: pd.DataFrame) -> dict[str, ErrorSums]:
    days = sorted(part["day"].unique())
    found = {}
    for name, own in part.groupby("method", sort=False):
        by_day = own.set_index("day").reindex(days)
        total, weight = (by_day[n].to_numpy()[None, None] for n in ("total", "weight"))
        found[str(name)] = ErrorSums(total, weight)
    return found


def score(paths: Sequence[Path], data: Path, protocol: Protocol) -> pd.DataFrame:
    """Return the sums of errors of files of forecasts and folders of runs, after our own rows.

    Raises:
        InputError: if data or forecasts are not the protocol's, or two rows share a name.
    """
    values = protocol.read(data)
    ours = protocol.published
    parts = [pd.read_csv(ours, dtype={"step": str})] if ours.exists() else []
    known = {row for part in parts for row in part[["task", "method"]].itertuples(False, None)}
    for path in paths:
        runs = path.is_dir()
        read = read_runs(path, values, protocol) if runs else [read_file(path, values, protocol)]
        for found in read:
            if runs and (found.task, found.name) in known:
                found = replace(found, name=f"{found.name}, {path.resolve().name}")
            if (found.task, found.name) in known:
                raise InputError(
                    f"{path}: {found.name} is the name of another row; rename the file or folder"
                )
            known.add((found.task, found.name))
            parts.append(day_sums(found, values, protocol))
    return pd.concat(parts, ignore_index=True)
