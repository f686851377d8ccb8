"""The tested runs of one task, as tables and as numbers for its charts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.registry import listed
from stforecast.bench.curves import curves_of
from stforecast.bench.run_groups import RunGroup
from stforecast.bench.tables import number
from stforecast.comparison.errors import SEASONAL_METHODS, clock_of, hour_title, local_times
from stforecast.comparison.leaderboard import Leaderboard, Line, claims
from stforecast.comparison.names import error_title, quantity, time_ahead
from stforecast.comparison.table import basis, comparison_rows, legend
from stforecast.data.cubes import open_cube
from stforecast.forecasting.results import ForecastRun, data_of, units_of
from stforecast.plots.cell_map import find_places
from stforecast.plots.losses import LOSSES, sent_by_round
from stforecast.plots.times import axis_ahead
from stforecast.report.numbers import MethodNumbers, method_numbers, worst_tables
from stforecast.report.section import Section, evenly, looks, map_of, map_value
from stforecast.report.tables import Arrays, Table, axis_title, data_sheet, dates, runs_sheet, share


@listed
def tested(board: Leaderboard, arrays: Arrays, room: int) -> Section:
    """Leaderboard, map, charts, data and settings of one task.

    The arrays of the page grow by at most `room` values of series by cell.
    """
    lines = board.sorted_lines
    groups = [line.row.group for line in lines]
    numbers = [method_numbers(group, board.metric) for group in groups]
    first = groups[0].runs[0]
    cube = cube_of(first)
    with first.open_forecasts() as forecasts:
        shown = find_places(forecasts, cube)
        cells = forecasts["cell"].to_numpy()
        known = forecasts.attrs if "time_zone" in forecasts.attrs or cube is None else cube.attrs
        zone = str(known.get("time_zone", ""))
        starts, step = local_times(forecasts)
        end = starts[-1] + step * forecasts.sizes["horizon"]
        times = pd.date_range(starts[0], end, freq=step, inclusive="left")
    clock = clock_of(zone)
    title, of_service = error_title(board.metric, units_of(first)), quantity([first])
    horizon = int(first.settings["horizon"])
    ahead = time_ahead(horizon, first)
    about = f"Each forecast is for the {ahead} that follow; the next one begins there. First seed."
    charts = {
        "name": board.task,
        "quantity": of_service,
        "clock": axis_title(clock, times),
        "error": title,
        "methods": looks({curve.group.name: curve.place for curve in curves_of(groups)}),
        "cells": [str(cell) for cell in cells.tolist()],
        "map": map_of(shown, arrays),
        "values": _values(numbers, arrays, title, of_service),
        "series": series(numbers, arrays, room),
        "about_series": about if horizon > 1 else f"Forecasts {ahead} ahead, of the first seed.",
        "curves": _curves(groups, numbers, zone),
    }
    worst = worst_tables(cells, numbers[0], groups[0].name, title, of_service, clock)
    return Section(
        board.task,
        [claim.replace("**", "") for claim in claims(board)],
        [_board(board, lines, numbers, units_of(first)), *worst],
        charts,
        shown.note,
        data=data_sheet(first, cube),
        runs=runs_sheet(groups, dates(groups)),
    )


def cube_of(run: ForecastRun) -> xr.Dataset | None:
    """Open the run's data; None if they are not there any more, or are other data."""
    try:
        cube = open_cube(data_of(run.about))
    except InputError:
        return None
    return cube if run.about["service"] in cube else None


def _board(
    board: Leaderboard, lines: Sequence[Line], numbers: Sequence[MethodNumbers], units: str
) -> Table:
    rows = []
    for row, line, found in zip(comparison_rows(board), lines, numbers, strict=True):
        further = {f"median MAE of a cell, {units}": number(pd.Series(found.mae).median())}
        if found.coverage is not None:
            held = share(pd.Series(found.coverage).mean())
            further[f"{found.nominal:.0%} intervals hold"] = held
        further["train s"] = number(line.row.mean_of("train_seconds"))
        further["runs"] = str(len(line.row.group.runs))
        rows.append({**row, **further})
    notes = [*basis(board), *legend([board])]
    if any(found.coverage is not None for found in numbers):
        notes.append("intervals hold: share of the test values inside, mean over cells.")
    return Table("Leaderboard, the lowest error first", rows, notes)


