"""The command that writes a page on finished runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.options import HELP, PATH
from experiments.targets import check_ending

if TYPE_CHECKING:
    from stforecast.report.tables import Table

TITLE, METRIC = "Forecasts compared", "mase"


@click.command(context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, required=True, help="Page to write: .html.")
@click.option("--title", default=TITLE, show_default=True, help="Heading.")
@click.option(
    "--metric", default=METRIC, show_default=True,
    help="Error to compare, as in stforecast list metrics: mse and mae of z-scores, raw_… in the "
    "data's units.",
)  # fmt: skip
@click.option("--reference", help="Label that the others are compared with, as for compare.")
def report(
    runs: tuple[Path, ...], out: Path, title: str, metric: str, reference: str | None
) -> None:
    """Write one HTML page on finished runs, which opens without a network.

    A leaderboard with intervals, a map of the cells, series and errors of each cell, curves, worst
    cells and hours, a data sheet, settings, and the commands that repeat the runs.

    RUNS are folders of runs, benchmarks or backtests. Of image runs the page has a table of
    accuracies.
    """
    from stforecast.federated.runs.run_folder import find_folders
    from stforecast.report.write import write_report
    from stforecast.results import ForecastRun

    check_ending(out, ".html")
    folders = find_folders(runs, ForecastRun.command)
    of_images = [folder for folder in folders if _is_image_run(folder)]
    found = [ForecastRun.open(folder) for folder in folders if folder not in of_images]
    given = {
        "--title": (title, TITLE),
        "--metric": (metric, METRIC),
        "--reference": (reference, None),
    }
    options = [w for flag, (value, usual) in given.items() if value != usual for w in (flag, value)]
    words = ["stforecast", "report", *map(str, runs), *map(str, options), "--out", str(out)]
    write_report(
        found,
        out,
        metric=metric,
        reference=reference,
        title=title,
        command=shlex.join(words),
        more=_accuracies(of_images),
    )
    size = out.stat().st_size / 1e6
    click.echo(f"{out}: {len(found) + len(of_images)} runs, {size:.1f} MB; open it in a browser")


def _is_image_run(folder: Path) -> bool:
    from stforecast.federated.runs.run_folder import read_about

    return "views" in read_about(folder, "stforecast run")


def _accuracies(folders: Sequence[Path]) -> list[Table]:
    """Return a table of the accuracies of image runs, if there are any."""
    if not folders:
        return []
    from stforecast.bench.numbers import spread
    from stforecast.bench.run_groups import group_runs
    from stforecast.report.tables import Table
    from vision.results import ImageRun

    rows = []
    for group in group_runs([ImageRun.open(folder) for folder in folders]):
        first = group.runs[0]
        for view in first.views:
            accuracy = [100 * run.accuracy("last", view, first.masks[0]) for run in group.runs]
            row = {**first.facts(), "method": group.named(*first.tags_of(view))}
            rows.append({**row, "accuracy, %": spread(accuracy), "runs": str(len(group.runs))})
    note = "Mean over clients of the accuracy on their test images after the last round."
    return [Table("Accuracy of image runs", rows, [note])]


COMMANDS = (report,)
