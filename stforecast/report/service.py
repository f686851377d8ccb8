"""Page on a run in service: its alarms, its errors, each update, and the cells on the map."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.base.errors import in_minutes
from stforecast.report.outlook import MOST_ROWS, outlook_section
from stforecast.report.section import map_value
from stforecast.report.tables import Table, number, share
from stforecast.report.write import MOST_VALUES, ReportPage

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.outlook import Outlook
    from stforecast.service.folder import ServiceState
    from stforecast.service.monitor import Watch

UNSCORED = "No forecast is scored yet: stforecast update does so as records come."

UPDATES = 28
"""Updates that are listed."""

SHOWN = {
    "mase_7d": ("MASE of 7 days", 1.0, False),
    "bias_7d": ("mean of forecast less value, 7 days", 0.0, False),
    "coverage_7d": ("coverage of the bounds, 7 days", None, True),
    "missing": ("share of the last day that is missing", None, True),
    "stuck": ("hours of one and the same value", None, False),
    "drift": ("distance of the last 7 days from those before", None, False),
}
"""Columns of `monitor.csv` that the map shows: title, middle of the colours, whether a share."""


def write_service_page(
    out: Path,
    title: str,
    watch: Watch,
    state: ServiceState,
    series: Series,
    found: Outlook,
    command: str = "",
) -> Path:
    """Write the page."""
    page = ReportPage()
    ahead = outlook_section(series, found, state.issued, state.history, page.arrays, MOST_VALUES)
    cells = watch.cells.set_index("cell")
    worst = cells.sort_values("mase_7d", ascending=False, kind="stable")
    values = [
        map_value(
            page.arrays,
            name,
            [cells[column].to_numpy()],
            watch.nominal if column == "coverage_7d" else middle,
            is_share,
        )
        for column, (name, middle, is_share) in SHOWN.items()
        if cells[column].notna().any()
    ]
    first = {"first": cells.index.get_loc(worst.index[0])}
    charts = {**ahead.charts, **first, **({"values": values} if values else {})}
    page.ahead = dataclasses.replace(
        ahead,
        name=f"Records until {watch.end:%A %d %B %Y %H:%M}",
        claims=(*_said(watch, series), ahead.claims[0]),
        tables=(
            *([_spans(watch, series.units)] if _scored(watch) else []),
            *([_updates(state.log)] if len(state.log) else []),
            _cells(worst),
        ),
        charts=charts,
    )
    return page.write(out, title, command)


def _said(watch: Watch, series: Series) -> tuple[str, ...]:
    """Return the alarms, and how late the records are."""
    alarms = [f"Alarm: {alarm}." for alarm in watch.alarms] or ["No alarm."]
    step = in_minutes(series.calendar.step)
    late = f"Records have steps of {step}; the last ended {watch.late} before this page."
    return (*alarms, late, *(() if _scored(watch) else (UNSCORED,)))


def _scored(watch: Watch) -> bool:
    return any(of.n for of in watch.errors.values())


def _spans(watch: Watch, units: str) -> Table:
    rows = [
        {
            "days": str(days),
            "MASE": number(float(of.mase)),
            "bias": number(float(of.bias)),
            "mean value": number(float(of.mean)),
            "coverage": share(float(of.coverage)),
            "values": f"{int(of.n):,}",
        }
        for days, of in watch.errors.items()
    ]
    notes = ["MASE: mean absolute error by that of the day before in training."]
    unit = "" if units == "1" else f", in {units}"
    notes.append(f"bias: mean of forecast less value{unit}.")
    if np.isfinite(watch.nominal):
        notes.append(f"coverage: share of the values within bounds of {watch.nominal:.0%}.")
    return Table("Forecasts of the last days", rows, notes)


def _updates(log: pd.DataFrame) -> Table:
    rows = [
        {
            "records until": str(row["until"])[:16],
            "new steps": f"{row['steps']:g}",
            "MASE of the day": number(row["day_mase"]),
            "coverage": share(row["day_coverage"]),
            "model": str(row["action"]),
            "why": str(row["reason"]),
        }
        for _, row in log.tail(UPDATES).iloc[::-1].iterrows()
    ]
    return Table("Updates, the last first", rows)


def _cells(worst: pd.DataFrame) -> Table:
    rows = [
        {
            "cell": str(cell),
            "MASE, 7 days": number(row["mase_7d"]),
            "bias, 7 days": number(row["bias_7d"]),
            "coverage, 7 days": share(row["coverage_7d"]),
            "missing": share(row["missing"]),
            "stuck, h": number(row["stuck"]),
            "drift": number(row["drift"]),
        }
        for cell, row in worst.head(MOST_ROWS).iterrows()
    ]
    notes = ["missing: of the last day. drift: distance of Kolmogorov and Smirnov, from 0 to 1."]
    if len(worst) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(worst)} cells; all are in monitor.csv.")
    return Table("Cells, the highest MASE first", rows, notes, opens="cell")
