"""Spans in which forecasts are beyond their thresholds, of groups and of cells."""

from __future__ import annotations

import numpy as np
import pandas as pd

from data_prep.base.registry import listed
from data_prep.readers.units import with_unit
from stforecast.bench.tables import number
from stforecast.data.series import Series
from stforecast.forecasting.outlook import Outlook
from stforecast.report.section import Section
from stforecast.report.tables import MOST_ROWS, Table, rest, share
from stforecast.service.cells import spells_of


@listed
def exceedances(outlook: Outlook, series: Series) -> Section | None:
    """Spans in which forecasts are beyond their thresholds."""
    if "threshold" not in outlook.plan:
        return None
    step, beyond = series.calendar.step, outlook.side.beyond
    tables = [_table(outlook, "cell", step)]
    if outlook.sums is not None:
        tables.insert(0, _table(outlook.sums, "group", step))
    quantity = with_unit(series.service, series.units)
    claims = [f"Consecutive steps whose forecast of {quantity} is {beyond} the threshold."]
    if outlook.chances is not None:
        claims.append("The tables above also have the probabilities of all others.")
    tables = [table for table in tables if table.rows]
    return Section(f"Spans {beyond} the threshold", claims, tables) if tables else None


def _table(found: Outlook, name: str, step: pd.Timedelta) -> Table:
    """Return the spans of all cells or groups, the most probable and then the longest first."""
    side, limits = found.side, found.plan["threshold"].to_numpy()
    values, labels = found.forecast.to_numpy(), found.forecast.columns
    times = pd.DatetimeIndex(found.forecast.index)
    unknown = np.full(values.shape, np.nan)
    chances = unknown if found.chances is None else found.chances.to_numpy()
    known = ["highest probability"] if found.chances is not None else []
    spans = []
    for i, begin, end in spells_of(side.sign * (values - limits) > 0):
        chance = chances[begin:end, i].max()
        worst = side.sign * (side.sign * values[begin:end, i]).max()
        row = {name: str(labels[i]), **dict.fromkeys(known, share(chance))}
        row["from"] = f"{times[begin]:%Y-%m-%d %H:%M}"
        row["to"] = f"{times[end - 1] + step:%Y-%m-%d %H:%M}"
        row["hours"] = number((end - begin) * step / pd.Timedelta("1h"))
        row |= {f"{side.extreme} forecast": number(worst), "threshold": number(limits[i])}
        spans.append(((-np.nan_to_num(chance).round(3), begin - end), row))
    rows = [row for _, row in sorted(spans, key=lambda span: span[0])]
    notes = rest(MOST_ROWS, len(rows), "the table of forecasts")
    notes += [f"{one}: of one step to be {side.beyond} the threshold." for one in known]
    first = "most probable" if known else "longest"
    return Table(f"{name.capitalize()}s, the {first} first", rows[:MOST_ROWS], notes, name)
