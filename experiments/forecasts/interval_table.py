"""Table of interval metrics, and notes on the cost of refits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.run_groups import ALL, select
from stforecast.bench.tables import markdown, spread
from stforecast.comparison.hours import busy_hours
from stforecast.comparison.rows import Row, by_seed, joined_coverages, joined_targets
from stforecast.intervals.bands import ranges_outside
from stforecast.metrics.quantiles import pair_coverages, parse_levels
from stforecast.results import ForecastRun

HEADINGS = {
    "raw_width": "width", "raw_pinball": "pinball", "scaled_pinball": "scaled pinball",
    "raw_crps": "CRPS",
}  # fmt: skip
"""Means in the table."""


def interval_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Tabulate coverage, width, pinball loss and CRPS as Markdown.

    All is of the model that a run keeps, which `predict` uses, since only its bounds are in
    `forecasts.nc`: with `select` last not that of the lowest validation loss, as in other tables.
    Coverage stands for all targets, by client, of the worst step ahead and in peak hours, as in
    `peak_table`. The furthest bound is that of any cell, in ranges of its test values outside them.

    Args:
        rows: models; those without intervals are left out.
        names: names of the rows.

    Returns:
        The table under a describing line; "" if no row has intervals.
    """
    body = []
    for row, name in zip(rows, names, strict=True):
        seeds = by_seed(row.group.runs)
        tables = [
            _interval_errors(runs, row.selection(row.first.settings.get("select", "best")))
            for runs in seeds
        ]
        if all(len(t) for t in tables):
            body.append({"method": name, **_interval_cells(row, seeds, tables)})
    if not body:
        return ""
    note = (
        "Intervals on the test part, all steps ahead, in data units; of the kept model (`select`)"
    )
    return f"{note}.\n\n{markdown(body)}"


def nominal_coverage(run: ForecastRun) -> float:
    """Return the nominal coverage of a run's intervals."""
    return max(pair_coverages(parse_levels(run.settings["quantiles"])))


def refit_notes(rows: Sequence[Row]) -> list[str]:
    """Return a line for each refitted method: number of refits, traffic and time of a run."""
    notes = []
    for row in rows:
        costs = [table for run in row.group.runs if len(table := run.refits())]
        if row.view or not costs:
            continue
        up, down, seconds = (
            np.mean([cost[column].sum() for cost in costs])
            for column in ("bytes_up", "bytes_down", "seconds")
        )
        notes.append(
            f"{row.name}: refitted {row.first.settings['refit']}, {len(costs[0])} times; in total, "
            f"{up / 1e6:,.1f} MB up, {down / 1e6:,.1f} MB down and {seconds:.1f} s"
        )
    return notes


def _interval_errors(runs: Sequence[ForecastRun], selection: str) -> pd.DataFrame:
    """Return interval metrics of a seed by client and pooled, over all steps, a column for each.

    They are means over the folds of a backtest.
    """
    metrics = ("coverage", *HEADINGS)
    table = pd.concat([run.metrics() for run in runs])
    table = select(table, split="test", selection=selection, horizon=ALL, metric=metrics)
    return table.groupby(["client", "metric"])["value"].mean().unstack("metric")


def _interval_cells(
    row: Row, seeds: Sequence[Sequence[ForecastRun]], tables: Sequence[pd.DataFrame]
) -> dict[str, str]:
    clients = pd.concat([t.drop(index="all")["coverage"] for t in tables])
    low, middle, high = clients.quantile([0, 0.5, 1])
    cells = {
        "for": f"{nominal_coverage(row.first):.0%}",
        "coverage": spread([float(t["coverage"]["all"]) for t in tables]),
        "lowest – median – highest client": f"{low:.3f} – {middle:.3f} – {high:.3f}",
        **_worst(row, seeds),
    }
    return cells | {h: spread([float(t[m]["all"]) for t in tables]) for m, h in HEADINGS.items()}


def _worst(row: Row, seeds: Sequence[Sequence[ForecastRun]]) -> dict[str, str]:
    """Return the coverage of the worst step ahead and in peak hours, all clients together.

    Runs keep the bounds of one model only, so a method's further models have none.
    """
    headings = ("lowest step", "peak hours", "furthest bound")
    if row.view:
        return dict.fromkeys(headings, "-")
    found = [joined_coverages(runs) for runs in seeds]
    widest = [by_level[max(by_level)] for by_level in found]
    peak = busy_hours(joined_targets(row.group.runs))
    furthest = [max(map(_furthest_bound, runs)) for runs in seeds]
    values = ([c.by_step().min() for c in widest], [c.in_hours(peak) for c in widest], furthest)
    return dict(zip(headings, map(spread, values), strict=True))


def _furthest_bound(run: ForecastRun) -> float:
    """Return by how many ranges of a cell's test values a bound lies outside them."""
    with run.open_forecasts() as forecasts:
        y, lower, upper = (forecasts[name].to_numpy() for name in ("y", "lower", "upper"))
    values = y.reshape(len(y), -1).T
    return float(np.nanmax(ranges_outside(lower.min((1, 2)), upper.max((1, 2)), values)))
