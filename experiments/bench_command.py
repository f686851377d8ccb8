"""The command that runs a benchmark, of forecasts or of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from data_prep.errors import InputError
from experiments.options import HELP, PATH
from experiments.ray_engine import LOCAL, RAY


@click.command(context_settings=HELP)
@click.argument("config", type=PATH)
@click.option("--out", type=PATH, required=True, help="Folder for runs and tables.")
@click.option("--preset", help="Use one of the file's presets, such as small.")
@click.option("--data", multiple=True, help="Use this cube, or image set, instead. Repeatable.")
@click.option("--service", multiple=True, help="Use this service instead. Repeatable.")
@click.option("--images", type=PATH, help="Folder of the image sets' files.")
@click.option("--seed", type=int, multiple=True, help="Use this seed instead. Repeatable.")
@click.option("--rounds", type=int, help="Use this number of rounds instead.")
@click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE",
    help="Use this setting for all methods. Repeatable.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice([LOCAL, RAY]), default=LOCAL, show_default=True,
    help="Where runs are done: one by one here, or many at a time by Ray.",
)  # fmt: skip
@click.pass_obj
def bench(
    obj: dict[str, bool], config: Path, out: Path, preset: str | None, data: tuple[str, ...],
    service: tuple[str, ...], images: Path | None, seed: tuple[int, ...], rounds: int | None,
    more: tuple[str, ...], engine: str,
) -> None:  # fmt: skip
    """Run a benchmark: methods × data × seeds from a TOML file.

    A table of results comes at the end. Finished runs are kept: started again, it goes on where it
    stopped. A file with `task = "images"` is one of images, any other one of forecasts.

    CONFIG is a file, or the name of one that comes with the package, such as quick; a name that is
    not known lists them.
    """
    from experiments.config_file import find_config, is_image_file
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    config = find_config(config)
    of_images, settings = is_image_file(config), dict(map(_setting, more))
    if rounds is not None:
        settings["rounds"] = rounds
    given = {"--service": service} if of_images else {"--images": images, "--preset": preset}
    for flag, value in given.items():
        if value:
            kind = "images" if of_images else "forecasts"
            raise click.UsageError(f"{config} is a benchmark of {kind}, which has no {flag}.")
    if of_images:
        table, failures = _images(
            config, out, preset, data, images, seed, settings, obj["progress"], engine
        )
    else:
        table, failures = _forecasts(
            config, out, data, service, seed, settings, obj["progress"], engine
        )
    click.echo(table)
    click.echo(
        f"\ntable, figures, accuracies and runs in {out}"
        if of_images
        else f"\ntable, errors and runs in {out}"
    )
    if failures:
        raise InputError(f"{len(failures)} runs failed: see failed.txt in {out}/runs")


def _setting(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`; what is no TOML value is text.

    >>> _setting("lr=0.1"), _setting("weights=inverse")
    (('lr', 0.1), ('weights', 'inverse'))
    """
    import tomllib

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is no NAME=VALUE")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _forecasts(
    config: Path, out: Path, data: tuple[str, ...], service: tuple[str, ...],
    seed: tuple[int, ...], settings: dict[str, Any], progress: bool, engine: str,
) -> tuple[str, dict[str, str]]:  # fmt: skip
    """The table and the failures of a benchmark of forecasts."""
    from experiments.bench import run_grid
    from experiments.grid import load_grid
    from experiments.report import results_table

    paths = [Path(path) for path in data]
    grid = load_grid(config).replace(paths, service, seed, settings)
    outcome = run_grid(grid, out, progress=progress, engine=engine)
    return results_table(outcome.runs, outcome.failures, grid.published), outcome.failures


def _images(
    config: Path, out: Path, preset: str | None, data: tuple[str, ...], images: Path | None,
    seed: tuple[int, ...], settings: dict[str, Any], progress: bool, engine: str,
) -> tuple[str, dict[str, str]]:  # fmt: skip
    """The table and the failures of a benchmark of images."""
    from experiments.images.bench import run_image_grid
    from experiments.images.grid import load_image_grid
    from experiments.images.report import results_table

    grid = load_image_grid(config, preset).replace(data, seed, settings, images)
    outcome = run_image_grid(grid, out, progress=progress, engine=engine)
    return results_table(outcome.runs, outcome.failures, grid.published), outcome.failures


COMMANDS = (bench,)
