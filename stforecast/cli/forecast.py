"""The command that forecasts any table or cube: prepare, train, check, write."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from data_prep.base.errors import InputError, for_command, no_file
from data_prep.base.progress import doing
from data_prep.described import facts, of_days
from stforecast.cli.bench import MORE, chosen_settings
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import JSON, LIMITS, given, section
from stforecast.cli.predict import (
    STYLE,
    Asked,
    groups_option,
    look_ahead,
    read_threshold,
    say_outlook,
    threshold_option,
)
from stforecast.forecasting import DEFAULT_METHOD

if TYPE_CHECKING:
    from stforecast.forecasting.backtest import Backtest
    from stforecast.forecasting.outlook import Outlook
    from stforecast.forecasting.quick import Check
    from stforecast.forecasting.results import ForecastRun


@command(
    *LIMITS,
    threshold_option(
        "Adds headroom and probabilities of exceeding it, of a speed of falling below it. "
    ),
    groups_option("the tables and the report"),
    MORE,
    STYLE,
    JSON,
    sections=section("Table", "data_prep.readers.options:TableOptions"),
)
def forecast_command(
    ctx: click.Context,
    data: Path,
    *,
    horizon: int = 24,
    out: Path,
    service: str | None = None,
    method: str = DEFAULT_METHOD,
    folds: int = 0,
    events: str | None = None,
    lower_limit: float | None,
    upper_limit: float | None,
    threshold: str | None,
    groups: str | None,
    paths: int | None = None,
    more: tuple[str, ...],
    csv_style: Literal["plain", "excel"],
    xlsx: bool = False,
    as_json: bool,
    **table: Any,
) -> None:
    """Forecast what follows a table or a cube, and check it.

    It trains the default method, compares it on the last part of the data with the value one day
    before, and writes forecast.csv with bounds, plan.csv with busy hours and peaks, a run with the
    model, and report.html. It prints what it assumed and how to change it.

    DATA is a cube (.nc), a table (.csv, .xlsx, .parquet) or several: a folder, a .zip or a
    pattern such as 'exports/*.csv'; the options under Table are the same as for
    `stforecast prepare table`.

    Options:
        horizon: steps to forecast.
        out: folder to write.
        service: variable to forecast; by default the first that is not all zeros.
        method: see: stforecast list methods.
        folds: number of further models to train for a backtest, such as 3. Each is tested on the
            span after its training, and the check then has intervals.
        events: table (.csv) of events known in advance, also for the times to forecast.
        paths: number of joint futures of all cells and steps to write as paths.nc, from which sums,
            maxima and spans can be read.
        xlsx: whether to write the tables as .xlsx.
    """
    _check_paths(data, out, xlsx=xlsx)
    limit = None if threshold is None else read_threshold(threshold)
    cube = _prepare(ctx, data, out, table)
    chosen = chosen_settings(more, events=events, lower_limit=lower_limit, upper_limit=upper_limit)
    asked = Asked(chosen.get("events"), threshold, limit, groups, paths)
    settings, assumed = _plan(cube, horizon, service, method, chosen, asked)
    if not as_json:
        click.echo(f"{data}: assumed\n{facts(assumed)}\n")
    progress = ctx.obj["progress"]
    made = _train(cube, out / "run", method, settings, folds, progress=progress)
    written = _look_ahead(made.run, cube, asked, data, csv_style, ".xlsx" if xlsx else ".csv")
    if as_json:
        about = {"kind": "checked forecast", "assumed": assumed, **made.about()}
        say_json({"path": str(out), **about, **written.about()})
    else:
        _say(made, written, data, asked)


def _check_paths(data: Path, out: Path, *, xlsx: bool) -> None:
    """Refuse data that are not there, and tables or a run that cannot be written."""
    from data_prep.readers.open import is_pattern

    if not data.exists() and not is_pattern(data):
        raise no_file(data, "table or cube", "give a .csv, .xlsx, .parquet or .nc file")
    from stforecast.federated.runs.run_folder import check_excel, check_new

    check_new(out / "run", "stforecast run")
    if xlsx:
        check_excel(out / "forecast.xlsx")


def _plan(
    cube: Path,
    horizon: int,
    service: str | None,
    method: str,
    chosen: Mapping[str, Any],
    asked: Asked,
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return the settings, and assumptions in the words of this command, by topic."""
    from data_prep.cube import open_cube
    from stforecast.forecasting.quick import make_plan

    try:
        with open_cube(cube) as ds:
            plan = make_plan(ds, horizon, service, method, chosen)
    except InputError as e:
        if not e.names("period"):
            raise
        raise InputError(e, ", which this command takes as --set period=52") from e
    _check_asked(cube, asked, plan.settings, method)
    return plan.settings, {topic: for_command(words) for topic, words in plan.assumed.items()}


class CheckedRun(NamedTuple):
    """The run, its check, and the backtest, if there was one."""

    run: ForecastRun
    check: Check
    backtest: Backtest | None

    def about(self) -> dict[str, object]:
        """Describe the check and the backtest, for scripts."""
        tested = self.backtest and {n: asdict(e) for n, e in self.backtest.estimates.items()}
        return {
            "check": {**self.check._asdict(), "skill": self.check.skill},
            "backtest": tested,
        }


