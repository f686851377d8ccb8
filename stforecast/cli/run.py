"""The commands for runs: run, divide, plot, leaks, list, compare and report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data_prep.base.errors import InputError, Stopped, Words, counted, counted_span
from data_prep.base.progress import doing
from stforecast.cli import options
from stforecast.cli.commands import command, make_list_command, make_plot_group, say_json, say_next
from stforecast.cli.lists import LISTS
from stforecast.forecasting import DEFAULT_METHOD
from stforecast.plots import PLOTS

if TYPE_CHECKING:
    from stforecast.federated.core.options import Grid
    from stforecast.forecasting.results import ForecastRun


def run_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of a run by section, for the method and model in raw arguments."""
    options.check_cubes(args)
    from stforecast.baselines import BASELINES
    from stforecast.forecasting.config import OF_ROUNDS, defaults, sections

    method = options.peek(args, "--method", DEFAULT_METHOD)
    model = options.peek(args, "--model", defaults(method)["model"])
    made_for = defaults(method, model)
    titles = {"model_options": f"Options of {model}"}
    if method in BASELINES:
        known = options.TITLES | titles
        titles |= {name: f"{known[name]} (not used by {method})" for name in OF_ROUNDS}
    return options.by_section(method, sections(method, model), made_for, titles)


@command(
    click.Option(["--data"], type=options.PATH, help="Cube written by prepare.  [required]"),
    options.RUN_FOLDER,
    options.JSON,
    sections=run_options,
)
def run_command(
    ctx: click.Context,
    *,
    data: Path,
    method: str = DEFAULT_METHOD,
    out: Path,
    label: str | None = None,
    resume: Path | None = None,
    sweep: tuple[str, ...] = (),
    track: str | None = None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a method, evaluate it on the test part and save the run.

    Several services, as in --service internet,call, are forecast one after the other, each in a
    folder of its name within --out. The last options depend on --method and --model: give these
    with --help to list them.

    Options:
        method: see: stforecast list methods.
        label: name in tables and figures; by default the method's.
        resume: resume this unfinished run instead of starting a new one.
        sweep: NAME=VALUE,VALUE: values of a setting to choose from on the validation part, by
            successive halving; repeat for further settings. Writes sweep.csv beside the results.
        track: write settings, rounds and errors to this experiment of MLflow, at
            MLFLOW_TRACKING_URI.
    """
    from stforecast.bench.described import describe_run
    from stforecast.comparison.results import summary
    from stforecast.forecasting.sweep import parse_grid

    options.check_resumed(ctx, allowed=["data", "as_json"], needed=["data", "out"])
    services = [name.strip() for name in (settings["service"] or "").split(",")]
    if len(services) > 1:
        _check_services(data, services)
        _refuse_runs(out, services)
    settings, grid = options.given(ctx, settings), parse_grid(sweep)
    for service in services:
        of = settings | ({"service": service} if service else {})
        folder = out if resume or len(services) == 1 else out / service
        of, notes = _choose(method, data, of, grid, folder) if grid else (of, {})
        try:
            finished = _train(ctx, method, data, folder, of, notes, resume, label, track)
        except Stopped as stop:
            if len(services) == 1:
                raise
            raise Stopped(stop.signal, f"{stop.place} of {service}", _left(out, services)) from stop
        doing("summing up")
        if as_json:
            say_json(describe_run(finished.folder))
        else:
            click.echo(summary(finished))
    say_next("report", finished.folder if len(services) == 1 else out, "--out", "report.html")


def _choose(
    method: str, data: Path, settings: dict[str, Any], grid: Grid, out: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings with the best of a grid, and notes on the trials and their uploads.

    The trials are written next to the results; a folder that has a run is refused.
    """
    from stforecast.federated.runs.run_folder import check_new, write_csv
    from stforecast.federated.uploads.uplink import counting_uploads
    from stforecast.forecasting.runs import notes_of
    from stforecast.forecasting.sweep import sweep

    check_new(out, "stforecast run")
    with counting_uploads() as sent:
        found = sweep(method, data, settings, grid)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(found.trials, out / "sweep.csv")
    return settings | found.chosen, {"swept": found.swept, **notes_of(sent)}


def _train(
    ctx: click.Context,
    method: str,
    data: Path,
    out: Path,
    settings: dict[str, Any],
    notes: dict[str, Any],
    resume: Path | None,
    label: str | None,
    track: str | None,
) -> ForecastRun:
    """Begin or resume a run, with a progress bar of its rounds."""
    from stforecast.bench.progress import rounds_bar
    from stforecast.federated.runs.run_folder import read_config
    from stforecast.forecasting import runs
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.results import ForecastRun
    from stforecast.tracking import MLflow

    if resume:
        config = read_config(resume, ForecastRun.command, resolve)
    else:
        config = resolve(method, **settings)
    progress = ctx.obj["progress"] and config.federated
    with rounds_bar(config.total_rounds, progress=progress) as after_round:
        if resume:
            return runs.resume(resume, data, after_round=after_round)
        return runs.run(
            method, data, out, settings, label=label, notes=notes, after_round=after_round,
            callbacks=[MLflow(track, out.name)] if track else [],
        )  # fmt: skip


def _check_services(data: Path, services: Sequence[str]) -> None:
    """Refuse services that the cube lacks, or that are named twice, before the first is trained."""
    from data_prep.cube import open_cube
    from stforecast.data.cubes import choose_service

    if twice := next((s for i, s in enumerate(services) if s in services[:i]), None):
        raise InputError(Words("{service} names {} twice; name it once", twice))
    with open_cube(data) as cube:
        for service in services:
            choose_service(cube, service, str(data))


def _refuse_runs(out: Path, services: Sequence[str]) -> None:
    from stforecast.federated.runs.run_folder import is_begun, is_finished

    done = [name for name in services if is_finished(out / name)]
    if found := [name for name in services if name in done or is_begun(out / name)]:
        left = "" if done == services else f"{_left(out, services)}; or "
        raise InputError(
            f"{out} holds runs of {', '.join(found)}, finished: {', '.join(done) or 'none'}; ",
            left,
            Words("choose another {out}"),
        )


def _left(out: Path, services: Sequence[str]) -> str:
    """Return how to do the services that have no finished run in a folder."""
    from stforecast.federated.runs.run_folder import BEGUN, is_finished

    left = [name for name in services if not is_finished(out / name)]
    begun = [name for name in left if (out / name / BEGUN).exists()]
    typed = {name: shlex.quote(str(out / name)) for name in left}
    steps = [f"go on with: stforecast run --resume {typed[name]}" for name in begun]
    if new := [name for name in left if name not in begun]:
        again = f"give the same command with --service {shlex.quote(','.join(new))}"
        steps.append(f"{again} --out {typed[new[0]]}" if len(new) == 1 else again)
    return ", then ".join(steps)


def _find(
    folders: tuple[Path, ...], history: Path | None, events: Path | None
) -> list[ForecastRun]:
    """Open finished runs, and test models without results on a history."""
    from stforecast.forecasting.results import ForecastRun, is_model
    from stforecast.plots.figure import model_run

    if (history or events) and not any(map(is_model, folders)):
        raise InputError(
            f"{folders[0]}: runs are drawn with their own test results; leave out "
            f"{'--history' if history else '--events'}, or give a model such as that of adapt"
        )
    runs = [folder for folder in folders if not is_model(folder)]
    found = ForecastRun.find(runs) if runs else []
    for folder in filter(is_model, folders):
        if history is not None:
            found.append(model_run(folder, history, events))
        else:
            raise InputError(
                f"{folder}: a model without test results; give --history, a cube to test it on"
            )
    return found


tested_on = click.Option(
    ["--history"],
    type=options.PATH,
    help="Cube to test those RUNS on that are models without results, such as those of adapt.",
)

plot = make_plot_group(
    "Draw a figure of finished runs.", PLOTS, _find, "stforecast run", [tested_on, options.EVENTS]
)


@command(options.EVENTS)
def leaks(run: Path, *, history: Path, events: Path | None) -> None:
    """Check that forecasts do not depend on later values.

    All values from a window's first target on, including further services, are replaced
    at random; the window's inputs and forecast must not change. The calendar and a table of events
    are known in advance and stay as they are.

    Options:
        history: cube whose last quarter is tested.
    """
    from stforecast.forecasting.forecaster import Forecaster

    forecaster = Forecaster.load(run)
    if found := forecaster.find_leaks(forecaster.read(history, events)):
        raise InputError(f"{run} leaks: {'; '.join(map(str, found))}; do not trust its errors")
    click.echo(f"{run}: no leak found in the last quarter of {history}")


@command(click.Option(["--data"], type=options.PATH, required=True, help="Cube, as of run."))
def divide(
    *,
    data: Path,
    out: Path,
    clients: str = "dirichlet:8",
    service: str | None = None,
    split: str = "fuels",
    seed: int = 1,
) -> None:
    """Draw or tabulate the partition of cells among clients, without training.

    The table is a file for --clients. Bits are the Jensen-Shannon divergence of the clients' mean
    weeks, and of the levels of their cells, from the mean of all clients: 0 if they are equal.

    Options:
        out: figure (.png, .pdf, .svg) or table (.csv).
        clients: as of run; see: stforecast list partitions.
        service: variable of the cube; optional if there is only one.
        split: as of run; only the training part is read.
        seed: seed of the partition.
    """
    import pandas as pd

    from stforecast.bench.drawing import FORMATS, save_figure
    from stforecast.federated.runs.run_folder import write_csv
    from stforecast.forecasting.config import resolve
    from stforecast.forecasting.fit import prepare_series
    from stforecast.plots.division import division

    options.check_ending(out, *FORMATS, ".csv")
    settings = {"clients": clients, "service": service, "split": split, "seed": seed}
    _, found = prepare_series(resolve("fedavg", **settings), data)
    parts, differ = found.clients, found.heterogeneity
    if out.suffix == ".csv":
        write_csv(pd.DataFrame({"cell": found.series.cells, "client": parts.labels}), out)
    else:
        save_figure(division(differ, parts.names), out)
    apart = ", ".join(f"{name} {value:.2g} bits apart" for name, value in differ.bits().items())
    click.echo(
        f"{out}: {counted(len(parts.client_of), 'cell')} of {found.series.name}, "
        f"{counted(len(parts), 'client')} of "
        f"{counted_span(parts.sizes.min(), parts.sizes.max(), 'cell')}; {apart}"
    )


list_command = make_list_command(LISTS)


@command(options.JSON)
def score_command(
    forecasts: tuple[Path, ...],
    *,
    protocol: str,
    data: Path,
    reference: str | None = None,
    out: Path | None = None,
    as_json: bool,
) -> None:
    """Score forecasts of any tool under a frozen protocol, and compare them with our own rows.

    FORECASTS are CSV files with the columns time (the begin of the target's step) or origin (the
    begin of the newest step that the forecast knew), step, cell and forecast, and optional
    quantiles q0.05, q0.25, q0.75 and q0.95; or folders of runs. Files are checked for missing and
    doubled forecasts, other times, zones and units, and for origins after their targets.

    Options:
        protocol: name of the protocol, milan88, milan10000 or metr-la.
        data: cube of the protocol; an error says how to prepare it.
        reference: row that the others are compared with; by default the one of the lowest error.
        out: CSV of the sums of errors by day, to keep or to compare.
    """
    from data_prep.base.registry import find
    from stforecast.bench.tables import for_terminal, numbers_of
    from stforecast.comparison.protocol import PROTOCOLS
    from stforecast.comparison.score import score, score_legend, tabulate_scores
    from stforecast.federated.runs.run_folder import write_csv

    chosen = find("protocol", protocol, PROTOCOLS)
    sums = score(forecasts, data, chosen)
    if out is not None:
        write_csv(sums, out)
    tables = tabulate_scores(sums, chosen, reference)
    if as_json:
        say_json({"protocol": protocol, "tasks": {n: numbers_of(t) for n, t in tables.items()}})
        return
    for name, rows in tables.items():
        click.echo(f"{protocol}, {name} ahead\n\n{for_terminal(rows)}\n")
    click.echo(score_legend(sums, chosen))


@command(options.JSON)
def compare_command(
    runs: tuple[Path, ...],
    *,
    metric: str | None = None,
    reference: str | None = None,
    out: Path | None = None,
    as_json: bool,
) -> None:
    """Compare finished runs: one sorted table for each data set, with intervals and tests.

    RUNS are folders of runs, benchmarks or backtests. Runs that differ only in the seed or the fold
    are one row. All runs on one data set must be tested on the same targets.

    Image runs are compared by their accuracy and have no --metric.

    Options:
        metric: error of forecasts to compare, see: stforecast list metrics. mse and mae are of
            z-scores, raw_… are in the data's units.  [default: mase]
        reference: label of the row that the others are compared with, or 'seasonal naive'; by
            default the row with the lowest error.
        out: folder for comparison.md, .csv and .tex, and figures; or a workbook, .xlsx.
    """
    options.check_runs(runs)
    doing("opening runs")
    from stforecast.bench.kind import kind_named
    from stforecast.federated.runs.run_folder import (
        check_folder,
        find_folders,
        read_about,
        write_table,
        writing,
    )

    workbook = out is not None and out.suffix.lower() == ".xlsx"
    if out is not None and not workbook:
        check_folder(out)
    first, *_ = find_folders(runs, "stforecast run")
    kind = kind_named(read_about(first, "stforecast run"))
    if metric is not None and kind.metric is None:
        raise click.UsageError(f"{first} is a run of {kind.name}, which has no --metric.")
    found = kind.compare(runs, metric or kind.metric, reference)
    click.echo(found.numbers.to_json(orient="records", indent=2) if as_json else found.text)
    if out is not None and workbook:
        write_table(found.numbers, out)
        click.echo(f"\n{out}: {counted(len(found.numbers), 'row')}", err=as_json)
    elif out is not None:
        with writing(out):
            drawn = found.write(out)
        figures = f" and {counted(drawn, 'figure')}" if drawn else ""
        click.echo(f"\ncomparison.md, .csv and .tex{figures} in {out}", err=as_json)
    say_next("report", *runs, "--out", "report.html")


@command()
def report(
    runs: tuple[Path, ...],
    *,
    out: Path,
    metric: str = "mase",
    reference: str | None = None,
) -> None:
    """Write an HTML page about finished runs that opens without a network.

    It has a leaderboard with intervals, a map of the cells, series and errors of each cell, curves,
    worst cells and hours, a data sheet, settings, and the commands that repeat the runs.

    RUNS are folders of runs, benchmarks or backtests. For image runs, the page has a leaderboard,
    accuracies by round, client and class, the images of each client, settings and commands.

    Options:
        out: page to write: .html.
        metric: error to compare, see: stforecast list metrics. mse and mae are of z-scores, raw_…
            are in the data's units.
        reference: label of the row that the others are compared with, as for compare.
    """
    options.check_ending(out, ".html")
    options.check_runs(runs)
    doing("opening runs")
    from stforecast.bench.kind import kind_named
    from stforecast.bench.run_groups import grouped
    from stforecast.federated.runs.run_folder import find_folders, read_about
    from stforecast.report.write import ReportPage

    folders = find_folders(runs, "stforecast run")
    kinds = grouped(folders, lambda folder: kind_named(read_about(folder, "stforecast run")).name)
    page, wanted = ReportPage(), reference
    for name in sorted(kinds):
        kind = kind_named({"task": name})
        kind.add_to_page(page, list(map(kind.run_type.open, kinds[name])), metric, wanted)
        wanted = None
    words = ["stforecast", "report", *map(str, runs), "--out", str(out)]
    words += ["--metric", metric] if metric != "mase" else []
    words += ["--reference", reference] if reference else []
    subject = "runs" if len(kinds) > 1 else next(iter(kinds))
    page.write(out, f"{subject.capitalize()} compared", shlex.join(words))
    size = out.stat().st_size / 1e6
    click.echo(f"{out}: {counted(len(folders), 'run')}, {size:.1f} MB; open it in a browser")
