"""Runs whose errors are computed again: of some cells or times, or on the scale of another run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, close_to, some
from stforecast.bench.run_groups import T
from stforecast.comparison.errors import SCALES, SEASONAL, scale_variable, variables
from stforecast.comparison.rows import check_targets, scaled_as
from stforecast.forecasting.results import ROUND_COLUMNS, ForecastRun, bounds_of
from stforecast.intervals.bands import Bands
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.metrics.metric import Scale
from stforecast.metrics.point import evaluate, evaluate_intervals


@dataclass(frozen=True)
class Span:
    """Times of the test part to draw.

    Attributes:
        hours: hours from its start; None is all.
        start: first local time; None is the first.
        end: local time after the last; None is the end.
    """

    hours: int | None = None
    start: str | None = None
    end: str | None = None

    def mask(self, times: pd.DatetimeIndex, zone: str | None, origin: object) -> np.ndarray:
        """Return which of the targets' times `(windows,)` on the forecasts' clock lie in the span.

        They are UTC if there is a zone. `origin` names the run in errors. No time left is an error.
        """
        local = times if zone is None else times.tz_localize("UTC").tz_convert(zone)
        chosen = np.ones(len(times), dtype=bool)
        if self.hours is not None:
            chosen &= times < times[0] + pd.Timedelta(hours=min(self.hours, 10**6))
        if self.start is not None:
            chosen &= local >= _local(self.start, zone, local)
        if self.end is not None:
            chosen &= local < _local(self.end, zone, local)
        if not chosen.any() and self.hours is not None and self.hours < 1:
            raise InputError(f"hours is {self.hours}; draw at least 1")
        if not chosen.any():
            raise InputError(
                f"{origin}: no target in these times; the test part has targets from {local[0]} to "
                f"{local[-1]}"
            )
        return chosen


@dataclass(frozen=True)
class RunInMemory(ForecastRun):
    """A run that is not read from its folder.

    Attributes:
        make_metrics: returns the errors, which are computed once.
        make_rounds: returns the rounds.
        make_forecasts: returns the forecasts, which are computed once.
    """

    make_metrics: Callable[[], pd.DataFrame]
    make_rounds: Callable[[], pd.DataFrame]
    make_forecasts: Callable[[], xr.Dataset]

    def metrics(self) -> pd.DataFrame:
        """Return the errors."""
        return self.make_metrics()

    def rounds(self) -> pd.DataFrame:
        """Return the rounds; none for a reference forecaster."""
        rounds = self.make_rounds()
        return rounds if len(rounds) else pd.DataFrame(columns=list(ROUND_COLUMNS), dtype=float)

    def forecasts(self) -> xr.Dataset:
        """Return the forecasts."""
        return self.make_forecasts()

    open_forecasts = forecasts


def part_of(
    run: ForecastRun, cells: str | None, span: Span, first: ForecastRun | None = None
) -> ForecastRun:
    """Return a run whose errors are computed again from its forecasts.

    It has some cells, which are ids with commas between, or all; the targets in a span of time; and
    the scales of the first run, if it is given. Times and cells outside have no target.
    """

    @cache
    def forecasts() -> xr.Dataset:
        ds = run.forecasts()
        if first is not None:
            ds = scaled_as(first.forecasts(), run, ds, {"std", *SCALES.values()})
        if cells is not None:
            ds = take_cells(ds, named_cells(ds.indexes["cell"], cells), run)
        inside = _inside(ds, span, run)
        seen = xr.DataArray(inside, dims=("time", "horizon"))
        return ds.assign(y=ds["y"].where(seen)).isel(time=inside.any(axis=1))

    @cache
    def metrics() -> pd.DataFrame:
        ds = forecasts()
        tables = [
            _errors(ds, name).assign(selection=selection)
            for selection, name in variables(ds).items()
            if selection != SEASONAL
        ]
        return pd.concat(tables, ignore_index=True).assign(split="test", fold=run.fold)

    return RunInMemory(run.folder, run.about, metrics, run.rounds, forecasts)


def on_one_scale(runs: Sequence[ForecastRun], metric: str) -> list[ForecastRun]:
    """Return the runs with scaled errors that can be compared.

    Scaled errors, such as of z-scores, have the scales of the first run that was tested on
    the same targets, as other training parts have other scales. A run without forecasts keeps its
    own.
    """
    known = metric.removeprefix("raw_") in {*METRICS, *INTERVAL_METRICS}
    scale = scale_variable(metric) if known else None
    if scale is None or len(runs) < 2:
        return list(runs)
    firsts: list[tuple[ForecastRun, xr.DataArray]] = []
    return [_as_first(run, scale, firsts) for run in runs]


def _as_first(
    run: ForecastRun, scale: str, firsts: list[tuple[ForecastRun, xr.DataArray]]
) -> ForecastRun:
    """Return a run on the scale of the first one tested on its targets, which it may be itself."""
    try:
        with run.open_forecasts() as ds:
            own = ds[scale].load()
    except (InputError, KeyError):
        return run
    for first, values in firsts:
        if first.facts() == run.facts() and first.fold == run.fold:
            if own.equals(values):
                return run
            try:
                check_targets(run, run.forecasts(), first.forecasts())
            except InputError:
                continue
            return part_of(run, None, Span(), first)
    firsts.append((run, own))
    return run


def parts_of(
    runs: Sequence[ForecastRun], cells: str | None, start: str | None, end: str | None
) -> list[ForecastRun]:
    """Return the runs with only some cells and times of their test parts.

    Folds that were tested at other times are left out; if no run was tested then, that is an error.
    """
    if cells is None and start is None and end is None:
        return list(runs)
    span = Span(None, start, end)
    tested = []
    for run in runs:
        with suppress(InputError), run.open_forecasts() as ds:
            _inside(ds, span, run)  # Raises where no target lies in the span.
            tested.append(run)
    if not tested and runs:
        part_of(runs[0], cells, span).forecasts()  # Raises.
    return [part_of(run, cells, span) for run in tested]


def part_note(cells: str | None = None, start: str | None = None, end: str | None = None) -> str:
    """Return what is drawn in words, for the note of a figure; empty if it is all.

    >>> part_note("4,17", "2013-12-24")
    'cells 4, 17; from 2013-12-24'
    """
    names = [] if cells is None else [name.strip() for name in cells.split(",")]
    shown = ", ".join(names) if len(names) <= 6 else f"{len(names)} of them"
    span = " ".join(f"{word} {time}" for word, time in (("from", start), ("to", end)) if time)
    return "; ".join(filter(None, [f"cells {shown}" if names else "", span]))


def named_cells(known: pd.Index, wanted: str) -> list[Any]:
    """Return the known cells with these ids, which are separated by commas."""
    return entries_named({str(c): c for c in known}, wanted.split(","), "cell", "that were tested")


def entries_named(known: Mapping[str, T], wanted: Sequence[str], what: str, of: str) -> list[T]:
    """Return entries by their names; `what` and `of` word errors."""
    names = [name.strip() for name in wanted]
    for name in names:
        if name not in known:
            raise InputError(
                f"no {what} {name!r} among the {len(known)} {of}: {some(known, 10)}"
                f"{close_to(name, known)}"
            )
    return [known[name] for name in names]


def take_cells(ds: xr.Dataset, cells: list[Any], run: ForecastRun) -> xr.Dataset:
    """Select cells; an error names the run and the unknown cell."""
    for cell in cells:
        if cell not in ds.indexes["cell"]:
            raise InputError(f"{run.folder}: no cell {cell}; name cells that every run has")
    return ds.sel(cell=cells)


def _local(text: str, zone: str | None, times: pd.DatetimeIndex) -> pd.Timestamp:
    try:
        time = pd.Timestamp(text)
        return time.tz_localize(zone) if zone is not None and time.tzinfo is None else time
    except ValueError as e:
        raise InputError(
            f"cannot read the time {text!r}; give a local time such as '{times[0]:%Y-%m-%d %H:%M}'"
        ) from e


def _inside(ds: xr.Dataset, span: Span, origin: ForecastRun) -> np.ndarray:
    """Return which targets `(windows, horizon)` lie in a span."""
    shape = ds.sizes["time"], ds.sizes["horizon"]
    if span == Span():
        return np.ones(shape, dtype=bool)
    step = pd.Timedelta(minutes=float(ds.attrs["step_minutes"]))
    ahead = (ds.indexes["horizon"].to_numpy() - 1) * step
    times = pd.DatetimeIndex((ds.indexes["time"].to_numpy()[:, None] + ahead).ravel())
    return span.mask(times, ds.attrs.get("time_zone"), origin.folder).reshape(shape)


def _errors(ds: xr.Dataset, name: str) -> pd.DataFrame:
    y, y_hat = ds["y"].to_numpy(), ds[name].to_numpy()
    seen, cells = np.isfinite(y), ds["cell"].to_numpy()
    y = np.where(seen, y, 0.0)
    std = ds["std"].to_numpy()[:, None, None]
    scales = [ds[name].to_numpy() for name in SCALES.values() if name in ds]
    scale = Scale(*scales) if len(scales) == len(SCALES) else None
    of_scores = [metric for metric, found in METRICS.items() if not found.relative]
    raw = evaluate(y_hat, y, seen, cells, scale=scale)
    tables = [evaluate(y_hat / std, y / std, seen, cells, of_scores), _named_raw(raw, METRICS)]
    if name == "y_hat" and "coverage" in ds.attrs:
        pairs = {c: (low.to_numpy(), up.to_numpy()) for c, (low, up) in bounds_of(ds).items()}
        bands, coverage = Bands(y_hat, pairs), ds.attrs["coverage"]
        by_std = bands.map(lambda values: values / std)
        tables.append(evaluate_intervals(by_std, y / std, seen, cells, coverage))
        raw = evaluate_intervals(bands, y, seen, cells, coverage, scale)
        tables.append(_named_raw(raw, INTERVAL_METRICS))
    return pd.concat(tables).drop_duplicates(["metric", "client", "horizon"], ignore_index=True)


def _named_raw(table: pd.DataFrame, metrics: Any) -> pd.DataFrame:
    return table.assign(metric=table["metric"].map(lambda name: metrics[name].raw_name))
