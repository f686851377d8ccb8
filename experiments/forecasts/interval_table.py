"""Table of interval metrics, and notes on the cost of refits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.numbers import spread
from stforecast.bench.run_groups import ALL, RunGroup, select
from stforecast.bench.tables import markdown
from stforecast.comparison.folds import by_seed
from stforecast.metrics.quantiles import pair_coverages, parse_levels
from stforecast.results import ForecastRun


def interval_table(rows: Sequence[tuple[RunGroup[ForecastRun], str]], names: Sequence[str]) -> str:
    """Tabulate coverage, pooled and by client, width, pinball loss and CRPS as Markdown.

    Args:
        rows: groups, each with a view of its method; those without intervals are left out.
        names: names of the rows.

    Returns:
        The table under a describing line; "" if no row has intervals.
    """
    body = []
    for (group, view), name in zip(rows, names, strict=True):
        selection = f"best {view}".strip()
        tables = [_interval_errors(runs, selection) for runs in by_seed(group.runs)]
        if all(len(t) for t in tables):
            body.append({"method": name, **_cells(group.runs[0], tables)})
    if not body:
        return ""
    return f"Intervals on the test part, all steps ahead, in data units.\n\n{markdown(body)}"


def nominal_coverage(run: ForecastRun) -> float:
    """Return the nominal coverage of a run's intervals."""
    return max(pair_coverages(parse_levels(run.settings["quantiles"])))


def refit_notes(rows: Sequence[tuple[RunGroup[ForecastRun], str]]) -> list[str]:
    """Return a line for each refitted group: number of refits, traffic and time of a run."""
    notes = []
    for group, view in rows:
        costs = [table for run in group.runs if len(table := run.refits())]
        if view or not costs:
            continue
        up, down, seconds = (
            np.mean([cost[column].sum() for cost in costs])
            for column in ("bytes_up", "bytes_down", "seconds")
        )
        notes.append(
            f"{group.name}: refitted {group.runs[0].settings['refit']}, "
            f"{len(costs[0])} times; {up / 1e6:,.1f} MB up, {down / 1e6:,.1f} MB down, "
            f"{seconds:.1f} s together"
        )
    return notes


def _interval_errors(runs: Sequence[ForecastRun], selection: str) -> pd.DataFrame:
    """Return interval metrics of a seed by client and pooled, over all steps, a column for each.

    They are means over the folds of a backtest.
    """
    metrics = ("coverage", "raw_width", "raw_pinball", "raw_crps")
    table = pd.concat([run.metrics() for run in runs])
    table = select(table, split="test", selection=selection, horizon=ALL, metric=metrics)
    return table.groupby(["client", "metric"])["value"].mean().unstack("metric")


def _cells(run: ForecastRun, tables: Sequence[pd.DataFrame]) -> dict[str, str]:
    clients = pd.concat([t.drop(index="all")["coverage"] for t in tables])
    low, middle, high = clients.quantile([0, 0.5, 1])
    cells = {
        "for": f"{nominal_coverage(run):.0%}",
        "coverage": spread([float(t["coverage"]["all"]) for t in tables]),
        "lowest – median – highest client": f"{low:.3f} – {middle:.3f} – {high:.3f}",
    }
    headings = {"raw_width": "width", "raw_pinball": "pinball", "raw_crps": "CRPS"}
    return cells | {h: spread([float(t[m]["all"]) for t in tables]) for m, h in headings.items()}
