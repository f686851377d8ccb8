"""The commands that run benchmarks: bench, from a file, and backtest, from options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data_prep.base.errors import InputError, close_to, counted
from stforecast.bench import LOCAL, RAY
from stforecast.cli.commands import command, say_json, say_next
from stforecast.cli.options import JSON, check_cubes, from_dataclass

if TYPE_CHECKING:
    from stforecast.bench.grid import Grid


MORE = click.Option(
    ["--set", "more"],
    multiple=True,
    metavar="NAME=VALUE",
    help="Use this setting for all rows but those with a value of their own. Repeatable.",
)

ENGINE = click.Option(
    ["--engine"],
    type=click.Choice([LOCAL, RAY]),
    default=LOCAL,
    show_default=True,
    help="Execution of runs: one by one locally, or in parallel by Ray.",
)


@command(MORE, ENGINE, JSON)
def bench(
    ctx: click.Context,
    config: Path,
    *,
    out: Path,
    preset: str | None = None,
    data: tuple[str, ...] = (),
    service: tuple[str, ...] = (),
    images: Path | None = None,
    seed: tuple[int, ...] = (),
    row: tuple[str, ...] = (),
    rounds: int | None = None,
    more: tuple[str, ...],
    engine: str,
    as_json: bool,
) -> None:
    """Run a benchmark: methods × data × seeds from a TOML file.

    It ends with a table of results. Finished runs are kept: run the same command again to resume,
    or with --row and --seed to do a part, which joins what the folder holds: runs, or the sums of
    errors in a file kept.tar.xz, as each benchmark writes it. A file with `task = "images"` is a
    benchmark of images, any other file one of forecasts.

    CONFIG is a file, or the name of a benchmark of the package, such as quick; see: stforecast list
    benchmarks.

    Options:
        out: folder for runs and tables.
        preset: use one of the file's presets, such as small.
        data: use this cube or image set, not the file's. Repeatable.
        service: use this service, not the file's. Repeatable.
        images: folder of the image sets' files.
        seed: use this seed, not the file's, except in rows that have seeds of their own.
            Repeatable.
        row: run only this row, by its label; others are in the tables if they are finished.
            Repeatable.
        rounds: use this number of rounds, not the file's, except in rows that have their own.
    """
    from stforecast.bench.grid import load_grid
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    config = find_config(config)
    grid = load_grid(config, preset)
    kind = grid.kind
    for name, value in {"service": service, "images": images}.items():
        if value and name not in kind.options:
            raise click.UsageError(
                f"{config} is a benchmark of {kind.name}, which has no --{name}."
            )
    settings = chosen_settings(more, images=images and str(images), rounds=rounds)
    scenarios = kind.scenarios({"services": service}) if service else ()
    grid = grid.replace(data, scenarios, seed, settings, row)
    execute(grid, out, engine, as_json=as_json, progress=ctx.obj["progress"])


def execute(grid: Grid[Any], out: Path, engine: str, *, as_json: bool, progress: bool) -> None:
    """Run a grid, write its report, and print its table, or its description as JSON."""
    from stforecast.bench.described import describe_runs
    from stforecast.bench.jobs import run_grid

    outcome = run_grid(grid, out, progress=progress, engine=engine)
    page = _write_report([run for run in outcome.runs if not run.kept], grid, out)
    if as_json:
        rows, damaged = describe_runs(out)
        about = {"path": str(out), "kind": "finished runs", "runs": rows}
        say_json({**about, "failures": {**outcome.failures, **damaged}})
    else:
        click.echo(outcome.table)
        if page:
            click.echo(f"\nleaderboard and charts to click on: open {page} in a browser")
        figures = ", figures" if grid.figures else ""
        click.echo(f"\ntable{figures} and runs in {out}")
    if outcome.failures:
        raise InputError(
            f"{counted(len(outcome.failures), 'run')} failed: see failed.txt in each folder, "
            f"such as {out / 'runs' / next(iter(outcome.failures))}; {out / 'table.md'} names all"
        )
    say_next("compare", out, "--out", "comparison/")


def _write_report(runs: Sequence[Any], grid: Grid[Any], out: Path) -> Path | None:
    """Write `report.html`, if there are runs."""
    from stforecast.report.write import ReportPage, try_report

    def write() -> Path:
        page = ReportPage()
        # The row that others are compared with, unless all of its runs failed.
        done = {run.label for run in runs}
        known = grid.kind.row_labels([entry for entry in grid.entries if entry.label in done])
        reference = grid.reference if grid.reference in known else None
        grid.kind.add_to_page(page, runs, None, reference)
        return page.write(out / "report.html", grid.title, grid.repeat(out))

    return try_report(write, out / "report.html") if runs else None


def chosen_settings(more: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return the settings of --set, and of options that are not None; refuse one given twice."""
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
    from stforecast.forecasting.sweep import parse_value

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, parse_value(value)


