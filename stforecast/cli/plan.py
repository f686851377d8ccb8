"""The command that plans: the busy hours of months ahead, or which cells can sleep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from data_prep.base.errors import counted
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import JSON, check_ending, check_history, check_run
from stforecast.cli.predict import STYLE, SUMMED, read_threshold, say_unused

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecasting.months import Months
    from stforecast.forecasting.sleep import SleepPlan


@command(STYLE, JSON, flags={"page": "report"})
def plan_command(
    run: Path,
    *,
    out: Path,
    until: str | None = None,
    sleep: str | None = None,
    cover: str | None = None,
    history: Path | None = None,
    growth: str | None = None,
    threshold: str | None = None,
    groups: str | None = None,
    page: Path | None = None,
    csv_style: Literal["plain", "excel"],
    as_json: bool,
) -> None:
    """Forecast the busy hours of months ahead (--until), or find which cells can sleep (--sleep).

    Months need at least four weeks of history, and as many weeks as they forecast. Sleep needs a
    run with bounds, --cover and --threshold; it plans the run's horizon.

    Options:
        out: table to write, .csv or .xlsx: a row for each cell and week. With --threshold a second
            table, NAME-dates, lists when each cell passes it, the most probable first. With
            --sleep a row for each cell that can sleep.
        until: month or day of the last week, such as 2025-06 or 2025-06-30.
        sleep: largest own load of a sleeping cell in the data's units, below=LOAD. Separated by
            commas, also the probability that is wanted for the whole span (probability=0.95), and
            the power of a cell in watts (idle=130,full=224,asleep=75).
        cover: groups of cells that cover the same area, for --sleep: a CSV whose columns are
            cell and the group, such as cell,site, or a column of the cube.
        history: cube or table with newer data; by default the run's.
        growth: factor by which loads grow evenly until then, in place of the trend of the history:
            a number such as 1.2, or a CSV with columns cell and growth, whose lines name cells,
            groups (site north) or levels of groups (site).
        threshold: capacity or limit in the data's units: a number for each cell, or a CSV with
            columns cell and threshold. Groups have the sum of their cells', or a line of their own
            (site north) or of their level (site).
        groups: groups to add: a CSV with a column cell and one for each level, such as
            cell,site,sector, or columns of the cube. Their busy hours are their own.
        page: page to write, .html: the weeks in a figure and the dates, or which groups and cells
            can sleep.
    """
    if (until is None) == (sleep is None):
        raise click.UsageError("Give either --until for months ahead, or --sleep.")
    if sleep is not None and not (cover and threshold):
        raise click.UsageError("--sleep needs --cover and --threshold.")
    if (cover and until) or (sleep and (growth or groups)):
        raise click.UsageError("--cover goes with --sleep; --growth and --groups go with --until.")
    check_ending(out, ".csv", ".xlsx")
    if page is not None:
        check_ending(page, ".html")
    check_run(run)
    if history is not None:
        check_history(history)
    from stforecast.federated.runs.run_folder import write_table
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.groups import read_groups
    from stforecast.forecasting.months import plan_months
    from stforecast.forecasting.results import ForecastRun, data_of
    from stforecast.forecasting.sleep import Sleep, plan_sleep

    limit = None if threshold is None else read_threshold(threshold)
    grown = None if growth is None else read_threshold(growth, "growth")
    data = data_of(ForecastRun.open(run).about) if history is None else history
    forecaster = Forecaster.load(run)
    series = forecaster.read(data)
    if sleep and cover and limit is not None:
        asked, of = Sleep.read(sleep), read_groups(cover, series, percent=True)
        say_unused("threshold", threshold, limit, series.cells, None)
        slept = plan_sleep(forecaster.sample_paths(series, None), of, limit, asked)
        write_table(slept.table, out, csv_style)
        files = {"path": str(out)} | _report(page, f"Sleep of {data.name}", series, sleep=slept)
        _say_sleep(slept, files, as_json=as_json)
        return
    assert until is not None
    members = None if groups is None else read_groups(groups, series)
    say_unused("threshold", threshold, limit, series.cells, members)
    say_unused("growth factor", growth, grown, series.cells, members)
    found = plan_months(series, until, growth=grown, threshold=limit, groups=members)
    write_table(found.long(), out, csv_style)
    files = {"path": str(out)}
    if found.passing is not None:
        dates = out.with_name(f"{out.stem}-dates{out.suffix}")
        write_table(found.dates(), dates, csv_style)
        files["dates"] = str(dates)
    files |= _report(page, f"Busy hours of {data.name}", series, months=found)
    if as_json:
        about = {"kind": "months", "weeks": len(found.forecast), "tested_weeks": found.tested}
        rows = {} if found.passing is None else {"passing": found.dates().to_dict("records")}
        say_json({**files, **about, "parts": found.parts, **rows})
        return
    for line in _lines(found, files, has_groups=members is not None):
        click.echo(line)


def _report(path: Path | None, title: str, series: Series, **plan: Any) -> dict[str, str]:
    """Write a page on a plan, if there is a path; return the path as `report`."""
    if path is None:
        return {}
    from stforecast.report.write import ReportPage

    page = ReportPage()
    page.add(series=series, **plan)
    return {"report": str(page.write(path, title))}


def _say_sleep(found: SleepPlan, files: dict[str, str], *, as_json: bool) -> None:
    """Say how many cells can sleep, how probably, and what it saves."""
    table = found.table
    if as_json:
        rows = table.astype({"begin": str, "end": str}).to_dict("records")
        say_json({**files, "kind": "sleep", "energy_saved": found.energy_saved, "asleep": rows})
        return
    text = f"{files['path']}: {len(table)} of {counted(len(found.asleep), 'cell')} can sleep"
    if len(table):
        text += f", {table['hours'].mean():.3g} hours on average"
    click.echo(text)
    click.echo(f"probability: {found.promise}")
    steps = counted(found.asleep.shape[1], "step")
    click.echo(f"energy: {found.energy_saved:.1%} less in {steps}, if {found.power}")
    if "report" in files:
        click.echo(f"{files['report']}: open it in a browser")


def _lines(found: Months, files: dict[str, str], *, has_groups: bool) -> list[str]:
    """Describe what was written."""
    sources = " and ".join(("level", *found.parts)).replace("growth", "the given growth")
    lines = [
        f"{files['path']}: busy hours of {counted(len(found.forecast), 'week')} from "
        f"{found.forecast.index[0]:%Y-%m-%d}, from {sources}, after "
        f"{counted(len(found.past), 'week')} of history; bounds were tested "
        f"{counted(found.tested, 'week')} ahead"
    ]
    if (passing := found.passing) is not None:
        n = int((passing["probability"] >= 0.5).sum())
        lines.append(
            f"{files['dates']}: {n} of {len(passing)} pass their threshold with at least 50 %; the "
            f"most probable: {passing.index[0]}, {passing['probability'].iloc[0]:.0%}"
        )
        lines += [f"groups: {SUMMED}"] if has_groups else []
    return lines + ([f"{files['report']}: open it in a browser"] if "report" in files else [])
