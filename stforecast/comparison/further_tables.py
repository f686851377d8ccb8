"""Further tables of forecasts: errors by steps ahead, intervals, and peak hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import counted
from stforecast.bench.grid_file import MARK, Published
from stforecast.bench.run_groups import ALL, by_step, select
from stforecast.bench.tables import Cell, Part, number, spread
from stforecast.comparison.errors import busiest, hour_spans
from stforecast.comparison.names import shown_steps, time_ahead
from stforecast.comparison.rows import Row, by_seed, folds_of
from stforecast.comparison.sums import sums_of
from stforecast.forecasting.results import ForecastRun, units_of
from stforecast.metrics.interval import pair_coverages, parse_levels
from stforecast.metrics.metric import mean

SHOWN_ERRORS = {"raw_mae": "MAE", "raw_rmse": "RMSE", "raw_mape": "MAPE, %"}
"""Errors in the table, and their headings."""

MEAN = "mean"
"""Column of the mean of the errors at all steps."""


def horizon_table(rows: Sequence[Row], published: Published | None = None) -> list[Part]:
    """Tabulate errors at a quarter, half and the whole of the horizon, and their mean.

    The mean is over the errors of all steps, each pooled over the whole test part, and over the
    folds of a backtest. Published numbers have their own rows. With only one step, the table is
    empty.
    """
    run = rows[0].first
    steps = shown_steps(int(run.settings["horizon"]))
    if len(steps) < 2:
        return []
    tables = [[_by_step(runs, row.selection) for runs in by_seed(row.group.runs)] for row in rows]
    if any(table.empty for members in tables for table in members):
        return []
    columns = {step: time_ahead(step, run) for step in steps} | {MEAN: f"mean of {steps[-1]}"}
    body = [
        {"method": row.marked_name, **_cells(members, columns)}
        for row, members in zip(rows, tables, strict=True)
    ]
    printed = published.horizons.get(run.about["service"], {}) if published else {}
    body += [{"method": f"{label}{MARK}", **_printed(n, run)} for label, n in printed.items()]
    caption = (
        f"Errors by time ahead, in {units_of(run)}, pooled over the test part"
        f"{' of each fold, mean over the folds' if run.fold else ''}; MAPE leaves out zero targets."
        " The mean is over steps, so that of RMSE is not the RMSE of all targets."
    )
    return [caption, body]


def _by_step(runs: Sequence[ForecastRun], selection: str) -> pd.DataFrame:
    """Return test errors of a seed, one row per step and one column per metric.

    They are pooled over cells, and means over the folds of a backtest.
    """
    metrics = pd.concat([run.metrics() for run in runs])
    table = by_step(select(metrics, split="test", selection=selection, metric=tuple(SHOWN_ERRORS)))
    wide = table.groupby(["horizon", "metric"])["value"].mean().unstack("metric")
    return wide.set_index(wide.index.astype(int)).sort_index()


def _cells(runs: Sequence[pd.DataFrame], columns: Mapping[int | str, str]) -> dict[str, str]:
    cells: dict[str, str] = {}
    for step, heading in columns.items():
        for metric, name in SHOWN_ERRORS.items():
            factor = 100 if metric == "raw_mape" else 1
            values = [
                factor * float(t[metric].mean() if step == MEAN else t[metric][step]) for t in runs
            ]
            cells[f"{name}, {heading}"] = spread(values)
    return cells


def _printed(numbers: Mapping[str, float], run: ForecastRun) -> dict[str, str]:
    """Return the published MAE of a method by minutes ahead, and the mean."""
    horizon = int(run.settings["horizon"])
    minutes = run.about.get("step_minutes", math.nan)
    heading = {f"{step * minutes:g}": time_ahead(step, run) for step in range(1, horizon + 1)}
    heading[MEAN] = f"mean of {horizon}"
    return {
        f"MAE, {heading[key]}": number(v, ".2f") for key, v in numbers.items() if key in heading
    }


HEADINGS = {
    "raw_width": "width",
    "raw_pinball": "pinball",
    "scaled_pinball": "scaled pinball",
    "raw_crps": "CRPS",
}
"""Metrics whose means are in the table, and their headings."""


def interval_table(rows: Sequence[Row]) -> list[Part]:
    """Tabulate coverage, width, pinball loss and CRPS of the rows with intervals.

    Coverage stands for all targets, by client, of the worst step ahead and in peak hours, as in
    `peak_table`. Of all targets, the shares below and above their bounds are given separately. The
    furthest bound is the furthest of all cells, in ranges of its test values outside them.
    """
    body = []
    for row in rows:
        seeds = by_seed(row.group.runs)
        tables = []  # Of each seed, means over the folds of a backtest.
        for runs in seeds:
            whole = select(pd.concat([run.metrics() for run in runs]), split="test", horizon=ALL)
            own = select(whole, selection=row.selection, metric=("coverage", *HEADINGS))
            tables.append(own.groupby(["client", "metric"])["value"].mean().unstack("metric"))
        if not all(len(t) for t in tables):
            continue
        clients = pd.concat([t.drop(index="all")["coverage"] for t in tables])
        quantiles = zip(("lowest", "median", "highest"), clients.quantile([0, 0.5, 1]), strict=True)
        of_clients = {f"{name} client": float(value) for name, value in quantiles}
        shown = " – ".join(f"{value:.3f}" for value in of_clients.values())
        cells = {
            "method": row.marked_name,
            "for": number(nominal_coverage(row.first), ".0%"),
            "coverage": spread([float(t["coverage"]["all"]) for t in tables]),
            "lowest – median – highest client": Cell(shown, of_clients),
            **_worst(row, seeds),
        }
        means = {h: spread([float(t[m]["all"]) for t in tables]) for m, h in HEADINGS.items()}
        body.append(cells | means)
    caption = "Intervals on the test part, all steps ahead, in data units."
    return [caption, body] if body else []


def nominal_coverage(run: ForecastRun) -> float:
    """Return the nominal coverage of a run's intervals."""
    return max(pair_coverages(parse_levels(run.settings["quantiles"])))


