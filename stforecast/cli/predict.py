"""The commands that use a model: predict, and adapt, which teaches it new cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from data_prep.base.errors import InputError, counted, four_digits, plain, reading, some
from stforecast.cli.commands import command, say_json, say_next
from stforecast.cli.options import (
    EVENTS,
    JSON,
    LIMITS,
    SuggestingChoice,
    check_ending,
    check_history,
    check_run,
    section,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from stforecast.data.series import Series
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.groups import Groups
    from stforecast.forecasting.outlook import Outlook
    from stforecast.forecasting.planning import Threshold
    from stforecast.forecasting.tables import Interval


STYLE = click.Option(
    ["--csv-style"],
    type=SuggestingChoice(["plain", "excel"]),
    default="plain",
    show_default=True,
    help="Style of .csv tables: excel has semicolons, decimal commas and local times.",
)


def threshold_option(adds: str = "") -> click.Option:
    """Return the option --threshold; `adds` says what is written with it."""
    return click.Option(
        ["--threshold"],
        help="Capacity or limit in the data's units: a number for each cell, or a CSV with columns "
        f"cell and threshold. {adds}Groups have the sum of their cells', or a line of their own "
        "(site north) or of their level (site).",
    )


def groups_option(place: str) -> click.Option:
    """Return the option --groups, whose sums are added to a place."""
    return click.Option(
        ["--groups"],
        help=f"Sums to add to {place}: a CSV with a column cell and one for each level, such as "
        "cell,site,sector, or columns of the cube, such as site,sector. The sum of all cells is "
        "added, too.",
    )


SUMMED = "a group's threshold is its own or its level's in the table, or the sum of its cells'"
"""Sentence on thresholds of groups."""


@command(
    EVENTS,
    *LIMITS,
    threshold_option(
        "Adds the probability of exceeding it, of a speed of falling below it, from the bounds. "
    ),
    groups_option("both tables"),
    STYLE,
    JSON,
    flags={"plan_file": "plan"},
)
def predict(
    run: Path,
    *,
    history: Path,
    out: Path,
    events: Path | None,
    steps: int | None = None,
    clock: Literal["local", "utc"] = "local",
    lower_limit: float | None,
    upper_limit: float | None,
    threshold: str | None,
    plan_file: Path | None = None,
    groups: str | None,
    paths: int | None = None,
    csv_style: Literal["plain", "excel"],
    as_json: bool,
) -> None:
    """Forecast the steps after a history, in the data's own units.

    A run with --intervals or a quantile loss adds a lower and an upper bound, up to the model's
    horizon. Busy hours are the clock hours with the highest mean forecast, of a speed the lowest.

    Options:
        history: cube to forecast from, after its end; or a table or raw days like those that the
            run's data were prepared from, which are opened with the same options.
        out: table to write, .csv or .xlsx: time, cell, service, and bounds.
        steps: steps to forecast; by default the model's horizon.
        clock: clock of the times: the cube's own time zone, with its offset where it is known, or
            UTC.
        plan_file: table to write for a planner, .csv or .xlsx: busy hour, peak (of a speed the
            lowest value), and headroom to --threshold of each cell.
        paths: number of joint futures of all cells and steps to write next to --out, as netCDF,
            from which sums, maxima and spans can be read.
    """
    for path in filter(None, (out, plan_file)):
        check_ending(path, ".csv", ".xlsx")
    check_run(run)
    check_history(history)
    from stforecast.federated.runs.run_folder import write_table
    from stforecast.forecasting.forecaster import Forecaster

    limit = None if threshold is None else read_threshold(threshold)
    forecaster = Forecaster.load(run)
    asked = Asked(events, threshold, limit, groups, paths)
    drawn, limits = out.with_name(f"{out.stem}-paths.nc"), (lower_limit, upper_limit)
    _, found = look_ahead(forecaster, history, asked, drawn, steps, limits, clock)
    write_table(found.long(), out, csv_style)
    if plan_file is not None:
        write_table(found.plan_table(), plan_file, csv_style)
    if as_json:
        paths_of = {} if paths is None else {"paths": str(drawn)}
        say_json({"path": str(out), **_about(found), **paths_of})
        return
    say_outlook(found, out, plan_file, has_limit=limit is not None)
    if paths is not None:
        click.echo(f"{drawn}: {counted(paths, 'joint path')} of all cells and steps")


class Asked(NamedTuple):
    """What is asked of the coming span, as typed; `limit` is the threshold as it was read."""

    events: str | Path | None
    threshold: str | None
    limit: Threshold | None
    groups: str | None
    paths: int | None


def look_ahead(
    forecaster: Forecaster,
    history: Path,
    asked: Asked,
    paths_file: Path,
    steps: int | None = None,
    limits: tuple[float | None, float | None] = (None, None),
    clock: Literal["local", "utc"] = "local",
) -> tuple[Series, Outlook]:
    """Forecast what follows a history, and write the joint paths if they are asked for.

    Steps, and limits that are None, are the model's. Returns the history, too, as it was read.
    """
    from stforecast.data.scaling import Limits
    from stforecast.forecasting.groups import read_groups
    from stforecast.forecasting.outlook import make_outlook
    from stforecast.forecasting.paths import write_paths

    limit, series = asked.limit, forecaster.read(history, asked.events)
    groups = None if asked.groups is None else read_groups(asked.groups, series)
    say_unused("threshold", asked.threshold, limit, series.cells, groups)
    own = zip(forecaster.limits, limits, strict=True)
    lower, upper = (known if given is None else given for known, given in own)
    outlook = make_outlook(
        forecaster, series, steps, threshold=limit, groups=groups, limits=Limits(lower, upper),
        tested=None if limit is None and groups is None else forecaster.tested(), clock=clock,
    )  # fmt: skip
    if asked.paths is not None:
        drawn = forecaster.sample_paths(series, asked.paths, steps, limits=(lower, upper))
        write_paths(drawn, paths_file)
    return series, outlook


def say_outlook(found: Outlook, out: Path, plan_file: Path | None, *, has_limit: bool) -> None:
    """Say what was forecast and written, and which cells are close to the threshold."""
    click.echo(forecast_sentence(out, found.forecast, found.interval))
    if has_limit:
        click.echo(beyond(found))
    if plan_file is not None:
        click.echo(f"{plan_file}: busy hour and {found.side.extreme} forecast of each cell")
    if (sums := found.sums) is None or sums.groups is None:
        return
    levels, held = sums.groups.levels, [f"{share:.0%}" for share in sums.coverage.values()]
    text = ", ".join(f"{levels.count(level)} {level}" for level in dict.fromkeys(levels))
    text += f"; bounds held {', '.join(held)} of tested sums" if held else ""
    text += f"; {SUMMED}" if "threshold" in sums.plan else ""
    click.echo(f"groups: {text}")


def _about(found: Outlook) -> dict[str, object]:
    """Describe a forecast, for scripts."""
    table, interval = found.forecast, found.interval
    return {
        "kind": "forecast",
        "service": table.attrs["service"],
        "units": table.attrs["units"],
        "steps": len(table),
        "cells": table.shape[1],
        "first": table.index[0].isoformat(),
        "last": table.index[-1].isoformat(),
        "coverage": interval and interval.lower.attrs["coverage"],
        "plan": found.plan_table().to_dict("records"),
        **({"coverage_of_groups": found.sums.coverage} if found.sums else {}),
    }


def say_unused(
    name: str, file: str | None, given: Threshold | None, cells: np.ndarray, groups: Groups | None
) -> None:
    """Write to standard error which thresholds of a file are of cells that are not forecast."""
    known = {*map(str, cells), *((*groups.labels, *groups.levels) if groups else ())}
    if isinstance(given, Mapping) and (others := given.keys() - known):
        unused = plain(some(sorted(map(str, others))))
        click.echo(f"{file}: {name}s of cells that are not forecast: {unused}", err=True)


def read_threshold(text: str, name: str = "threshold") -> Threshold:
    """Return the number, or the cells' numbers in a CSV, in the column of this name."""
    try:
        return float(text)
    except ValueError:
        pass
    import pandas as pd

    from stforecast.data.events import read_texts
    from stforecast.federated.runs.run_folder import as_named

    remedy = f"give a number, or a CSV with columns cell and {name}"
    if not Path(text).is_file():
        raise InputError(f"{name} is {text!r}, neither a number nor a file; {remedy}")
    table = read_texts(Path(text), f"table of {name}", ("cell", name), remedy)
    table["cell"] = table["cell"].map(as_named)
    with reading(text, f"as a table of {name}", remedy):
        table[name] = pd.to_numeric(table[name])
    return dict(zip(table["cell"], table[name], strict=True))