def fold_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of the folds."""
    check_cubes(args)
    from stforecast.data.folds import FoldOptions

    return {"Folds": from_dataclass(FoldOptions)}


@command(MORE, ENGINE, JSON, sections=fold_options)
def backtest(
    ctx: click.Context,
    *,
    data: tuple[str, ...],
    service: tuple[str, ...] = (),
    method: tuple[str, ...],
    out: Path,
    seed: tuple[int, ...] = (),
    horizon: int | None = None,
    rounds: int | None = None,
    more: tuple[str, ...],
    reference: str | None = None,
    engine: str,
    as_json: bool,
    **folds: Any,
) -> None:
    """Test methods on several spans of time, each with models trained before it.

    Every fold has a training, a validation and a test span; the test spans follow each other and
    end with the data. One table sums up all test days. Finished runs are kept: run the same command
    again to resume.

    Example: stforecast backtest --data milan.nc --method ridge --test 7d --out results/

    Options:
        data: cube written by prepare. Repeatable.
        service: variable of the cubes. Repeatable.
        method: see: stforecast list methods. Repeatable.
        out: folder for runs and tables.
        seed: random seed, by default 1. Repeatable.
        horizon: number of steps ahead.
        rounds: rounds of federated methods.
        reference: method that the others are compared with, or 'seasonal naive'; by default the
            method with the lowest error.
    """
    from stforecast.cli.kind import services
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    settings = chosen_settings(more, rounds=rounds, horizon=horizon)
    grid = backtest_grid(data, list(dict.fromkeys(method)), folds, reference)
    grid = grid.replace(data, services(service), seed, settings)
    execute(grid, out, engine, as_json=as_json, progress=ctx.obj["progress"])


def backtest_grid(
    data: Sequence[str], methods: list[str], folds: dict[str, Any], reference: str | None
) -> Grid[Any]:
    """Build the benchmark of a backtest, whose folds are the fields of `FoldOptions`."""
    from stforecast.bench.grid import make_grid
    from stforecast.bench.grid_file import command_words
    from stforecast.cli.kind import FORECAST_KIND

    compared = {"reference": reference} if reference else {}
    table: dict[str, Any] = {
        "title": f"Backtest of {', '.join(Path(path).stem for path in data)}",
        "data": list(data),
        "methods": methods,
        "figures": ["horizon", "hours"],
        "backtest": folds,
        **compared,
    }
    given = {name: value for name, value in (folds | compared).items() if value}
    flags = {"--method": methods, **{f"--{name}": [value] for name, value in given.items()}}
    command = ("stforecast", "backtest", *command_words(flags, {}))
    return dataclasses.replace(make_grid(FORECAST_KIND, table), command=command)


def find_config(path: Path) -> Path:
    """Return the file, or the benchmark with that name that comes with an installed package.

    >>> find_config(Path("quick")).name
    'quick.toml'
    >>> find_config(Path("medium/gldp_table1.toml")).parent.name
    'medium'
    """
    if path.exists() and not path.is_dir():  # Such as the folder that --out of the same name made.
        return path
    from stforecast.bench.kind import packaged

    known = packaged()
    name = path.with_suffix("").as_posix()
    if path.suffix in ("", ".toml") and name in known:
        return known[name]
    raise InputError(
        f"{path}: no such file; give one, or a benchmark of the package: "
        f"{', '.join(known)}{close_to(name, known)}"
    )
