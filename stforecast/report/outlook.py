"""First section of a page: the coming span of each cell, its plan, and passed thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import counted, some
from data_prep.readers.units import with_unit
from stforecast.bench.tables import number
from stforecast.comparison.errors import clock_of
from stforecast.data.dates import in_words
from stforecast.forecasting.planning import SPEEDS, Side, by_urgency, chance_column
from stforecast.plots.cell_map import find_places
from stforecast.report.section import Section, looks, map_of, map_value
from stforecast.report.tables import (
    Arrays,
    Table,
    axis_times,
    axis_title,
    rest,
    share,
)

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.outlook import Outlook

MOST_ROWS = 50
"""Rows of a table, which prints; files have the rest."""


def outlook_section(
    series: Series,
    found: Outlook,
    located: xr.Dataset,
    cube: xr.Dataset | None,
    arrays: Arrays,
    room: int,
) -> Section:
    """Gather what the page shows of the steps after a history.

    `located` has `lon` and `lat` of the cells, if they are known; the cube is None if the data are
    gone. The page's `arrays` grow; the history is cut for the `room`, the number of
    further values that the page can hold.
    """
    places, forecast = find_places(located, cube), found.forecast
    unit = "" if series.units == "1" else f", {series.units}"
    quantity = with_unit(series.service, series.units)
    length = in_words(len(forecast), series.calendar.step).removeprefix("1 ")
    plan, side = _sorted(found.plan, found.side), found.side
    # Three lengths of the forecast and three days at least, if there is room.
    shown = max(3 * len(forecast), int(pd.Timedelta("3D") / series.calendar.step))
    shown = max(1, min(shown, room // len(series.cells) - 3 * len(forecast)))
    times = pd.DatetimeIndex(series.zoned(series.times[-shown:]).append(forecast.index))
    clock = clock_of(series.calendar.time_zone or "")
    charts = {
        "ahead": True,
        "cells": [str(cell) for cell in forecast.columns],
        "methods": looks({"forecast": 0}),
        "quantity": quantity,
        "clock": axis_title(clock, times),
        "first": list(forecast.columns).index(plan.index[0]),
        "map": map_of(places, arrays),
        "values": _values(found, quantity, unit, arrays),
        "series": _lines(series, found, times, arrays),
    }
    begin, end = (f"{forecast.index[i]:%A %d %B %Y %H:%M}" for i in (0, -1))
    cells = counted(forecast.shape[1], "cell")
    when = f"Forecasts of {series.service} of {cells}, {begin} to {end}, {clock}."
    of_groups = None if found.sums is None else _groups(found.sums)
    tables = [*filter(None, (of_groups, _passing(plan, side, series), _plan(plan, side)))]
    claims = (when, *endless(found), *_said(found, length))
    return Section(f"The coming {length}", claims, tables, charts, places.note)


def _values(found: Outlook, quantity: str, unit: str, arrays: Arrays) -> list[dict[str, object]]:
    """Return the values by cell that the map can show; it begins with the first."""
    plan, side = found.plan, found.side

    def shown(title: str, column: str, **how: Any) -> dict[str, object]:
        return map_value(arrays, title, [plan[column].to_numpy()], **how)

    values = []
    if "threshold" in plan:
        if (name := chance_column(plan)) is not None:
            title = f"probability of values {side.beyond} the threshold"
            values.append(shown(title, name, share=True))
        headroom = f"headroom: from the {side.extreme} forecast to the threshold{unit}"
        values.append(shown(headroom, "headroom", middle=0.0))
    return [*values, shown(f"{side.extreme} forecast of {quantity}", side.worst)]


def _sorted(plan: pd.DataFrame, side: Side) -> pd.DataFrame:
    """Sort cells by urgency or, without a threshold, by the worst."""
    if "threshold" in plan:
        return by_urgency(plan, side)
    return plan.sort_values(side.worst, ascending=side is SPEEDS, kind="stable")


def endless(found: Outlook) -> tuple[str, ...]:
    """Say which cells have infinite bounds, which are not drawn."""
    lower, upper = found.interval or (found.forecast, found.forecast)
    names = lower.columns[np.isinf((upper - lower).to_numpy()).any(axis=0)]
    n = counted(len(names), "cell")
    said = f"{n} with infinite bounds, as too few errors are known: {some(names)}."
    return (said,) if len(names) else ()


def _said(found: Outlook, length: str) -> tuple[str, ...]:
    """Return the plan's sentence on the threshold, if there is one."""
    plan, side = found.plan, found.side
    if "threshold" not in plan:
        first = _sorted(plan, side).iloc[0]
        worst, at = number(first[side.worst]), _time(first[f"{side.worst}_time"])
        return (f"{side.extreme.capitalize()} forecast: {worst} in cell {first.name}, {at}.",)
    n_beyond = int((plan[f"steps_{side.beyond}"] > 0).sum())
    text = f"The forecast is {side.beyond} the threshold in {n_beyond} of {len(plan)} cells"
    if (name := chance_column(plan)) is None:
        return (f"{text}; no probabilities, as not all steps have bounds.",)
    if name == "probability":
        expected = plan[name].sum()
        text += (
            f"; {expected:.1f} are expected {side.beyond} it at least once in the coming {length}"
        )
    return (f"{text}.",)


