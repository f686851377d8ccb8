"""Plans: weeks of months ahead with the dates of passed thresholds, and which cells can sleep."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from data_prep.base.errors import counted
from data_prep.base.registry import listed
from data_prep.readers.units import with_unit
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, add_legend, date_axis, panels, png_address
from stforecast.bench.tables import number
from stforecast.data.series import Series
from stforecast.forecasting.months import DATES, Months
from stforecast.forecasting.planning import LOADS
from stforecast.forecasting.sleep import SleepPlan
from stforecast.report.section import Picture, Section
from stforecast.report.sections.coming import time_text
from stforecast.report.tables import MOST_ROWS, Table, rest, share

DRAWN = 6
"""Cells and groups in the figure."""


@listed
def months_ahead(months: Months, series: Series) -> Section:
    """Busy hours of weeks, and dates of passing thresholds."""
    passing, weeks = months.passing, months.forecast.index
    last = -months.side.sign * months.forecast.iloc[-1]
    order = last.sort_values(kind="stable").index if passing is None else passing.index
    quantity = with_unit(series.service, series.units)
    coverage = f"{100 * months.interval.lower.attrs['coverage']:.0f} %"
    limits = " and thresholds" if passing is not None else ""
    shown = f"Observed weeks, forecasts, bounds of {coverage}{limits}."
    grown = " and the growth that was given" if "growth" in months.parts else ""
    parts = " and ".join(["level", *(part for part in months.parts if part != "growth")])
    claims = [
        f"The {'busiest' if months.side is LOADS else 'slowest'} hour of each week: {quantity}. "
        f"Forecasts are for {len(weeks)} weeks from {weeks[0]:%d %B %Y}, after "
        f"{len(months.past)} weeks of history.",
        f"They follow the {parts} of the history{grown}. Bounds of {coverage} follow from "
        f"errors of past forecasts, tested {counted(months.tested, 'week')} ahead.",
    ]
    groups = [] if months.groups is None else months.groups.labels
    parted = {"Groups": order[order.isin(groups)], "Cells": order[~order.isin(groups)]}
    return Section(
        f"Until {weeks[-1]:%B %Y}",
        claims,
        [_table(months, name, labels) for name, labels in parted.items() if len(labels)],
        picture=Picture("Weeks", _picture(months, order[:DRAWN], quantity), shown),
    )


def _table(months: Months, name: str, labels: pd.Index) -> Table:
    notes = rest(MOST_ROWS, len(labels), "the written tables")
    if months.passing is not None and name == "Cells":
        notes.append(
            "probability: of passing the threshold in any week. 50 % by: first day of the week by "
            "whose end it is passed with this probability; a dash is later than the forecast."
        )
    first = "most probable" if months.passing is not None else "worst"
    rows = [{name.lower()[:-1]: str(one), **_row(months, str(one))} for one in labels[:MOST_ROWS]]
    return Table(f"{name}, the {first} first", rows, notes)


def _row(found: Months, label: str) -> dict[str, str]:
    lower, upper = (number(bound[label].iloc[-1]) for bound in found.interval)
    passing = {} if found.passing is None else found.passing.loc[label].to_dict()
    row = {"probability": share(passing["probability"])} if passing else {}
    row |= {
        "last week": number(found.past[label].iloc[-1]),
        "at the end": number(found.forecast[label].iloc[-1]),
        "bounds then": f"{lower} to {upper}",
    }
    if passing:
        row["threshold"] = number(passing["threshold"])
        row |= {f"{p} % by": str(passing[f"date_{p}"] or "-") for p in DATES}
    return row


def _picture(found: Months, labels: pd.Index, quantity: str) -> str:
    """Draw some cells and groups; return a `data:` address."""
    columns = min(3, len(labels))
    figure, axes = panels(TWO_COLUMNS, 2.0, len(labels), n_columns=columns, sharex=True)
    for place, (ax, label) in enumerate(zip(axes, labels, strict=True)):
        _draw(ax, found, str(label))
        if place % columns == 0:
            ax.set_ylabel(quantity, fontsize=SMALL)
        if place < len(labels) - columns:
            ax.set_xlabel("")
    add_legend(figure)
    return png_address(figure, 160)


def _draw(ax: Axes, found: Months, label: str) -> None:
    past, ahead = found.past[label].iloc[-3 * len(found.forecast) :], found.forecast[label]
    lower, upper = (bound[label].to_numpy() for bound in found.interval)
    before, after = (table.index.to_numpy() for table in (past, ahead))
    ax.plot(before, past, color="black", linewidth=1.0, label="observed")
    ax.plot(after, ahead, color=COLORS[0], linewidth=1.4, label="forecast")
    ax.fill_between(after, lower, upper, color=COLORS[0], alpha=0.2, linewidth=0, label="bounds")
    shown = [past.max(), *upper]
    if found.passing is not None:
        shown.append(found.passing["threshold"][label])
        ax.axhline(shown[-1], color="0.4", linestyle=":", linewidth=0.9, label="threshold")
    ax.set_ylim(0, 1.08 * float(np.nanmax(shown)) if np.isfinite(shown).any() else 1)
    ax.set_title(label, fontsize=SMALL, loc="left")
    date_axis(ax, "week", most_ticks=4)


@listed
def asleep(sleep: SleepPlan, series: Series) -> Section:
    """Groups and cells that can sleep, and the energy saved."""
    table, quantity = sleep.table, with_unit(series.service, series.units)
    claims = [
        f"{len(table)} of {counted(len(sleep.asleep), 'cell')} can sleep, which saves "
        f"{share(sleep.energy_saved)} of the energy of all cells in "
        f"{counted(sleep.asleep.shape[1], 'step')}, if {sleep.power}.",
        f"A cell sleeps while its own {quantity} stays below {number(sleep.sleep.below)} and its "
        "awake neighbours have room for all loads that move to them. "
        f"{sleep.promise.capitalize()}.",
    ]
    tables = [_asleep_groups(sleep), _asleep_cells(table, quantity)] if len(table) else []
    return Section("Cells that can sleep", claims, tables)


def _asleep_groups(sleep: SleepPlan) -> Table:
    """Return the groups with sleeping cells, those with the most hours first."""
    sizes = np.bincount(sleep.groups)[sleep.groups]
    parts = [own for _, own in sleep.table.groupby("group", sort=False)]
    parts.sort(key=lambda own: own["hours"].sum(), reverse=True)
    rows = [
        {
            "group": str(own["group"].iloc[0]),
            "can sleep": f"{len(own)} of {counted(sizes[own.index[0]], 'cell')}",
            "most at once": str(sleep.asleep[own.index].sum(axis=0).max()),
            "from": time_text(own["begin"].min()),
            "to": time_text(own["end"].max()),
            "hours of all": number(own["hours"].sum()),
            "lowest probability": share(own["probability"].min()),
        }
        for own in parts[:MOST_ROWS]
    ]
    notes = rest(MOST_ROWS, len(parts), "the written table")
    return Table("Groups, the longest asleep first", rows, notes)


def _asleep_cells(table: pd.DataFrame, quantity: str) -> Table:
    """Return the spans of cells, the longest first."""
    order = table.sort_values(["hours", "probability"], ascending=False, kind="stable")
    rows = [
        {
            "cell": str(row["cell"]),
            "group": str(row["group"]),
            "from": time_text(row["begin"]),
            "to": time_text(row["end"]),
            "hours": number(row["hours"]),
            "probability": share(row["probability"]),
            "moved load": number(row["moved_load"]),
        }
        for _, row in order.head(MOST_ROWS).iterrows()
    ]
    notes = [
        "probability: that both conditions hold for the whole span, on the other half.",
        f"moved load: mean {quantity} that the neighbours carry.",
        *rest(MOST_ROWS, len(order), "the written table"),
    ]
    return Table("Cells, the longest asleep first", rows, notes)
