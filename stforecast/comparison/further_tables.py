"""Further tables of forecasts: errors by steps ahead, intervals, and peak hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from data_prep.base.errors import counted
from stforecast.bench.grid_file import MARK, Published
from stforecast.bench.run_groups import ALL, by_step, select
from stforecast.bench.tables import Cell, Part, number, spread
from stforecast.comparison.errors import are_of_speed, busy_hours, hour_spans
from stforecast.comparison.names import shown_steps, time_ahead
from stforecast.comparison.rows import Row, by_seed, joined_coverages, joined_errors, joined_targets
from stforecast.forecasting.results import ForecastRun, units_of
from stforecast.intervals.bands import ranges_outside
from stforecast.metrics.interval import pair_coverages, parse_levels

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
    found = [joined_coverages(runs) for runs in seeds]
    widest = [by_level[max(by_level)] for by_level in found]
    peak = busy_hours(joined_targets(row.group.runs))
    outside = [np.array([_outside(run) for run in runs]).T for runs in seeds]
    values = (
        [c.by_step().min() for c in widest],
        [c.in_hours(peak) for c in widest],
        [below.mean() for below, _, _ in outside],
        [above.mean() for _, above, _ in outside],
        [furthest.max() for _, _, furthest in outside],
    )
    return dict(zip(headings, map(spread, values), strict=True))


def _outside(run: ForecastRun) -> tuple[float, float, float]:
    """Return the shares of all targets below and above their bounds, and the furthest bound.

    That is by how many ranges of a cell's test values a bound lies outside them.
    """
    with run.open_forecasts() as forecasts:
        y, lower, upper = (forecasts[name].to_numpy() for name in ("y", "lower", "upper"))
    known, values = np.isfinite(y), y.reshape(len(y), -1).T
    furthest = np.nanmax(ranges_outside(lower.min((1, 2)), upper.max((1, 2)), values))
    return float((y < lower)[known].mean()), float((y > upper)[known].mean()), float(furthest)


def peak_table(rows: Sequence[Row]) -> list[Part]:
    """Tabulate the MAE in peak hours, as `busy_hours`, and in the others.

    The rows must be tested on the same targets. If all hours have the same load, it is empty.
    """
    targets = joined_targets(run for row in rows for run in row.group.runs)
    busy, zone = busy_hours(targets), targets.attrs.get("time_zone", "local time")
    if not busy:
        return []
    others = [hour for hour in range(24) if hour not in busy]
    body = []
    for row in rows:
        errors = [joined_errors(r, "raw_mae", row.selection) for r in by_seed(row.group.runs)]
        peak, off_peak = (
            spread([of_seed.in_hours(hours) for of_seed in errors]) for hours in (busy, others)
        )
        body.append({"method": row.marked_name, "peak": peak, "off-peak": off_peak})
    spans = ", ".join(f"{begin:02}:00–{end:02}:00" for begin, end in hour_spans(busy))
    busy_is = "speed is below" if are_of_speed(targets) else "load is above"
    caption = (
        f"MAE in {units_of(rows[0].first)} in peak hours, whose mean {busy_is} the day's mean "
        f"({spans}, {zone}), and off-peak."
    )
    return [caption, body]