def refit_notes(rows: Sequence[Row]) -> list[str]:
    """Return a line for each refitted method: the time of its refits, and a run's whole traffic."""
    # Beyond the training part; refits within the test part learn all before them.
    learns = {"once": "the validation part", "final": "the validation part, then all data"}
    notes = []
    for row in rows:
        costs = [table for run in row.group.runs if len(table := run.refits())]
        if row.view or not costs:
            continue
        rounds = [run.rounds() for run in row.group.runs]
        seconds = np.mean([cost["seconds"].sum() for cost in costs])
        up, down = (
            sum(table[f"bytes_{way}"].sum() for table in (*costs, *rounds)) / len(costs) / 1e6
            for way in ("up", "down")
        )
        refits, asked = counted(len(costs[0]), "refit"), row.first.settings["refit"]
        learnt = learns.get(asked, "all data before each")
        notes.append(
            f"{row.name}: {refits} ({asked}) with {learnt} in {seconds:.1f} s; with all rounds, "
            f"{up:,.1f} MB up and {down:,.1f} MB down"
        )
    return notes


def _worst(row: Row, seeds: Sequence[Sequence[ForecastRun]]) -> dict[str, str]:
    """Return the coverage of the worst step ahead and in peak hours, and the values outside.

    Runs keep the bounds of one model only, so a method's further models have none.
    """
    headings = ("lowest step", "peak hours", "below bounds", "above bounds", "furthest bound")
    if row.view:
        return dict.fromkeys(headings, "-")
    peak, _ = _peak(row.group.runs)
    found = [_of_runs(runs) for runs in seeds]
    values = (
        [float((s["inside"].sum("run") / s["known"].sum("run")).min()) for s in found],
        [_in_hours(s["inside_by_hour"], s["count"], peak) for s in found],
        [float(s["below"].mean()) for s in found],
        [float(s["above"].mean()) for s in found],
        [float(s["furthest"].max()) for s in found],
    )
    return dict(zip(headings, map(spread, values), strict=True))


def _of_runs(runs: Iterable[ForecastRun]) -> xr.Dataset:
    """Return the sums of runs, without those by cell and day."""
    return xr.concat([sums_of(run).drop_dims(["cell", "day"]) for run in runs], "run")


def _peak(runs: Iterable[ForecastRun]) -> tuple[tuple[int, ...], bool]:
    """Return the busiest hours of the test parts of all folds, and whether targets are speeds."""
    folds = folds_of(runs).values()
    sums, of_speed = _of_runs(folds).sum("run"), bool(sums_of(next(iter(folds))).attrs["of_speed"])
    load = mean(sums["load"].to_numpy(), sums["count"].to_numpy())
    return busiest(load, of_speed=of_speed), of_speed


def _in_hours(total: xr.DataArray, count: xr.DataArray, hours: Sequence[int]) -> float:
    """Return the mean over the targets of all runs in some hours of local time."""
    return float(total.sum("run")[list(hours)].sum() / count.sum("run")[list(hours)].sum())


def peak_table(rows: Sequence[Row]) -> list[Part]:
    """Tabulate the MAE in peak hours, as `busy_hours`, and in the others.

    The rows must be tested on the same targets. If all hours have the same load, it is empty.
    """
    busy, of_speed = _peak(run for row in rows for run in row.group.runs)
    if not busy:
        return []
    others = [hour for hour in range(24) if hour not in busy]
    body = []
    for row in rows:
        seeds = [folds_of(runs).values() for runs in by_seed(row.group.runs)]
        found = [_of_runs(runs) for runs in seeds]
        peak, off_peak = (
            spread(
                [_in_hours(s["absolute"].sel(model=row.selection), s["count"], h) for s in found]
            )
            for h in (busy, others)
        )
        body.append({"method": row.marked_name, "peak": peak, "off-peak": off_peak})
    zone = sums_of(rows[0].first).attrs.get("time_zone", "local time")
    spans = ", ".join(f"{begin:02}:00–{end:02}:00" for begin, end in hour_spans(busy))
    busy_is = "speed is below" if of_speed else "load is above"
    caption = (
        f"MAE in {units_of(rows[0].first)} in peak hours, whose mean {busy_is} the day's mean "
        f"({spans}, {zone}), and off-peak."
    )
    return [caption, body]
