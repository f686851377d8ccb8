"""The commands for forecasts: run, plot, leaks, list.

Summary of a run in a few lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.base.text import counted, in_minutes
from stforecast.bench.run_groups import group_runs
from stforecast.bench.tables import plain, traffic_sentence
from stforecast.cli.commands import (
    make_list_command,
    make_plot_group,
    run_folder_options,
    say_next,
    to_json,
)
from stforecast.cli.lists import LISTS
from stforecast.cli.options import (
    EVENTS,
    EVENTS_HELP,
    HELP,
    JSON,
    PATH,
    OptionSections,
    check_cubes,
    from_dataclass,
    given,
    peek,
)
from stforecast.comparison.further_tables import nominal_coverage, refit_notes
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.results import further_columns, is_pooled
from stforecast.comparison.rows import Row
from stforecast.comparison.table import per_cent
from stforecast.default import DEFAULT_METHOD
from stforecast.plots import PLOTS
from stforecast.results import ForecastRun, units_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from stforecast.federated.runs.unfinished_run import AfterRound
    from stforecast.results import ForecastRun


def run_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of a run by section, for the method and model in raw arguments."""
    check_cubes(args)
    from stforecast.baselines import BASELINES
    from stforecast.config import defaults, sections

    method = peek(args, "--method", DEFAULT_METHOD)
    model = peek(args, "--model", defaults(method)["model"])
    made_for = defaults(method, model)
    unused = f" (not used by {method})" if method in BASELINES else ""
    titles = {
        "data": "Data", "window": "Windows", "training": f"Training{unused}",
        "loss": f"Loss{unused}", "uplink": f"Uploads{unused}", "robust": f"Defence{unused}",
        "interval": "Intervals", "rolling": "Rolling evaluation", "run": "Computation",
        "method_options": f"Options of {method}", "model_options": f"Options of {model}{unused}",
    }  # fmt: skip
    return {titles[s]: from_dataclass(t, made_for) for s, t in sections(method, model).items()}


@click.command("run", cls=OptionSections, sections=run_options, context_settings=HELP)
@click.option("--data", type=PATH, help="Cube written by prepare.  [required]")
@run_folder_options(DEFAULT_METHOD, "stforecast list methods")
@JSON
@click.pass_context
def run_command(
    ctx: click.Context, data: Path, method: str, out: Path, label: str | None,
    resume: Path | None, as_json: bool, **settings: Any,
) -> None:  # fmt: skip
    """Train a method, evaluate it on the test part and save the run.

    Several services, as in --service internet,call, are forecast one after the other, each in a
    folder of its name within --out. The last options depend on --method and --model: give these
    with --help to list them.
    """
    from stforecast.cli.info import describe_run
    from stforecast.cli.options import check_resumed
    from stforecast.results import ForecastRun

    check_resumed(ctx, allowed=["data", "as_json"], needed=["data", "out"])
    services = (settings["service"] or "").split(",")
    settings = given(ctx, settings)
    for service in services:
        of = settings | ({"service": service.strip()} if service else {})
        folder = out if resume or len(services) == 1 else out / service.strip()
        with _progress(ctx, ForecastRun.command, method, resume, of) as after_round:
            finished = _run(data, method, folder, label, resume, of, after_round)
        click.echo(to_json(describe_run(finished.folder)) if as_json else summary(finished))
    say_next("report", finished.folder if len(services) == 1 else out, "--out", "report.html")


def _run(
    data: Path, method: str, out: Path, label: str | None, resume: Path | None,
    settings: dict[str, Any], after_round: AfterRound | None,
) -> ForecastRun:  # fmt: skip
    """Begin or resume a run."""
    from stforecast import runs

    if resume:
        return runs.resume(resume, data, after_round=after_round)
    return runs.run(method, data, out, settings, label=label, after_round=after_round)


def _progress(
    ctx: click.Context, command: str, method: str, resume: Path | None, settings: dict[str, Any]
) -> AbstractContextManager[AfterRound | None]:
    """Return the progress bar of a run's rounds."""
    from stforecast.bench.progress import rounds_bar
    from stforecast.config import resolve
    from stforecast.federated.runs.run_folder import read_config

    config = read_config(resume, command, resolve) if resume else resolve(method, **settings)
    progress = ctx.obj["progress"] and config.federated
    return rounds_bar(config.training.rounds, progress=progress)


def _find(
    folders: tuple[Path, ...], history: Path | None, events: Path | None
) -> list[ForecastRun]:
    """Open finished runs, and test models without results on a history.

    Raises:
        InputError: if a model needs a history, or none does but one or its events are given.
    """
    from stforecast.plots.figure import FittedRun
    from stforecast.results import ForecastRun, is_model

    found: list[ForecastRun] = []
    if (history or events) and not any(map(is_model, folders)):
        raise InputError(
            f"{folders[0]}: runs are drawn with their own test results; leave out "
            f"{'--history' if history else '--events'}, or give a model such as that of adapt"
        )
    for folder in folders:
        if not is_model(folder):
            found += ForecastRun.find([folder])
        elif history is not None:
            found.append(FittedRun.of_model(folder, history, events))
        else:
            raise InputError(
                f"{folder}: a model without test results; give --history, a cube to test it on"
            )
    return found


TESTED_ON = click.Option(
    ["--history"], type=PATH,
    help="Cube to test those RUNS on that are models without results, such as those of adapt.",
)  # fmt: skip

