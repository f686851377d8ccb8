"""Page on a run in service: its alarms, its errors, each update, and the cells on the map."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.base.errors import counted, in_minutes
from stforecast.bench.tables import number
from stforecast.plots.cell_map import find_places
from stforecast.report.section import map_value
from stforecast.report.sections.coming import endless
from stforecast.report.tables import MOST_ROWS, Table, rest, share
from stforecast.report.write import ReportPage
from stforecast.service.cells import STATES

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.outlook import Outlook
    from stforecast.service.folder import ServiceState
    from stforecast.service.monitor import Watch


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
    page.add(series=series, outlook=found, places=find_places(state.issued, state.history))
    ahead = page.sections[0]
    cells = watch.cells.set_index("cell")
    cells["rarest"] = np.log10(cells["rarest"])
    order = cells["state"].map({name: i for i, name in enumerate((*STATES, ""))})
    worst = cells.assign(order=order, error=-cells["mase_7d"]).sort_values(
        ["order", "error"], kind="stable"
    )
    bias = f"mean of forecast less value{_in(series.units)}, 7 days"
    mapped: dict[str, tuple[str, float | None, bool | str]] = {
        "mase_7d": ("MASE of 7 days", 1.0, False),
        "bias_7d": (bias, 0.0, False),
        "coverage_7d": ("coverage of the bounds, 7 days", watch.nominal, True),
        "missing": ("share of the last day that is missing", None, True),
        "rarest": ("rarest reading of the last day", None, "log"),
        "drift": ("distance of the last 7 days from those before", None, False),
    }
    values = [
        map_value(page.arrays, name, [cells[column].to_numpy()], middle=middle, share=share)
        for column, (name, middle, share) in mapped.items()
        if cells[column].nunique() > 1
    ]
    first = {"first": cells.index.get_loc(worst.index[0])}
    charts = {**ahead.charts, **first, **({"values": values} if values else {})}
    page.sections[0] = dataclasses.replace(
        ahead,
        name=f"Records until {watch.end:%A %d %B %Y %H:%M}",
        alarms=(*(f"Alarm: {alarm}." for alarm in watch.alarms), *ahead.alarms),
        claims=(*_said(watch, series), ahead.claims[0], *endless(found)),
        tables=(
            *([_broken(watch)] if len(watch.broken) else []),
            *([_anomalies(watch, series.units)] if len(watch.anomalies) else []),
            *([_spans(watch, series.units)] if _scored(watch) else []),
            *([_updates(state.log)] if len(state.log) else []),
            *(ahead.tables if "threshold" in found.plan else []),
            _cells(worst, series.units),
        ),
        charts=charts,
    )
    return page.write(out, title, command)


def _said(watch: Watch, series: Series) -> tuple[str, ...]:
    """Return the time that the page is about, and how late the records are."""
    step = in_minutes(series.calendar.step)
    found = [] if watch.alarms else ["No alarm."]
    late = f"the last ended {watch.late} before"
    if watch.late_hours < 0:
        late = f"the last ends {-watch.late_hours:.1f} hours later"
    late = f"State at {watch.now:%Y-%m-%d %H:%M} UTC. Records have steps of {step}; {late}."
    chance, n_odd = watch.n_judged / watch.one_in, int(watch.anomalies["readings"].sum())
    odd = (
        f"{counted(watch.n_judged, 'reading')} of the last day were judged; where nothing is "
        f"wrong, {chance:.2g} would be listed as anomalies by chance; "
        + (f"{n_odd} are, in {counted(len(watch.anomalies), 'spell')}." if n_odd else "none is.")
    )
    unscored = "No forecast is scored yet: stforecast update does so as records come."
    return (*found, late, odd, *(() if _scored(watch) else (unscored,)))


def _broken(watch: Watch) -> Table:
    rows = [
        {"cell": str(row["cell"]), "state": row["state"], "since": str(row["since"])[:16],
         "MASE, 7 days": number(row["mase_7d"]), "missing": share(row["missing"])}
        for _, row in watch.broken.head(MOST_ROWS).iterrows()
    ]  # fmt: skip
    notes = [
        "silent: no readings. zero, stuck: one value. wild: many readings as rare as anomalies.",
        "Broken counters are not learnt. drifted: another level or distribution, which is learnt.",
        *rest(MOST_ROWS, len(watch.broken), "monitor.csv"),
    ]
    return Table("Counters that are not fine", rows, notes, opens="cell", marks="state")


def _anomalies(watch: Watch, units: str) -> Table:
    rows = [
        {"cell": str(row["cell"]), "from": str(row["begin"])[:16], "hours": number(row["hours"]),
         "seen": number(row["seen"]), "expected": number(row["expected"]),
         "bounds": f"{number(row['lower'])} to {number(row['upper'])}",
         "one in": "{:,.0f}".format(float(f"{row['one_in']:.2g}")),
         "neighbours too": f"{row['neighbours']} of {row['of']}"}
        for _, row in watch.anomalies.head(MOST_ROWS).iterrows()
    ]  # fmt: skip
    notes = [
        f"seen, expected, bounds: of the rarest reading{_in(units)}. one in: how many readings "
        "have one as far.",
        "neighbours too: nearest cells (or others) with anomalies at the same time.",
        *rest(MOST_ROWS, len(watch.anomalies), "anomalies.csv"),
    ]
    return Table("Anomalies of the last day, the rarest first", rows, notes, opens="cell")


def _in(units: str) -> str:
    return "" if units == "1" else f", in {units}"


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
    notes = [
        "MASE: mean absolute error, divided by the error of the value one day before in training."
    ]
    notes.append(f"bias: mean of forecast less value{_in(units)}.")
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
        for _, row in log.tail(28).iloc[::-1].iterrows()
    ]
    return Table("Updates, the last first", rows)


def _cells(worst: pd.DataFrame, units: str) -> Table:
    rows = [
        {
            "cell": str(cell),
            "state": row["state"] or "-",
            "MASE, 7 days": number(row["mase_7d"]),
            "bias, 7 days": number(row["bias_7d"]),
            "coverage, 7 days": share(row["coverage_7d"]),
            "missing": share(row["missing"]),
            "drift": number(row["drift"]),
        }
        for cell, row in worst.head(MOST_ROWS).iterrows()
    ]
    notes = [
        f"bias: mean of forecast less value{_in(units)}. missing: of the last day. drift: distance "
        "of Kolmogorov and Smirnov, from 0 to 1."
    ]
    notes += rest(MOST_ROWS, len(worst), "monitor.csv")
    caption = "Cells, those that are not fine first, then the highest MASE"
    return Table(caption, rows, notes, opens="cell", marks="state")
