"""The command that plans: the busy hours of months ahead, or which cells can sleep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from data_prep.base.errors import counted
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import JSON, check_ending, check_history, check_run
from stforecast.cli.predict import STYLE, SUMMED, read_threshold, say_unused, threshold_option

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.months import Months
    from stforecast.forecasting.sleep import SleepPlan


@command(threshold_option(), STYLE, JSON, flags={"page": "report"})
def plan_command(
    run: Path,
    *,
    out: Path,
    until: str | None = None,
    sleep: str | None = None,
    cover: str | None = None,
    history: Path | None = None,
    growth: str | None = None,
    threshold: str | None,
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
        groups: groups to add: a CSV with a column cell and one for each level, such as
            cell,site,sector, or columns of the cube. Their busy hours are their own.
        page: page to write, .html: the weeks in a figure and the dates, or which groups and cells
            can sleep.
    """
    _check_options(click.get_current_context().params)
    check_run(run)
    if history is not None:
        check_history(history)
    asked = Request(run, history, threshold, out, page, csv_style, as_json)
    if until is not None:
        _plan_months(asked, until, growth, groups)
    elif sleep is not None and cover is not None:
        _plan_sleep(asked, sleep, cover)


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse options that do not go together, and names of files with other endings."""
    until, sleep, cover = (given[name] for name in ("until", "sleep", "cover"))
    if (until is None) == (sleep is None):
        raise click.UsageError("Give either --until for months ahead, or --sleep.")
    if sleep is not None and not (cover and given["threshold"]):
        raise click.UsageError("--sleep needs --cover and --threshold.")
    if (cover and until) or (sleep and (given["growth"] or given["groups"])):
        raise click.UsageError("--cover goes with --sleep; --growth and --groups go with --until.")
    check_ending(given["out"], ".csv", ".xlsx")
    if given["page"] is not None:
        check_ending(given["page"], ".html")


class Request(NamedTuple):
    """What both kinds of plans read and write, as it was typed."""

    run: Path
    history: Path | None
    threshold: str | None
    out: Path
    page: Path | None
    csv_style: Literal["plain", "excel"]
    as_json: bool

    def opened(self) -> tuple[str, Forecaster, Series]:
        """Return the name of the history, the model, and the history as the model reads it."""
        from stforecast.forecasting.forecaster import Forecaster
        from stforecast.forecasting.results import ForecastRun, data_of

        data = data_of(ForecastRun.open(self.run).about) if self.history is None else self.history
        forecaster = Forecaster.load(self.run)
        return data.name, forecaster, forecaster.read(data)

    def report(self, title: str, series: Series, **plan: Any) -> dict[str, str]:
        """Write a page on a plan, if there is a path; return the path as `report`."""
        if self.page is None:
            return {}
        from stforecast.report.write import ReportPage

        page = ReportPage()
        page.add(series=series, **plan)
        return {"report": str(page.write(self.page, title))}


def _plan_sleep(asked: Request, sleep: str, cover: str) -> None:
    from stforecast.federated.runs.run_folder import write_table
    from stforecast.forecasting.groups import read_groups
    from stforecast.forecasting.sleep import Sleep, plan_sleep

    assert asked.threshold is not None
    limit = read_threshold(asked.threshold)
    name, forecaster, series = asked.opened()
    wanted, of = Sleep.read(sleep), read_groups(cover, series, percent=True)
    say_unused("threshold", asked.threshold, limit, series.cells, None)
    found = plan_sleep(forecaster.sample_paths(series, None), of, limit, wanted)
    write_table(found.table, asked.out, asked.csv_style)
    files = {"path": str(asked.out)} | asked.report(f"Sleep of {name}", series, sleep=found)
    _say_sleep(found, files, as_json=asked.as_json)


def _plan_months(asked: Request, until: str, growth: str | None, groups: str | None) -> None:
    from stforecast.federated.runs.run_folder import write_table
    from stforecast.forecasting.groups import read_groups
    from stforecast.forecasting.months import plan_months

    limit = None if asked.threshold is None else read_threshold(asked.threshold)
    grown = None if growth is None else read_threshold(growth, "growth")
    name, _, series = asked.opened()
    members = None if groups is None else read_groups(groups, series)
    say_unused("threshold", asked.threshold, limit, series.cells, members)
    say_unused("growth factor", growth, grown, series.cells, members)
    found = plan_months(series, until, growth=grown, threshold=limit, groups=members)
    write_table(found.long(), asked.out, asked.csv_style)
    files = {"path": str(asked.out)}
    if found.passing is not None:
        dates = asked.out.with_name(f"{asked.out.stem}-dates{asked.out.suffix}")
        write_table(found.dates(), dates, asked.csv_style)
        files["dates"] = str(dates)
    files |= asked.report(f"Busy hours of {name}", series, months=found)
    if asked.as_json:
        about = {"kind": "months", "weeks": len(found.forecast), "tested_weeks": found.tested}
        rows = {} if found.passing is None else {"passing": found.dates().to_dict("records")}
        say_json({**files, **about, "parts": found.parts, **rows})
        return
    for line in _lines(found, files, has_groups=members is not None):
        click.echo(line)


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