plot = make_plot_group(
    "Draw a figure of finished runs.", PLOTS, _find, "stforecast run",
    [TESTED_ON, click.Option(["--events"], type=PATH, help=EVENTS_HELP)],
)  # fmt: skip


@click.command(context_settings=HELP)
@click.argument("run", type=PATH)
@click.option("--history", type=PATH, required=True, help="Cube whose last quarter is tested.")
@EVENTS
def leaks(run: Path, history: Path, events: Path | None) -> None:
    """Check that forecasts do not depend on later values.

    All values from a window's first target on, including those of further services, are replaced
    at random; the window's inputs and forecast must not change. The calendar and a table of events
    are known in advance and stay as they are.
    """
    from stforecast.forecaster import Forecaster

    forecaster = Forecaster.load(run)
    if found := forecaster.find_leaks(forecaster.read(history, events)):
        raise InputError(f"{run} leaks: {'; '.join(map(str, found))}; do not trust its errors")
    click.echo(f"{run}: no leak found in the last quarter of {history}")


list_command = make_list_command(LISTS)


def summary(run: ForecastRun) -> str:
    """Summarise a finished run in a few lines."""
    rounds = run.rounds()
    models = {"best": run.method}
    if len(rounds):
        names = _names_of_rounds(_best_round(rounds), len(rounds))
        selections = sorted(run.metrics()["selection"].unique())
        models = {s: _model_name(s, names) for s in selections if s.partition(" ")[0] in names}
    shown = {"mse": "MSE", "mae": "MAE", "raw_mae": f"MAE, {units_of(run)}", "mase": "MASE"}
    shown |= further_columns([run])
    errors = [
        {"model": name, **{heading: f"{run.score(m, s):.4f}" for m, heading in shown.items()}}
        for s, name in models.items()
    ]
    lines = [plain(errors)]
    if is_pooled(run):
        lines.append("the records of all cells were pooled in one place")
    elif len(rounds):
        lines.append(traffic_sentence(run))
    if sizes := run.about.get("cells_of_clients", {}).values():
        span = f"{min(sizes)} to {max(sizes)} cells" if len(sizes) > 1 else f"{max(sizes)} cells"
        lines.append(f"{counted(len(sizes), 'client')} of {span}; errors of each in clients.csv")
    if note := _window_note(run):
        lines.append(note)
    if chosen := run.about.get("chosen"):
        texts = (f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in chosen.items())
        lines.append(f"chosen on the validation part: {', '.join(texts)}")
    if guarantee := run.about.get("privacy"):
        lines.append(
            f"({guarantee['epsilon']:.3g}, {guarantee['delta']:g})-differential privacy of "
            f"{guarantee['of']} over {guarantee['uploads']} uploads"
            f"; not covered: {'; '.join(guarantee.get('not_covered', []))}"
        )
    rows = [Row(group) for group in group_runs([run])]
    (line,) = leaderboard(rows, "raw_mae").lines
    if line.skill is not None:
        found = per_cent(line.skill).replace(" [", " % [")
        lines.append(f"skill against the value one day before, in MAE: {found}")
    if of_intervals := interval_line(run):
        lines.append(of_intervals)
    lines += refit_notes(rows)
    lines.append(f"errors on the test part, of z-scores unless said otherwise; run in {run.folder}")
    return "\n".join(lines)


def interval_line(run: ForecastRun) -> str:
    """Return the coverage, mean width and furthest bounds of intervals; "" without any."""
    select = run.settings.get("select", "best")
    if not math.isfinite(held := run.score("coverage", select)):
        return ""
    width, forecasts = run.score("raw_width", select), run.forecasts()
    bounds = f"{float(forecasts['lower'].min()):,.4g} to {float(forecasts['upper'].max()):,.4g}"
    values = f"{float(forecasts['y'].min()):,.4g} to {float(forecasts['y'].max()):,.4g}"
    return (
        f"{nominal_coverage(run):.0%} intervals contain {held:.1%} of the test values; mean width "
        f"{width:,.4g}, bounds from {bounds}, values from {values}"
    )


def _window_note(run: ForecastRun) -> str:
    """Return the settings given as times, such as a day, in steps of the data."""
    asked, used = run.settings, run.about.get("window", {})
    names = (name for name, value in used.items() if asked.get(name) != value)
    steps = [f"{name} {used[name]}" for name in names if name != "target"]
    if not steps:
        return ""
    step = in_minutes(pd.Timedelta(minutes=float(run.about["step_minutes"])))
    return f"in steps of {step}: {', '.join(steps)}"


def _names_of_rounds(best: int, last: int) -> dict[str, str]:
    """Return the names of the rounds whose models are shown, by selection.

    >>> _names_of_rounds(5, 5)
    {'best': 'best and last round, 5'}
    """
    if best == last:
        return {"best": f"best and last round, {best}"}
    return {"best": f"best round, {best}", "last": f"last round, {last}"}


def _model_name(selection: str, names: Mapping[str, str]) -> str:
    """Return a selection with the name of its round.

    >>> _model_name("best (global)", {"best": "best round, 7"})
    'best round, 7 (global)'
    """
    which, _, view = selection.partition(" ")
    return f"{names[which]} {view}".strip()


def _best_round(rounds: pd.DataFrame) -> int:
    """Return the round of the lowest validation loss, or the last one without a validation part."""
    losses = rounds["validation_loss"].to_numpy()
    return int(np.nanargmin(losses)) + 1 if np.isfinite(losses).any() else len(rounds)
