"""The commands on finished runs: compare and report."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from data_prep.base.errors import counted
from stforecast.cli.commands import command, say_next
from stforecast.cli.options import JSON, check_ending, check_runs


@command(JSON)
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
        out: folder for comparison.md, .csv and .tex, and figures.
    """
    check_runs(runs)
    from stforecast.bench.kind import kind_of
    from stforecast.federated.runs.run_folder import (
        check_folder,
        find_folders,
        read_about,
        writing,
    )

    if out is not None:
        check_folder(out)
    first, *_ = find_folders(runs, "stforecast run")
    kind = kind_of(read_about(first, "stforecast run"))
    if metric is not None and kind.metric is None:
        raise click.UsageError(f"{first} is a run of {kind.name}, which has no --metric.")
    found = kind.compare(runs, metric or kind.metric, reference)
    click.echo(found.numbers.to_json(orient="records", indent=2) if as_json else found.text)
    if out is not None:
        with writing(out):
            drawn = found.write(out)
        figures = f" and {counted(drawn, 'figure')}" if drawn else ""
        click.echo(f"\ncomparison.md, .csv and .tex{figures} in {out}", err=as_json)
    say_next("report", *runs, "--out", "report.html")


METRIC = "mase"


@command()
def report(
    runs: tuple[Path, ...],
    *,
    out: Path,
    title: str | None = None,
    metric: str = METRIC,
    reference: str | None = None,
) -> None:
    """Write an HTML page about finished runs that opens without a network.

    It has a leaderboard with intervals, a map of the cells, series and errors of each cell, curves,
    worst cells and hours, a data sheet, settings, and the commands that repeat the runs.

    RUNS are folders of runs, benchmarks or backtests. For image runs, the page has a leaderboard,
    accuracies by round, client and class, the images of each client, settings and commands.

    Options:
        out: page to write: .html.
        title: heading.  [default: Forecasts, Images or Runs compared]
        metric: error to compare, see: stforecast list metrics. mse and mae are of z-scores, raw_…
            are in the data's units.
        reference: label of the row that the others are compared with, as for compare.
    """
    check_ending(out, ".html")
    check_runs(runs)
    from stforecast.bench.kind import kind_of
    from stforecast.federated.runs.run_folder import find_folders, read_about
    from stforecast.report.write import ReportPage

    kinds: dict[str, list[Path]] = {}
    folders = find_folders(runs, "stforecast run")
    for folder in folders:
        kinds.setdefault(kind_of(read_about(folder, "stforecast run")).name, []).append(folder)
    page, wanted = ReportPage(), reference
    for name in sorted(kinds):
        kind = kind_of({"task": name})
        kind.add_to_page(page, list(map(kind.run_type.open, kinds[name])), metric, wanted)
        wanted = None
    words = ["stforecast", "report", *map(str, runs), "--out", str(out)]
    words += ["--title", title] if title else []
    words += ["--metric", metric] if metric != METRIC else []
    words += ["--reference", reference] if reference else []
    subject = "runs" if len(kinds) > 1 else next(iter(kinds))
    page.write(out, title or f"{subject.capitalize()} compared", shlex.join(words))
    size = out.stat().st_size / 1e6
    click.echo(f"{out}: {counted(len(folders), 'run')}, {size:.1f} MB; open it in a browser")
