"""The command that writes a page on finished runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from data_prep.base.text import counted
from experiments.config_file import IMAGES
from experiments.options import HELP, PATH, check_runs
from experiments.targets import check_ending

if TYPE_CHECKING:
    from stforecast.report.section import PlainSection

METRIC = "mase"


@click.command(context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", type=PATH, required=True, help="Page to write: .html.")
@click.option("--title", help="Heading.  [default: Forecasts, Images or Runs compared]")
@click.option(
    "--metric", default=METRIC, show_default=True,
    help="Error to compare, see: stforecast list metrics. mse and mae are of z-scores, raw_… are "
    "in the data's units.",
)  # fmt: skip
@click.option(
    "--reference", help="Label of the row that the others are compared with, as for compare."
)
def report(
    runs: tuple[Path, ...], out: Path, title: str | None, metric: str, reference: str | None
) -> None:
    """Write an HTML page about finished runs that opens without a network.

    It has a leaderboard with intervals, a map of the cells, series and errors of each cell, curves,
    worst cells and hours, a data sheet, settings, and the commands that repeat the runs.

    RUNS are folders of runs, benchmarks or backtests. For image runs, the page has a leaderboard,
    accuracies by round, client and class, the images of each client, settings and commands.
    """
    check_ending(out, ".html")
    check_runs(runs)
    from stforecast.federated.runs.run_folder import find_folders
    from stforecast.report.write import write_report
    from stforecast.results import ForecastRun

    folders = find_folders(runs, ForecastRun.command)
    of_images = [folder for folder in folders if _is_of_images(folder)]
    found = [ForecastRun.open(folder) for folder in folders if folder not in of_images]
    words = ["stforecast", "report", *map(str, runs), "--out", str(out)]
    words += ["--title", title] if title else []
    words += ["--metric", metric] if metric != METRIC else []
    words += ["--reference", reference] if reference else []
    write_report(
        found,
        out,
        metric=metric,
        reference=reference if found else None,
        title=title or _title(bool(found), bool(of_images)),
        command=shlex.join(words),
        more=_image_sections(of_images, None if found else reference),
    )
    size = out.stat().st_size / 1e6
    click.echo(f"{out}: {counted(len(folders), 'run')}, {size:.1f} MB; open it in a browser")


def _title(forecasts: bool, images: bool) -> str:
    if forecasts and images:
        return "Runs compared"
    return "Forecasts compared" if forecasts else "Images compared"


def _is_of_images(folder: Path) -> bool:
    from stforecast.federated.runs.run_folder import read_about
    from stforecast.results import ForecastRun

    return read_about(folder, ForecastRun.command).get("task") == IMAGES


def _image_sections(folders: Sequence[Path], reference: str | None) -> list[PlainSection]:
    if not folders:
        return []
    from experiments.images.comparison import rows_by_data
    from experiments.images.page import image_sections
    from vision.results import ImageRun

    runs = [ImageRun.open(folder) for folder in folders]
    return image_sections(rows_by_data(runs, reference), reference)
