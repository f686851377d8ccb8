"""The command that runs a benchmark, of forecasts or of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data_prep.base.errors import InputError
from data_prep.base.text import counted
from experiments.endings import say_next, to_json
from experiments.options import HELP, JSON, PATH
from stforecast.bench.ray import LOCAL, RAY

if TYPE_CHECKING:
    from stforecast.bench.grid import Grid


MORE = click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE",
    help="Use this setting for all methods. Repeatable.",
)  # fmt: skip

ENGINE = click.option(
    "--engine", type=click.Choice([LOCAL, RAY]), default=LOCAL, show_default=True,
    help="Execution of runs: one by one locally, or in parallel by Ray.",
)  # fmt: skip


def _print_benchmarks(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Print the benchmarks of the package and end, if asked to."""
    from experiments.lists import benchmarks_list

    if wanted:
        click.echo(benchmarks_list())
        say_next("bench", "quick", "--out", "results/quick")
        ctx.exit()


@click.command(context_settings=HELP)
@click.argument("config", type=PATH)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_print_benchmarks,
    help="List the benchmarks of the package.",
)  # fmt: skip
@click.option("--out", type=PATH, required=True, help="Folder for runs and tables.")
@click.option("--preset", help="Use one of the file's presets, such as small.")
@click.option(
    "--data", multiple=True, help="Use this cube or image set, not the file's. Repeatable."
)
@click.option("--service", multiple=True, help="Use this service, not the file's. Repeatable.")
@click.option("--images", type=PATH, help="Folder of the image sets' files.")
@click.option(
    "--seed", type=int, multiple=True,
    help="Use this seed, not the file's, except in rows that have seeds of their own. Repeatable.",
)  # fmt: skip
@click.option("--rounds", type=int, help="Use this number of rounds, not the file's.")
@MORE
@ENGINE
@JSON
@click.pass_obj
def bench(
    obj: dict[str, bool], config: Path, out: Path, preset: str | None, data: tuple[str, ...],
    service: tuple[str, ...], images: Path | None, seed: tuple[int, ...], rounds: int | None,
    more: tuple[str, ...], engine: str, as_json: bool,
) -> None:  # fmt: skip
    """Run a benchmark: methods × data × seeds from a TOML file.

    It ends with a table of results. Finished runs are kept: run the same command again to resume. A
    file with `task = "images"` is a benchmark of images, any other file one of forecasts.

    CONFIG is a file, or the name of a benchmark of the package, such as quick; --list
    shows them.
    """
    from experiments.config_file import find_config, is_image_file
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    config = find_config(config)
    of_images = is_image_file(config)
    kind, flag, given = (
        ("images", "--service", service) if of_images else ("forecasts", "--images", images)
    )
    if given:
        raise click.UsageError(f"{config} is a benchmark of {kind}, which has no {flag}.")
    folder = None if images is None else str(images)
    settings = chosen_settings(more, images=folder, rounds=rounds)
    grid = (
        _image_grid(config, preset, data, seed, settings)
        if of_images
        else _forecast_grid(config, preset, data, service, seed, settings)
    )
    what = "table, figures, accuracies" if of_images else "table, errors"
    execute(grid, out, what, engine, as_json=as_json, progress=obj["progress"])


def execute(
    grid: Grid[Any], out: Path, what: str, engine: str, *, as_json: bool, progress: bool
) -> None:
    """Run a grid, write its report, and print its table.

    Args:
        grid: the benchmark.
        out: its folder.
        what: names of the results besides the runs.
        engine: `local` or `ray`.
        as_json: whether to print what `stforecast info --json` says of the folder, instead.
        progress: whether to show progress bars.

    Raises:
        InputError: if runs failed.
    """
    from stforecast.bench.jobs import run_grid

    outcome = run_grid(grid, out, progress=progress, engine=engine)
    page = _write_report(outcome.runs, grid, out)
    if as_json:
        click.echo(to_json(_described(out, outcome.failures)))
    else:
        click.echo(outcome.table)
        if page:
            click.echo(f"\nleaderboard and charts to click on: open {page} in a browser")
        click.echo(f"\n{what} and runs in {out}")
    if outcome.failures:
        raise InputError(
            f"{counted(len(outcome.failures), 'run')} failed: see failed.txt in each folder, "
            f"such as {out / 'runs' / next(iter(outcome.failures))}; {out / 'table.md'} names all"
        )
    say_next("compare", out, "--out", "comparison/")


def _described(out: Path, failures: Mapping[str, str]) -> dict[str, Any]:
    """Describe a finished benchmark as `stforecast info --json` does, with its failures."""
    from experiments.info.runs import describe_runs
    from stforecast.federated.runs.run_folder import ABOUT

    folders = sorted(path.parent for path in out.rglob(ABOUT))
    about = {"path": str(out), "kind": "finished runs", "runs": describe_runs(folders, out)}
    return {**about, "failures": dict(failures)}


def _write_report(runs: Sequence[Any], grid: Grid[Any], out: Path) -> Path | None:
    """Write `report.html`, if there are runs."""
    from stforecast.report.write import try_report, write_report
    from stforecast.results import ForecastRun

    page = out / "report.html"

    title, command = grid.title, grid.repeat(out)

    def write() -> Path:
        if grid.kind.run_type is ForecastRun:
            return write_report(runs, page, title=title, command=command)
        from experiments.images.comparison import rows_by_data
        from experiments.images.page import image_sections

        sections = image_sections(rows_by_data(runs), grid.reference)
        return write_report([], page, title=title, command=command, more=sections)

    return try_report(write, page) if runs else None


def _forecast_grid(
    config: Path, preset: str | None, data: tuple[str, ...], service: tuple[str, ...],
    seed: tuple[int, ...], settings: dict[str, Any],
) -> Grid[Any]:  # fmt: skip
    from experiments.forecasts.benchmark import FORECAST_KIND, services
    from stforecast.bench.grid import load_grid

    grid = load_grid(config, FORECAST_KIND, preset)
    return grid.replace(list(map(Path, data)), services(service), seed, settings)


def _image_grid(
    config: Path, preset: str | None, data: tuple[str, ...], seed: tuple[int, ...],
    settings: dict[str, Any],
) -> Grid[Any]:  # fmt: skip
    from experiments.images.benchmark import IMAGE_KIND
    from stforecast.bench.grid import load_grid

    return load_grid(config, IMAGE_KIND, preset).replace(data, (), seed, settings)


def chosen_settings(more: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return the settings of --set, and of options that are not None.

    Raises:
        UsageError: if one is given twice.
    """
    given = [*map(parse_setting, more), *((n, v) for n, v in options.items() if v is not None)]
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise click.UsageError(f"{twice} is given twice; give it once.")
    return dict(given)


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE`; a value that is not TOML is text.

    >>> parse_setting("lr=0.1"), parse_setting("weights=inverse")
    (('lr', 0.1), ('weights', 'inverse'))
    """
    import tomllib

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value