def _values(
    numbers: Sequence[MethodNumbers], arrays: Arrays, error: str, quantity: str
) -> list[dict[str, object]]:
    """Return the values by cell that the map can show, each with one array for each method."""
    naive = numbers[0].naive
    shown = partial(map_value, arrays)
    values = [
        shown(f"error: {error}", [n.errors.by_cell for n in numbers]),
        shown(f"mean absolute error of {quantity}", [n.mae for n in numbers]),
    ]
    if naive is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [n.errors.by_cell / naive.by_cell for n in numbers]
        values.append(shown(f"{error} divided by that of seasonal naive", ratios, middle=1.0))
    values.append(shown(f"load: mean observed {quantity}", [numbers[0].load]))
    values.append(shown(f"mean forecast {quantity}", [n.forecast for n in numbers]))
    nominal = max((n.nominal for n in numbers if n.coverage is not None), default=None)
    if nominal is not None:
        title, coverage = f"coverage of the {nominal:.0%} interval", [n.coverage for n in numbers]
        values.append(shown(title, coverage, middle=nominal, share=True))
    return values


def _curves(
    groups: Sequence[RunGroup[ForecastRun]], numbers: Sequence[MethodNumbers], zone: str
) -> dict[str, object]:
    repeated = any(group.runs[0].method in SEASONAL_METHODS for group in groups)
    naive = None if repeated else numbers[0].naive
    run = groups[0].runs[0]
    places, axis, _ = axis_ahead([run], len(numbers[0].errors.by_step))
    return {
        "ahead": {
            "axis": axis,
            "x": places[run.folder],
            "of": [n.errors.by_step for n in numbers],
            "naive": None if naive is None else naive.by_step,
        },
        "hours": {
            "axis": hour_title(zone),
            "of": [n.errors.by_hour for n in numbers],
            "naive": None if naive is None else naive.by_hour,
        },
        "losses": losses(groups),
    }


def series(numbers: Sequence[MethodNumbers], arrays: Arrays, room: int) -> dict[str, object]:
    """Add observations, forecasts, bounds and errors by hour of each cell to the page's arrays.

    The lowest error comes first. Where the room does not suffice, the methods of the highest errors
    are left out first, then the last steps.
    """
    n_cells, n_steps = numbers[0].path.y.shape
    n_series = [1 if method.path.lower is None else 3 for method in numbers]
    n_methods, shown = fitting(n_series, n_steps, room // max(1, n_cells))
    if not shown:
        return {"times": [], "all": n_steps, "methods": []}
    methods = []
    for method in numbers[:n_methods]:
        path = method.path
        bounds = {"lower": path.lower, "upper": path.upper}
        methods.append(
            {
                "forecast": arrays.rows(path.y_hat[:, :shown]),
                **{n: arrays.rows(v[:, :shown]) for n, v in bounds.items() if v is not None},
                "hours": arrays.rows(method.errors.by_cell_and_hour),
            }
        )
    return {
        "times": numbers[0].path.times[:shown],
        "all": n_steps,
        "observed": arrays.rows(numbers[0].path.y[:, :shown]),
        "methods": methods,
    }


def fitting(n_series: Sequence[int], n_steps: int, room: int) -> tuple[int, int]:
    """Return how many methods, the best first, and steps fit into the room of a cell.

    A further method is left out if there are then fewer than 48 steps.
    """
    for n in range(len(n_series), 0, -1):
        steps = min(n_steps, (room - 24 * n) // (1 + sum(n_series[:n])))
        if steps >= min(n_steps, 48 if n > 1 else 1):
            return n, steps
    return 0, 0


def losses(groups: Sequence[RunGroup[ForecastRun]]) -> list[dict[str, object]]:
    """Return the losses of each run that trained in rounds, with the place of its group.

    With them come rounds, and bytes sent and received so far by all clients. Of many rounds, evenly
    spread ones with the last are taken.
    """
    found = []
    for place, group in enumerate(groups):
        for run in group.runs:
            table = run.rounds()
            values = {name: table[column].to_numpy(float) for name, column in LOSSES.items()}
            if not any(np.isfinite(v).any() for v in values.values()):
                continue
            shown = evenly(len(table))
            found.append(
                {
                    "method": place,
                    "name": group.run_label(run) if len(group.runs) > 1 else group.name,
                    "loss": str(run.settings.get("loss", "mse")),
                    "round": table["round"].to_numpy()[shown],
                    "bytes": sent_by_round(table)[shown],
                    **{name: v[shown] for name, v in values.items()},
                }
            )
    return found
