"""Tables of errors by steps ahead, in the format of papers on road traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from stforecast.bench.published import MARK, Published
from stforecast.bench.run_groups import by_step, select
from stforecast.bench.tables import markdown, spread
from stforecast.comparison.names import shown_steps, time_ahead
from stforecast.comparison.rows import Row, by_seed
from stforecast.forecasting.results import ForecastRun, units_of

SHOWN = {"raw_mae": "MAE", "raw_rmse": "RMSE", "raw_mape": "MAPE, %"}
"""Errors in the table, and their headings."""

MEAN = "mean"
"""Column of the mean of the errors at all steps."""


def horizon_table(
    rows: Sequence[Row],
    names: Sequence[str],
    published: Published | None = None,
) -> str:
    """Tabulate errors at a quarter, half and the whole of the horizon, and their mean, as Markdown.

    The mean is over the errors of all steps, each pooled over the whole test part, and over the
    folds of a backtest. Published numbers have their own rows.

    Args:
        rows: models with the same horizon.
        names: names of the rows.
        published: numbers of a paper.

    Returns:
        The table under a describing line; "" if there is only one step.
    """
    run = rows[0].first
    steps = shown_steps(int(run.settings["horizon"]))
    if len(steps) < 2:
        return ""
    tables = [
        [_by_step(runs, row.selection("best")) for runs in by_seed(row.group.runs)] for row in rows
    ]
    if any(table.empty for members in tables for table in members):
        return ""
    columns = {step: time_ahead(step, run) for step in steps} | {MEAN: f"mean of {steps[-1]}"}
    body = [
        {"method": name, **_cells(members, columns)}
        for name, members in zip(names, tables, strict=True)
    ]
    printed = published.horizons.get(run.about["service"], {}) if published else {}
    body += [{"method": f"{label}{MARK}", **_printed(n, run)} for label, n in printed.items()]
    caption = (
        f"Errors by time ahead, in {units_of(run)}, pooled over the test part"
        f"{' of each fold, mean over the folds' if run.fold else ''}; MAPE leaves out zero targets."
    )
    return f"{caption}\n\n{markdown(body)}"


def _by_step(runs: Sequence[ForecastRun], selection: str) -> pd.DataFrame:
    """Return test errors of a seed, one row per step and one column per metric.

    They are pooled over cells, and means over the folds of a backtest.
    """
    metrics = pd.concat([run.metrics() for run in runs])
    table = by_step(select(metrics, split="test", selection=selection, metric=tuple(SHOWN)))
    wide = table.groupby(["horizon", "metric"])["value"].mean().unstack("metric")
    return wide.set_index(wide.index.astype(int)).sort_index()


def _cells(runs: Sequence[pd.DataFrame], columns: Mapping[int | str, str]) -> dict[str, str]:
    cells = {}
    for step, heading in columns.items():
        for metric, name in SHOWN.items():
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
    return {f"MAE, {heading[key]}": f"{v:.2f}" for key, v in numbers.items() if key in heading}