def _passing(plan: pd.DataFrame, side: Side, series: Series) -> Table | None:
    """Return the cells that may pass their threshold; None without probabilities."""
    if "threshold" not in plan or (name := chance_column(plan)) is None:
        return None
    likely = plan[plan[name] >= 0.01]
    step, minute = series.calendar.step, pd.Timedelta("1min")
    rows = [
        {
            "cell": str(cell),
            "probability" if name == "probability" else "probability at one step": share(row[name]),
            "likeliest at": _time(row["likeliest_time"]),
            f"expected time {side.beyond}": "{} h {:02} min".format(
                *divmod(round(row[f"expected_steps_{side.beyond}"] * step / minute), 60)
            ),
            f"{side.extreme} forecast": number(row[side.worst]),
            "threshold": number(row["threshold"]),
        }
        for cell, row in likely.head(MOST_ROWS).iterrows()
    ]
    caption = "Cells that may pass their threshold, the most probable first"
    unknown = plan.index[plan[name].isna() & (plan[f"steps_{side.beyond}"] > 0)]
    listed = f"Forecast {side.beyond} it, without bounds: {some(unknown, 9)}."
    notes = [listed] if len(unknown) else []
    if not rows:
        return Table(caption, [{"cell": "none with a probability of 1 % or more"}], notes)
    notes += rest(MOST_ROWS, len(likely), "the table of the plan")
    if name == "probability":
        notes.append(
            f"probability: of values {side.beyond} the threshold at least once in the span. At "
            "each step it follows from the bounds; over the span, errors go together as in the "
            f"tested forecasts. expected time {side.beyond}: the sum of the steps' probabilities. "
            "likeliest at: begin of the step with the highest probability."
        )
    return Table(caption, rows, notes, opens="cell")


def _groups(found: Outlook) -> Table:
    """Return the plan of groups, the largest first, at most `MOST_ROWS` of them."""
    plan, side, groups = found.plan, found.side, found.groups
    assert groups is not None
    rows, name = [], chance_column(plan)
    for i in np.argsort(-groups.sizes, kind="stable"):
        label, row, size = plan.index[i], plan.iloc[i], groups.sizes[i]
        at = row[f"{side.worst}_time"]
        one = {
            "group": str(label),
            "cells": str(size),
            f"{side.worst} at": _time(at),
            side.worst: number(row[side.worst]),
        }
        if found.interval is not None and not pd.isna(at):
            lower, upper = (number(bound[label][at]) for bound in found.interval)
            one["bounds then"] = f"{lower} to {upper}"
        if "threshold" in plan:
            one |= {"threshold": number(row["threshold"]), "headroom": number(row["headroom"])}
        if name is not None:
            one["probability"] = share(row[name])
        rows.append(one)
    notes = rest(MOST_ROWS, len(rows), "the table of the plan")
    if found.coverage:
        held = ", ".join(f"{level} {share(of)}" for level, of in found.coverage.items())
        notes.append(
            "Forecasts of groups are the sums of their cells'; bounds follow from the errors of "
            f"these sums in the tested forecasts. They held: {held}."
        )
    return Table("Groups", rows[:MOST_ROWS], notes)


def _plan(plan: pd.DataFrame, side: Side) -> Table:
    """Return the plan of the cells, at most `MOST_ROWS` of them."""
    rows = [
        {
            "cell": str(cell),
            "busy hour": _time(row["busy_hour"]),
            "mean in it": number(row["busy_hour_mean"]),
            side.worst: number(row[side.worst]),
            f"{side.worst} at": _time(row[f"{side.worst}_time"]),
            **({"headroom": number(row["headroom"])} if "headroom" in plan else {}),
        }
        for cell, row in plan.head(MOST_ROWS).iterrows()
    ]
    notes = rest(MOST_ROWS, len(plan), "the table of the plan")
    return Table("Plan", rows, notes, opens="cell")


def _time(time: Any) -> str:
    return "-" if pd.isna(time) else f"{time:%a %d %b %H:%M}"


def _lines(
    series: Series, found: Outlook, times: pd.DatetimeIndex, arrays: Arrays
) -> dict[str, object]:
    """Return the history, the forecasts, bounds and thresholds of each cell at the times shown."""
    past = series.values[len(found.forecast) - len(times) :].T
    bounds = {} if found.interval is None else found.interval._asdict()
    threshold = found.plan.get("threshold")
    return {
        "times": axis_times(times),
        "observed": arrays.rows(past),
        "forecast": arrays.rows(found.forecast.to_numpy().T),
        **{name: arrays.rows(table.to_numpy().T) for name, table in bounds.items()},
        "threshold": None if threshold is None else arrays.floats(threshold.to_numpy()),
    }