def _train(
    cube: Path, out: Path, method: str, settings: Mapping[str, Any], folds: int, *, progress: bool
) -> CheckedRun:
    from stforecast.bench.progress import rounds_bar
    from stforecast.federated.uploads.uplink import counting_uploads
    from stforecast.forecasting import runs
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.quick import check_forecasts

    config = resolve(method, **settings)
    with counting_uploads() as sent:  # Before the run, whose ε counts what they send.
        tested = Forecaster(method, **settings).backtest(cube, folds) if folds else None
    notes, rounds = runs.notes_of(sent), config.training.rounds
    with rounds_bar(rounds, progress=progress and config.federated) as after_round:
        run = runs.run(method, cube, out, dict(settings), notes=notes, after_round=after_round)
    return CheckedRun(run, check_forecasts(run.forecasts()), tested)


def _say(made: CheckedRun, written: Written, data: Path, asked: Asked) -> None:
    """Print the check, what was written, and the next command to type."""
    from data_prep.readers.formats import without_suffix
    from stforecast.comparison.results import interval_line

    run, tested = made.run.folder, made.backtest
    click.echo(f"{made.check}" if tested is None else f"{made.check}\n\n{tested}\n")
    click.echo(interval_line(made.run))
    has_limit, files = asked.limit is not None, written.files
    say_outlook(written.outlook, files["forecast"], files["plan"], has_limit=has_limit)
    if "paths" in files:
        click.echo(f"{files['paths']}: joint paths of all cells and steps")
    if "report" in files:
        click.echo(f"{files['report']}: open it in a browser")
    end = data.name.removeprefix(without_suffix(data.name)) or data.suffix * data.is_file()
    again = ["stforecast", "predict", str(run), "--history", f"NEWER{end}", "--out", "forecast.csv"]
    again += ["--events", "EVENTS.csv"] if asked.events is not None else []
    click.echo(f"model and test results in {run}")
    click.echo(f"\nnext: {shlex.join(again)}")


def _prepare(ctx: click.Context, data: Path, out: Path, table: dict[str, Any]) -> Path:
    """Return the path of the cube, which is written if the data are a table."""
    doing(f"reading {data}")
    from data_prep.cube import write_cube
    from data_prep.sets.table import read

    if data.is_dir() and (days := of_days(data)):
        raise InputError(
            f"{data}: {days.kind}, expected a table or a cube; write one: {days.next_command}"
        )
    if data.suffix == ".nc":
        if found := [*given(ctx, table)]:
            flag = f"--{found[0].replace('_', '-')}"
            raise click.UsageError(f"{data} is a cube, for which there is no {flag}.", ctx)
        return data
    ds = read(data, **table)
    out.mkdir(parents=True, exist_ok=True)
    return write_cube(ds, out / "data.nc")


def _check_asked(cube: Path, asked: Asked, settings: Mapping[str, Any], method: str) -> None:
    """Refuse limits, thresholds, groups and paths that do not suit the data, before training."""
    from data_prep.cube import open_cube
    from stforecast.data.series import as_series
    from stforecast.forecasting.config import DataOptions
    from stforecast.forecasting.groups import read_groups
    from stforecast.forecasting.paths import check_number
    from stforecast.forecasting.planning import cell_limits, no_values
    from stforecast.forecasting.quick import n_tested

    if asked.paths is not None:
        with open_cube(cube) as ds:
            check_number(asked.paths, n_tested(ds, settings, method))
    lower, upper = settings.get("lower_limit"), settings.get("upper_limit")
    if asked.limit is None and asked.groups is None and upper is None:
        return
    series = as_series(cube, settings["service"])
    if asked.groups is not None:
        read_groups(asked.groups, series)
    limits = DataOptions(lower_limit=lower, upper_limit=upper)
    lowest, highest = limits.limits(non_negative=not (series.values < 0).any())
    if asked.limit is not None:
        empty = no_values(series.cells, series.service, series.units)
        cell_limits(asked.limit, empty, (lowest, highest))


class Written(NamedTuple):
    """The forecast of the coming span, and the paths of all written files, by name."""

    outlook: Outlook
    files: Mapping[str, Path]

    def about(self) -> dict[str, object]:
        """Describe it, for scripts."""
        sums = self.outlook.sums
        about: dict[str, object] = {"coverage_of_groups": sums.coverage} if sums else {}
        return about | {name: str(path) for name, path in self.files.items()}


def _look_ahead(
    run: ForecastRun,
    cube: Path,
    asked: Asked,
    data: Path,
    csv_style: Literal["plain", "excel"],
    ending: str,
) -> Written:
    """Forecast what follows; write the tables and, unless that fails, the report."""
    doing("planning what follows")
    from stforecast.federated.runs.run_folder import write_table
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.report.write import ReportPage, try_report

    forecaster, out = Forecaster.load(run.folder), run.folder.parent
    series, outlook = look_ahead(forecaster, cube, asked, out / "paths.nc")

    def write() -> Path:
        page = ReportPage()
        page.add_outlook(run, series, outlook, forecaster.model_)
        page.add_forecasts([run])
        return page.write(out / "report.html", f"Forecast of {data.name}")

    report = try_report(write, out / "report.html")
    tables = {"forecast": outlook.long(), "plan": outlook.plan_table()}
    for name, table in tables.items():
        write_table(table, out / f"{name}{ending}", csv_style)
    files = {name: out / f"{name}{ending}" for name in tables} | {"run": run.folder}
    files |= {"report": report} if report else {}
    return Written(outlook, files | ({"paths": out / "paths.nc"} if asked.paths else {}))
