"""First section of a page: the coming span of each cell, its plan, and passed thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import counted, some
from data_prep.readers.units import with_unit
from stforecast.comparison.errors import clock_of
from stforecast.data.dates import in_words
from stforecast.forecasting.planning import SPEEDS, Side, by_urgency, chance_column
from stforecast.plots.cell_map import find_places
from stforecast.report.section import looks, map_of, map_value
from stforecast.report.tables import Arrays, Table, axis_times, axis_title, number, share

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.outlook import Outlook

SHOWN = 3
"""Length of the history that is drawn, in lengths of the forecast; three days at least."""

MOST_ROWS = 50
"""Rows of a table, which prints; the rest stands in plan.csv."""

LEAST = 0.01
"""Probability below which a cell is not listed."""

FORMAT = "%a %d %b %H:%M"

RULE = (
    "probability: of values {beyond} the threshold at least once in the span. At each step it "
    "follows from the bounds; over the span, errors go together as in the tested forecasts. "
    "expected time {beyond}: the sum of the steps' probabilities. likeliest at: begin of the step "
    "with the highest probability."
)


@dataclass(frozen=True)
class OutlookSection:
    """The coming span on a page; `charts` are the numbers of `page/*.js`, `alarms` come first."""

    name: str
    claims: tuple[str, ...]
    tables: tuple[Table, ...]
    about_map: str
    charts: dict[str, Any]
    alarms: tuple[str, ...] = ()


def outlook_section(
    series: Series,
    found: Outlook,
    located: xr.Dataset,
    cube: xr.Dataset | None,
    arrays: Arrays,
    room: int,
) -> OutlookSection:
    """Gather what the page shows of the steps after a history.

    `located` has `lon` and `lat` of the cells, if they are known; the cube is None if the data are
    gone. `arrays`, those of the page, grow; the history is cut for the `room`, the number of
    further values that the page can hold.
    """
    places, forecast = find_places(located, cube), found.forecast
    unit = "" if series.units == "1" else f", {series.units}"
    quantity = with_unit(series.service, series.units)
    length = in_words(len(forecast), series.calendar.step).removeprefix("1 ")
    plan, side = _sorted(found.plan, found.side), found.side
    times = _shown(series, forecast, room // len(series.cells))
    charts = {
        "ahead": True,
        "cells": [str(cell) for cell in forecast.columns],
        "methods": looks({"forecast": 0}),
        "quantity": quantity,
        "clock": axis_title(clock_of(series.calendar.time_zone or ""), times),
        "first": list(forecast.columns).index(plan.index[0]),
        "map": map_of(places, arrays),
        "values": _values(found, quantity, unit, arrays),
        "series": _lines(series, found, times, arrays),
    }
    claims = (_when(forecast, series), *endless(found), *_said(found, length))
    tables = tuple(filter(None, (_passing(plan, side, series), _plan(plan, side))))
    return OutlookSection(f"The coming {length}", claims, tables, places.note, charts)


def _values(found: Outlook, quantity: str, unit: str, arrays: Arrays) -> list[dict[str, Any]]:
    """Return the values by cell that the map can show, the first of which it begins with."""
    plan, side = found.plan, found.side

    def shown(title: str, column: str, **how: Any) -> dict[str, Any]:
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


def _when(forecast: pd.DataFrame, series: Series) -> str:
    begin, end = (f"{forecast.index[i]:%A %d %B %Y %H:%M}" for i in (0, -1))
    cells = counted(forecast.shape[1], "cell")
    zone = clock_of(series.calendar.time_zone or "")
    return f"Forecasts of {series.service} of {cells}, {begin} to {end}, {zone}."


def endless(found: Outlook) -> tuple[str, ...]:
    """Say which cells have infinite bounds, which are not drawn."""
    lower, upper = found.interval or (found.forecast, found.forecast)
    names = lower.columns[np.isinf((upper - lower).to_numpy()).any(axis=0)]
    n = counted(len(names), "cell")
    said = f"{n} with infinite bounds, as too few errors are known: {some(names)}."
    return (said,) if len(names) else ()


def _said(found: Outlook, length: str) -> tuple[str, ...]:
    """Return what the plan says of the threshold, if there is one."""
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
    likely = plan[plan[name] >= LEAST]
    rows = [
        {
            "cell": str(cell),
            "probability" if name == "probability" else "probability at one step": share(row[name]),
            "likeliest at": f"{row['likeliest_time']:{FORMAT}}",
            f"expected time {side.beyond}": _duration(row[f"expected_steps_{side.beyond}"], series),
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
    rule = RULE.format(beyond=side.beyond)
    notes += [*_rest(len(likely)), *([rule] if name == "probability" else [])]
    return Table(caption, rows, notes, opens="cell")


def _rest(n: int) -> list[str]:
    return [f"{MOST_ROWS} of {n} cells; all are in the table of the plan."] if n > MOST_ROWS else []


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
    return Table("Plan", rows, _rest(len(plan)), opens="cell")


def _time(time: Any) -> str:
    return "-" if pd.isna(time) else f"{time:{FORMAT}}"


def _duration(steps: float, series: Series) -> str:
    """Return a number of steps as hours and minutes."""
    minutes = round(steps * series.calendar.step / pd.Timedelta("1min"))
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _shown(series: Series, forecast: pd.DataFrame, room: int) -> pd.DatetimeIndex:
    """Return the times of the end of the history and of the forecast that fit into the room."""
    n = len(forecast)
    shown = max(SHOWN * n, int(pd.Timedelta("3D") / series.calendar.step))
    past = series.times[-max(1, min(shown, room - 3 * n)) :]
    return pd.DatetimeIndex(series.zoned(past).append(forecast.index))


def _lines(
    series: Series, found: Outlook, times: pd.DatetimeIndex, arrays: Arrays
) -> dict[str, Any]:
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
