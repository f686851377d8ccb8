"""A table of how good intervals are, and the cost of refitting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stforecast.bench.numbers import spread
from stforecast.bench.run_groups import ALL, RunGroup, select
from stforecast.bench.tables import markdown
from stforecast.metrics.quantiles import pair_coverages, parse_levels
from stforecast.results import ForecastRun


def interval_table(rows: Sequence[tuple[RunGroup[ForecastRun], str]], names: Sequence[str]) -> str:
    """Markdown: coverage, pooled and by client, width, pinball loss and CRPS.

    Args:
        rows: groups, each with one of its models as selections name them; those without
            intervals are left out.
        names: what to call the rows.

    Returns:
        The table under a line that says what it is; "" where no row has intervals.
    """
    body = []
    for (group, view), name in zip(rows, names, strict=True):
        tables = [_interval_errors(run, f"best {view}".strip()) for run in group.runs]
        if all(len(t) for t in tables):
            body.append({"method": name, **_cells(group.runs[0], tables)})
    if not body:
        return ""
    return f"Intervals on the test part, all steps ahead, in data units.\n\n{markdown(body)}"


def nominal_coverage(run: ForecastRun) -> float:
    """Share of the targets that a run's intervals are made for."""
    return max(pair_coverages(parse_levels(run.settings["quantiles"])))


def refit_notes(rows: Sequence[tuple[RunGroup[ForecastRun], str]]) -> list[str]:
    """A line on each group that was refitted: how often, and what a run of it sent and took."""
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


def _interval_errors(run: ForecastRun, selection: str) -> pd.DataFrame:
    """Interval metrics of clients and of all, over all steps; one column a metric."""
    metrics = ("coverage", "raw_width", "raw_pinball", "raw_crps")
    table = select(run.metrics(), split="test", selection=selection, horizon=ALL, metric=metrics)
    return table.pivot(index="client", columns="metric", values="value")


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
