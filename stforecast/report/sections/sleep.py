"""Which cells can sleep: the groups, and the span of each cell."""

from __future__ import annotations

import numpy as np
import pandas as pd

from data_prep.base.errors import counted
from data_prep.base.registry import listed
from data_prep.readers.units import with_unit
from stforecast.bench.tables import number
from stforecast.data.series import Series
from stforecast.forecasting.sleep import SleepPlan
from stforecast.report.section import Section
from stforecast.report.sections.coming import time_text
from stforecast.report.tables import MOST_ROWS, Table, rest, share


@listed
def asleep(sleep: SleepPlan, series: Series) -> Section:
    """Groups and cells that can sleep, and the energy saved."""
    table, quantity = sleep.table, with_unit(series.service, series.units)
    claims = [
        f"{len(table)} of {counted(len(sleep.asleep), 'cell')} can sleep, which saves "
        f"{share(sleep.energy_saved)} of the energy of all cells in "
        f"{counted(sleep.asleep.shape[1], 'step')}.",
        f"A cell sleeps while its own {quantity} stays below {number(sleep.sleep.below)} and its "
        "awake neighbours have room for all loads that move to them.",
    ]
    tables = [_groups(sleep), _cells(table, quantity)] if len(table) else []
    return Section("Cells that can sleep", claims, tables)


def _groups(sleep: SleepPlan) -> Table:
    """Return the groups with sleeping cells, those with the most hours first."""
    sizes = np.bincount(sleep.groups)[sleep.groups]
    parts = [own for _, own in sleep.table.groupby("group", sort=False)]
    parts.sort(key=lambda own: own["hours"].sum(), reverse=True)
    rows = [
        {
            "group": str(own["group"].iloc[0]),
            "asleep": f"{len(own)} of {counted(sizes[own.index[0]], 'cell')}",
            "from": time_text(own["begin"].min()),
            "to": time_text(own["end"].max()),
            "hours of all": number(own["hours"].sum()),
            "lowest probability": share(own["probability"].min()),
        }
        for own in parts[:MOST_ROWS]
    ]
    notes = rest(MOST_ROWS, len(parts), "the written table")
    return Table("Groups, the longest asleep first", rows, notes)


def _cells(table: pd.DataFrame, quantity: str) -> Table:
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
        "probability: that both conditions hold for the whole span.",
        f"moved load: mean {quantity} that the neighbours carry.",
        *rest(MOST_ROWS, len(order), "the written table"),
    ]
    return Table("Cells, the longest asleep first", rows, notes)