def forecast_sentence(out: Path, table: pd.DataFrame, interval: Interval | None) -> str:
    """Say what was written."""
    import numpy as np

    service, units = table.attrs["service"], table.attrs["units"]
    zone = getattr(table.index, "tz", None)
    text = f"{out}: {counted(len(table), 'step')} × {table.shape[1]} cells from {table.index[0]} "
    text += f"({'local time' if zone is None else zone}), {service}"
    text += "" if units == "1" else f" in {units}"
    if interval is not None:
        lowest, highest = float(np.nanmin(interval.lower)), float(np.nanmax(interval.upper))
        widths = (interval.upper - interval.lower).mean()
        endless = np.isinf(widths)
        width = float(np.nanmean(widths[~endless])) if not endless.all() else np.inf
        text += f", bounds of {interval.lower.attrs['coverage']:.0%} intervals"
        if steps := int(interval.upper.isna().all(axis=1).sum()):
            text += f" for the first {counted(len(table) - steps, 'step')}"
        text += f" from {four_digits(lowest)} to {four_digits(highest)}, mean width "
        text += four_digits(width)
        if endless.any():
            text += f" without {counted(int(endless.sum()), 'cell')} whose bounds are infinite, "
            text += f"such as {widths.index[endless][0]}"
    return text


def beyond(found: Outlook) -> str:
    """Say in one line which cells come closest to the threshold."""
    from stforecast.forecasting.planning import by_urgency, chance_column

    by_cell, side = found.plan, found.side
    row = by_cell.loc[by_cell.index == by_cell["headroom"].idxmin()].iloc[0]
    n_beyond = int((by_cell[f"steps_{side.beyond}"] > 0).sum())
    text = (
        f"threshold: {counted(n_beyond, 'cell')} of {len(by_cell)} forecast {side.beyond} it; "
        f"least headroom: {four_digits(row['headroom'])} of cell {row.name} at "
        f"{row[f'{side.worst}_time']}"
    )
    if "highest_probability" in by_cell:
        if (name := chance_column(by_cell)) is None:
            return f"{text}; no probabilities, as not all steps have bounds"
        chances = by_cell[name].round(2)
        once = f"values {side.beyond} it"
        if name != "probability":
            once = f"a value {side.beyond} it at one step"
        of, same = f"cell {by_urgency(by_cell, side).index[0]}", (chances == chances.max()).sum()
        if same > 1:
            of = f"{same} cells, longest expected in {of}"
        return f"{text}; highest probability of {once}: {chances.max():.0%} of {of}"
    return f"{text}; a run with --intervals also gives probabilities"


