"""The command that forecasts any table or cube: prepare, train, check, write."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from data_prep.base.errors import InputError, for_command, no_file
from data_prep.base.progress import doing
from stforecast.cli.bench import MORE, chosen_settings
from stforecast.cli.commands import command, say_json
from stforecast.cli.info_data import facts
from stforecast.cli.options import JSON, LIMITS, from_function, given
from stforecast.cli.predict import (
    STYLE,
    beyond,
    forecast_sentence,
    read_threshold,
    say_unused,
)
from stforecast.forecasting import DEFAULT_METHOD

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecasting.backtest import Backtest
    from stforecast.forecasting.outlook import Outlook
    from stforecast.forecasting.quick import Check, Plan
    from stforecast.forecasting.results import ForecastRun


CUBE, RUN, REPORT = "data.nc", "run", "report.html"
"""Names in the folder: the cube of a table, the run with its model, the report."""

FORECAST, PLAN = "forecast", "plan"
"""Names of the tables, without their ending."""


def table_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of a table, which a cube does not need."""
    from data_prep.readers.options import TableOptions

    return {"Table": from_function(TableOptions)}


FOLDS = click.Option(
    ["--folds"],
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of further models to train for a backtest, such as 3. Each is tested on the span "
    "after its training, and the check then has intervals.",
)


@command(FOLDS, *LIMITS, MORE, STYLE, JSON, sections=table_options)
def forecast_command(
    ctx: click.Context,
    data: Path,
    *,
    horizon: int = 24,
    out: Path,
    service: str | None = None,
    method: str = DEFAULT_METHOD,
    folds: int,
    events: str | None = None,
    lower_limit: float | None,
    upper_limit: float | None,
    threshold: str | None = None,
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
    pattern such as 'exports/*.csv'; the options under Table are those of
    `stforecast prepare table`.

    Options:
        horizon: steps to forecast.
        out: folder to write.
        service: variable to forecast; by default the first that is not all zeros.
        method: see: stforecast list methods.
        events: table (.csv) of events known in advance, also for the times to forecast.
        threshold: capacity or limit in the data's units: a number, or a CSV with columns cell and
            threshold. Adds headroom and probabilities of exceeding it, of a speed of falling
            below it.
        xlsx: whether to write the tables as .xlsx.
    """
    from data_prep.readers.open import is_pattern

    if not data.exists() and not is_pattern(data):
        raise no_file(data, "table or cube", "give a .csv, .xlsx, .parquet or .nc file")
    from data_prep.cube import open_cube
    from stforecast.bench.progress import rounds_bar
    from stforecast.comparison.summary import interval_line
    from stforecast.federated.runs.run_folder import check_new, write_table
    from stforecast.federated.uploads.uplink import counting_uploads
    from stforecast.forecasting import runs
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.outlook import make_outlook
    from stforecast.forecasting.planning import error_paths
    from stforecast.forecasting.quick import check_forecasts, make_plan

    check_new(out / RUN, "stforecast run")
    limit = None if threshold is None else read_threshold(threshold)
    doing(f"reading {data}")
    cube = _prepare(ctx, data, out, table)
    chosen = chosen_settings(more, events=events, lower_limit=lower_limit, upper_limit=upper_limit)
    try:
        with open_cube(cube) as ds:
            plan = make_plan(ds, horizon, service, method, chosen)
    except InputError as e:
        if not e.names("period"):
            raise
        raise InputError(e, ", which this command takes as --set period=52") from e
    config = resolve(method, **plan.settings)
    if not as_json:
        click.echo(f"{data}: assumed\n{facts(_assumed(plan))}\n")
    # Before the run, whose ε counts what they send.
    with counting_uploads() as sent:
        tested = Forecaster(method, **plan.settings).backtest(cube, folds) if folds else None
    notes, progress = runs.notes_of(sent), ctx.obj["progress"] and config.federated
    with rounds_bar(config.training.rounds, progress=progress) as after_round:
        run = runs.run(
            method, cube, out / RUN, dict(plan.settings), notes=notes, after_round=after_round
        )
    doing("planning what follows")
    tests = run.forecasts()
    check = check_forecasts(tests)
    forecaster = Forecaster.load(out / RUN)
    series = forecaster.read(cube, chosen.get("events"))
    say_unused(threshold, limit, series.cells)
    outlook = make_outlook(forecaster, series, threshold=limit, paths=error_paths(tests))
    files = [(out / name).with_suffix(".xlsx" if xlsx else ".csv") for name in (FORECAST, PLAN)]
    for file, written in zip(files, (outlook.long(), outlook.plan.reset_index()), strict=True):
        write_table(written, file, csv_style)
    has_report = _write_report(run, series, outlook, out, data) is not None
    if as_json:
        say_json(_described(out, plan, check, tested, has_report, files))
        return
    click.echo(f"{check}" if tested is None else f"{check}\n\n{tested}\n")
    click.echo(interval_line(run))
    click.echo(forecast_sentence(files[0], outlook.forecast, outlook.interval))
    if limit is not None:
        click.echo(beyond(outlook))
    click.echo(f"{files[1]}: busy hour and {outlook.side.extreme} forecast of each cell")
    if has_report:
        click.echo(f"{out / REPORT}: open it in a browser")
    again = ["stforecast", "predict", str(out / RUN), "--history", f"NEWER{data.suffix}"]
    again += ["--out", "forecast.csv"] + (["--events", "NEWER.csv"] if "events" in chosen else [])
    click.echo(f"model and test results in {out / RUN}")
    click.echo(f"\nnext: {shlex.join(again)}")


def _assumed(plan: Plan) -> dict[str, str]:
    return {topic: for_command(words) for topic, words in plan.assumed.items()}


def _described(
    out: Path,
    plan: Plan,
    check: Check,
    tested: Backtest | None,
    has_report: bool,
    files: list[Path],
) -> dict[str, Any]:
    """Describe the folder as `stforecast info --json` does other things."""
    names = {"run": RUN} | ({"report": REPORT} if has_report else {})
    return {
        "path": str(out),
        "kind": "checked forecast",
        "assumed": _assumed(plan),
        "check": {**check._asdict(), "skill": check.skill},
        "backtest": tested and {n: asdict(found) for n, found in tested.estimates.items()},
        **{name: str(file) for name, file in zip((FORECAST, PLAN), files, strict=True)},
        **{name: str(out / file) for name, file in names.items()},
    }


def _prepare(ctx: click.Context, data: Path, out: Path, table: dict[str, Any]) -> Path:
    """Return the path of the cube, which is written if the data are a table."""
    from data_prep.cube import write_cube
    from data_prep.sets.table import read

    if data.suffix == ".nc":
        if found := [*given(ctx, table)]:
            flag = f"--{found[0].replace('_', '-')}"
            raise click.UsageError(f"{data} is a cube, for which there is no {flag}.", ctx)
        return data
    ds = read(data, **table)
    out.mkdir(parents=True, exist_ok=True)
    return write_cube(ds, out / CUBE)


def _write_report(
    run: ForecastRun, series: Series, outlook: Outlook, out: Path, data: Path
) -> Path | None:
    from stforecast.report.write import ReportPage, try_report

    def write() -> Path:
        page = ReportPage()
        page.add_outlook(run, series, outlook)
        page.add_forecasts([run])
        return page.write(out / REPORT, f"Forecast of {data.name}")

    return try_report(write, out / REPORT)
