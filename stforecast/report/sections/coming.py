"""The coming span of each cell, its plan, and passed thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from data_prep.base.errors import counted, some
from data_prep.base.registry import listed
from data_prep.readers.units import with_unit
from stforecast.bench.curves import HUES
from stforecast.bench.tables import number
from stforecast.comparison.errors import clock_of
from stforecast.data.dates import divides_a_day, in_words
from stforecast.forecasting.planning import SPEEDS, Side, by_urgency, chance_column
from stforecast.plots.cell_map import Places
from stforecast.report.section import Section, looks, map_of, map_value
from stforecast.report.tables import MOST_ROWS, Arrays, Table, axis_times, axis_title, rest, share
from stforecast.service.cells import spells_of

if TYPE_CHECKING:  # They import torch.
    from stforecast.data.series import Series
    from stforecast.forecasting.model import FittedModel
    from stforecast.forecasting.outlook import Outlook

LIKELY = 0.01
"""Lowest probability of a cell that may pass its threshold."""

MOST_EXPLAINED = 20
"""Cells whose forecasts a page explains, the first of the plan; each costs up to 0.2 s."""


@listed
def coming(
    series: Series,
    outlook: Outlook,
    places: Places,
    arrays: Arrays,
    room: int,
    model: FittedModel | None = None,
) -> Section:
    """Forecasts, and the plan of groups and cells, with a map."""
    found, forecast = outlook, outlook.forecast
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
        "groups": [] if found.sums is None else list(found.sums.forecast),
        "methods": looks({"forecast": 0}),
        "quantity": quantity,
        "clock": axis_title(clock, times),
        "first": list(forecast.columns).index(plan.index[0]),
        "map": map_of(places, arrays),
        "values": _values(found, quantity, unit, arrays),
        "series": _lines(series, found, times, arrays),
        "why": None if model is None else _reasons(model, series, plan, side, arrays),
    }
    begin, end = (f"{forecast.index[i]:%A %d %B %Y %H:%M}" for i in (0, -1))
    cells = counted(forecast.shape[1], "cell")
    when = f"Forecasts of {series.service} of {cells}, {begin} to {end}, {clock}."
    of_groups = None if found.sums is None else _groups(found.sums)
    tables = [*([of_groups] if of_groups else []), _plan(series, found, plan)]
    claims = (when, *endless(found), *_said(found, length))
    alarms = unfounded(series, pd.DatetimeIndex(forecast.index))
    return Section(f"The coming {length}", claims, tables, charts, places.note, alarms=alarms)


def unfounded(series: Series, ahead: pd.DatetimeIndex) -> tuple[str, ...]:
    """Say how many steps ahead are at times of day that the history has no value of."""
    times = pd.DatetimeIndex(series.zoned(series.times))[np.isfinite(series.values).any(axis=1)]
    n = int((~pd.Index(ahead.time).isin(times.time)).sum())
    said = f"{n} of {counted(len(ahead), 'step')} are at times of day without any value so far"
    even = divides_a_day(series.calendar.step)
    return (f"{said}: their forecasts have no basis.",) if n and even else ()


def _values(found: Outlook, quantity: str, unit: str, arrays: Arrays) -> list[dict[str, object]]:
    """Return the values by cell that the map can show; it begins with the first."""
    plan, side = found.plan, found.side

    def shown(title: str, column: str, **how: Any) -> dict[str, object]:
        return map_value(arrays, title, [plan[column].to_numpy()], **how)

    values = []
    if "threshold" in plan:
        name = chance_column(plan)
        if name is not None and plan[name].round(3).nunique() > 1:  # Else it is of one colour.
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
        worst, at = number(first[side.worst]), time_text(first[f"{side.worst}_time"])
        return (f"{side.extreme.capitalize()} forecast: {worst} in cell {first.name}, {at}.",)
    n_beyond = int((plan[f"steps_{side.beyond}"] > 0).sum())
    where = f"in {n_beyond} of" if n_beyond else "in none of"
    text = f"The forecast is {side.beyond} the threshold {where} {counted(len(plan), 'cell')}"
    if (name := chance_column(plan)) is None:
        return (f"{text}; no probabilities, as not all steps have bounds.",)
    if not (plan[name] >= LIKELY).any():
        return (f"{text}; none has a probability of {LIKELY:.0%} or more.",)
    if name == "probability":
        expected = plan[name].sum()
        text += (
            f"; {expected:.1f} are expected {side.beyond} it at least once in the coming {length}"
        )
    return (f"{text}.",)


def _groups(found: Outlook) -> Table:
    """Return the plan of groups, the largest first, at most `MOST_ROWS` of them."""
    groups = found.groups
    assert groups is not None
    order = np.argsort(-groups.sizes, kind="stable").tolist()
    rows = [
        {"group": groups.labels[i], "cells": str(groups.sizes[i]), **_planned(found, i)}
        for i in order[:MOST_ROWS]
    ]
    notes = rest(MOST_ROWS, len(order), "the table of the plan")
    if found.coverage:
        held = ", ".join(f"{level} {share(of)}" for level, of in found.coverage.items())
        notes.append(
            "Forecasts of groups are the sums of their cells'; bounds follow from the errors of "
            f"these sums in the tested forecasts. They held: {held}."
        )
    return Table("Groups", rows, notes, opens="group")


def _plan(series: Series, found: Outlook, plan: pd.DataFrame) -> Table:
    """Return the sorted plan of the cells, at most `MOST_ROWS` of them."""
    side, name = found.side, chance_column(plan)
    step, minute = series.calendar.step, pd.Timedelta("1min")
    rows = []
    for i in found.plan.index.get_indexer(plan.index[:MOST_ROWS]).tolist():
        row, one = found.plan.iloc[i], _planned(found, i)
        if name is not None:
            expected = row[f"expected_steps_{side.beyond}"] * step / minute
            hours = "{} h {:02} min".format(*divmod(round(expected), 60)) if expected >= 0 else "-"
            one[f"time {side.beyond}"] = hours
        rows.append({"cell": str(found.plan.index[i]), **one})
    notes = rest(MOST_ROWS, len(plan), "the table of the plan")
    if found.interval is not None:
        coverage = found.interval.upper.attrs["coverage"]
        notes.append(f"bounds then: the {coverage:.0%} interval at the time before them.")
    if name is not None:
        unknown = plan.index[plan[name].isna() & (plan[f"steps_{side.beyond}"] > 0)]
        notes += [f"Forecast {side.beyond}, without bounds: {some(unknown, 9)}."] * len(unknown[:1])
        notes.append(f"time {side.beyond}: expected, the sum of the steps' probabilities.")
    if name == "probability":
        notes.append(
            f"probability: of values {side.beyond} the threshold at least once in the span. At "
            "each step it follows from the bounds; over the span, errors go together as in the "
            "tested forecasts."
        )
    caption = "Plan" if name is None else "Plan, the most probable to pass the threshold first"
    return Table(caption, rows, notes, opens="cell")


def _planned(found: Outlook, place: int) -> dict[str, str]:
    """Return what a row of the plan says, with the bounds at the time of the worst forecast."""
    plan, side, name = found.plan, found.side, chance_column(found.plan)
    row, at = plan.iloc[place], plan.iloc[place][f"{side.worst}_time"]
    one = {} if name is None else {name.replace("_", " "): share(row[name])}
    if not plan["busy_hour_mean"].equals(plan[side.worst]):  # Steps are shorter than an hour.
        one |= {"busy hour": time_text(row["busy_hour"])}
        one |= {"mean in it": number(row["busy_hour_mean"])}
    one |= {side.worst: number(row[side.worst]), f"{side.worst} at": time_text(at)}
    if found.interval is not None and not pd.isna(at):
        lower, upper = (number(bound.iloc[:, place][at]) for bound in found.interval)
        one["bounds then"] = f"{lower} to {upper}"
    if "threshold" in plan:
        own = plan["threshold"].nunique() > 1
        one |= {"threshold": number(row["threshold"])} if own else {}
        one["headroom"] = number(row["headroom"])
    return one


def time_text(time: Any) -> str:
    """Return the day, weekday and time of day, whose texts sort; a dash without a time."""
    return "-" if pd.isna(time) else f"{time:%Y-%m-%d %a %H:%M}"


def _lines(
    series: Series, found: Outlook, times: pd.DatetimeIndex, arrays: Arrays
) -> dict[str, object]:
    """Return the history, forecasts, bounds and thresholds of cells, then groups, at the times."""
    past = series.values[len(found.forecast) - len(times) :].T
    if found.sums is not None and found.sums.groups is not None:
        past = np.concatenate([past, found.sums.groups.sum(past)])
    parts = [found, *([found.sums] if found.sums else [])]

    def rows(tables: Sequence[pd.DataFrame | None]) -> dict[str, object]:
        n = len(found.forecast)  # Of groups without bounds, or without thresholds, none is drawn.
        values = [
            np.full((n, part.forecast.shape[1]), np.nan) if table is None else table.to_numpy()
            for part, table in zip(parts, tables, strict=True)
        ]
        return arrays.rows(np.concatenate(values, axis=1).T)

    drawn = {"forecast": rows([part.forecast for part in parts])}
    if found.interval is not None:
        for name in found.interval._fields:
            drawn[name] = rows([part.interval and getattr(part.interval, name) for part in parts])
    known = "threshold" in found.plan
    limits = [part.plan["threshold"].to_numpy() for part in parts] if known else []
    return {
        "times": axis_times(times),
        "observed": arrays.rows(past),
        **drawn,
        "threshold": arrays.floats(np.concatenate(limits)) if known else None,
    }


def _reasons(
    model: FittedModel, series: Series, plan: pd.DataFrame, side: Side, arrays: Arrays
) -> dict[str, object]:
    """Return the parts of the forecasts of the first cells of a sorted plan.

    `parts` is `(cells, parts, steps)`, and `usual` `(cells, steps)`, from which they lead away;
    `worst` is the step of the highest or lowest forecast.
    """
    from stforecast.forecasting.explain import MEAN, USUAL, explain

    cells = series.cells.tolist()
    chosen = [cells.index(cell) for cell in plan.index[:MOST_EXPLAINED]]
    found = explain(model, series, np.array(chosen), of_model=False)
    tables = [one.read.drop(columns=[MEAN, USUAL]) for one in found]
    names = list(dict.fromkeys(name for table in tables for name in table))
    parts = [table.reindex(columns=names, fill_value=0.0).to_numpy().T for table in tables]
    usual = [one.read[[MEAN, USUAL]].sum(axis=1).to_numpy() for one in found]
    worst = [int(np.argmax(side.sign * one.forecast.to_numpy())) for one in found]
    return {
        "cells": chosen,
        "names": names,
        "parts": arrays.floats(np.array(parts)),
        "usual": arrays.floats(np.array(usual)),
        "worst": worst,
        "extreme": side.extreme,
        "colors": list(HUES[:2]),
    }


@listed
def exceedances(outlook: Outlook, series: Series) -> Section | None:
    """Spans in which forecasts are beyond their thresholds."""
    if "threshold" not in outlook.plan:
        return None
    step, beyond = series.calendar.step, outlook.side.beyond
    tables = [_spans(outlook, "cell", step)]
    if outlook.sums is not None:
        tables.insert(0, _spans(outlook.sums, "group", step))
    quantity = with_unit(series.service, series.units)
    claims = [f"Consecutive steps whose forecast of {quantity} is {beyond} the threshold."]
    if outlook.chances is not None:
        claims.append("The tables above also have the probabilities of all others.")
    tables = [table for table in tables if table.rows]
    return Section(f"Spans {beyond} the threshold", claims, tables) if tables else None


def _spans(found: Outlook, name: str, step: pd.Timedelta) -> Table:
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
        row |= {"from": time_text(times[begin]), "to": time_text(times[end - 1] + step)}
        row["hours"] = number((end - begin) * step / pd.Timedelta("1h"))
        row |= {f"{side.extreme} forecast": number(worst), "threshold": number(limits[i])}
        spans.append(((-np.nan_to_num(chance).round(3), begin - end), row))
    rows = [row for _, row in sorted(spans, key=lambda span: span[0])]
    notes = rest(MOST_ROWS, len(rows), "the table of forecasts")
    notes += [f"{one}: of one step to be {side.beyond} the threshold." for one in known]
    first = "most probable" if known else "longest"
    return Table(f"{name.capitalize()}s, the {first} first", rows[:MOST_ROWS], notes, name)