@command(EVENTS, JSON)
def explain_command(
    run: Path,
    *,
    history: Path,
    cell: str,
    time: str | None = None,
    events: Path | None,
    as_json: bool,
) -> None:
    """Explain a cell's forecast as sums of parts.

    By input: the mean, the usual value at this time of the week, and the effect of the last hours,
    days and weeks, holidays and events, and other services. For models with parts, also by part:
    calendar and events, the cell's own correction, the network, each forecast that is mixed in,
    and recent errors. Parts that are 0 at all steps are left out.

    Options:
        history: cube or table to forecast from, as for `stforecast predict`.
        cell: cell to explain.
        time: one of the forecast's times, such as 2013-12-02T18:00; by default the
            highest.
    """
    check_run(run)
    check_history(history)
    import pandas as pd

    from stforecast.bench.tables import for_terminal
    from stforecast.forecasting.explain import bar_rows
    from stforecast.forecasting.forecaster import Forecaster

    found = Forecaster.load(run).explain(cell, history, events=events)
    index = pd.DatetimeIndex(found.forecast.index)
    times = [f"{at:%Y-%m-%dT%H:%M}" for at in index]
    asked = times[int(found.forecast.argmax())] if time is None else time.replace(" ", "T")[:16]
    if asked not in times:
        raise InputError(
            f"time is {time!r}, expected a time of the forecast: {times[0]} to {times[-1]}"
        )
    at = index[times.index(asked)]
    tables = {"read": found.read, **({} if found.model is None else {"model": found.model})}
    if as_json:
        parts = {name: table.loc[at].to_dict() for name, table in tables.items()}
        about = {"kind": "explanation", "cell": cell, "time": at.isoformat()}
        say_json({**about, "forecast": float(found.forecast[at]), **parts})
        return
    click.echo(f"cell {cell}: {found.words(at)}")
    for table, by in zip(tables.values(), ("input", "part of the model"), strict=False):
        click.echo(f"\nby {by}\n\n{for_terminal(bar_rows(table.T[at]))}")


@command(EVENTS, sections=section("New cells", "stforecast.forecasting.adapt:AdaptOptions"))
def adapt_command(
    run: Path, *, history: Path, out: Path, events: Path | None, **options: Any
) -> None:
    """Adapt a model to cells that it has not seen, from a few days of history or none.

    The new model forecasts the cells of the history: known ones as before, new ones by the shared
    part of the method and a personal part that is trained on their last days. Nothing is sent. A
    history shorter than the model's inputs is enough. `stforecast predict` accepts the new model
    like any other.

    Options:
        history: cube of new cells, with or without cells that the model knows.
        out: folder of the model to write.
    """
    check_run(run)
    check_history(history)
    from stforecast.federated.runs.run_folder import check_new
    from stforecast.forecasting.forecaster import Forecaster

    if out.resolve() == run.resolve():
        raise InputError(f"{out} is the run itself; choose another --out")
    check_new(out, "stforecast adapt")
    model = Forecaster.load(run)
    adapted = model.adapt(history, events=events, **options)
    adapted.save(out)
    known = set(model.cells.tolist())
    n_known = sum(cell in known for cell in adapted.cells.tolist())
    click.echo(
        f"{out}: model of {counted(len(adapted.cells) - n_known, 'new cell')} and "
        f"{counted(n_known, 'known cell')} (of {len(known)} in {run})"
    )
    say_next("predict", out, "--history", history, "--out", "forecast.csv")
