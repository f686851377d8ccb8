"""The `stforecast` command. Heavy packages are imported by the commands that need them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from data_prep.errors import InputError
from experiments.options import OptionSections, from_dataclass, from_function, peek

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXISTING = click.Path(path_type=Path)


@click.group(context_settings=HELP)
@click.version_option(package_name="stforecast", message="%(prog)s %(version)s")
@click.option("--quiet", "-q", is_flag=True, help="No progress bars and no notices.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, quiet: bool, debug: bool) -> None:
    """Federated forecasting of cellular and road traffic, from raw records to figures.

    A first tour: simulate, prepare, run, plot, predict. Every command has its own --help.
    """
    ctx.obj = {"progress": not quiet}
    level = logging.ERROR if quiet else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    for package in ("data_prep", "stforecast", "vision", "experiments"):
        logging.getLogger(package).setLevel(level)


def main(argv: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted."""
    args = sys.argv[1:] if argv is None else argv
    try:
        sys.exit(cli.main(args, prog_name="stforecast", standalone_mode=False) or 0)
    except Exception as e:
        if "--debug" in args:
            raise
        code, message = _explain(e)
        click.echo(f"stforecast: {message}", err=True)
        sys.exit(code)
    except KeyboardInterrupt:
        click.echo("stforecast: interrupted", err=True)
        sys.exit(130)


def _explain(e: Exception) -> tuple[int, str]:
    """Exit code and the one line for an error."""
    if isinstance(e, click.exceptions.Abort):
        return 130, "interrupted"
    if isinstance(e, click.UsageError):
        command = e.ctx.command_path if e.ctx else "stforecast"
        return 2, f"{e.format_message()} See: {command} --help"
    if isinstance(e, click.ClickException):
        return 2, e.format_message()
    if isinstance(e, InputError):
        return 2, str(e)
    if isinstance(e, OSError):
        return 2, f"{e.filename or 'input/output'}: {e.strerror or e}"
    kind = type(e).__name__
    return 1, f"internal error ({kind}: {e}); please report it with the output of --debug"


def _add_with_sections(
    name: str, sections: Callable[[list[str]], dict[str, list[click.Option]]]
) -> Callable[[Callable[..., None]], click.Command]:
    """Like `cli.command(name)`, with options that depend on the arguments."""

    def decorate(function: Callable[..., None]) -> click.Command:
        command = click.command(name, cls=OptionSections, sections=sections, context_settings=HELP)(
            function
        )
        cli.add_command(command)
        return command

    return decorate


def _simulate_options(args: list[str]) -> dict[str, list[click.Option]]:
    from data_prep.simulate import simulate

    return {"City": from_function(simulate, leave_out=("progress",))}


@_add_with_sections("simulate", _simulate_options)
@click.option("--out", type=EXISTING, required=True, help="Folder for the daily files.")
@click.pass_obj
def simulate_command(obj: dict[str, bool], out: Path, **options: Any) -> None:
    """Write a simulated city's records in the published raw layout."""
    from data_prep.simulate import simulate

    files = simulate(out, progress=obj["progress"], **options)
    click.echo(f"{len(files)} files in {out}")


@cli.command(context_settings=HELP)
@click.argument("name", metavar="milan|trentino|metr-la")
@click.option("--out", type=EXISTING, required=True, help="Folder for the files.")
@click.option("--source", help="Mirror to use instead: a base URL or a local folder.")
@click.option("--only", help="Fetch only files whose names match, e.g. '*2013-11-0*'.")
@click.pass_obj
def download(
    obj: dict[str, bool], name: str, out: Path, source: str | None, only: str | None
) -> None:
    """Fetch a data set's official files: resumable, checksums verified."""
    from data_prep.download import download as fetch
    from data_prep.registry import find_data_set

    sources = find_data_set(name).SOURCES
    if not sources:
        raise InputError(f"{name}: there is nothing to download; it is a file of your own")
    files = fetch(sources, out, source=source, only=only, progress=obj["progress"])
    click.echo(f"{len(files)} files in {out}")


class _DataSets(click.Group):
    """One subcommand for each data set, made from its `prepare` function."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from data_prep.registry import data_sets

        return sorted(data_sets())

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        from data_prep.registry import find_data_set

        module = find_data_set(name)

        def command(raw: Path, out: Path, **options: Any) -> None:
            written = module.prepare(raw, out, progress=ctx.obj["progress"], **options)
            _describe_cube(written)

        paths: list[click.Parameter] = [
            click.Option(["--raw"], type=EXISTING, required=True, help="Raw file or folder."),
            click.Option(
                ["--out"], type=EXISTING, required=True, help="Cube to write, a .nc file."
            ),
        ]
        return click.Command(
            name,
            params=paths + from_function(module.prepare, leave_out=("progress",)),
            callback=command,
            help=(module.__doc__ or "").replace("\n\n", "\n\n\b\n"),
            short_help=_title(module),
            context_settings=HELP,
        )


cli.add_command(
    _DataSets("prepare", help="Turn raw records into a cube (netCDF4).", context_settings=HELP)
)


def _title(module: Any) -> str:
    return (module.__doc__ or "").strip().splitlines()[0].rstrip(".")


def _describe_cube(path: Path) -> None:
    from data_prep.cube import open_cube, step_of

    with open_cube(path) as ds:
        services = [str(n) for n, v in ds.data_vars.items() if set(v.dims) == {"time", "cell"}]
        first, last = ds.indexes["time"][[0, -1]]
        click.echo(
            f"{path}: {ds.sizes['time']} steps of {step_of(ds)} × {ds.sizes['cell']} cells, "
            f"{first} to {last} ({ds.attrs['clock']} clock); services: {', '.join(services)}"
        )


def _run_options(args: list[str]) -> dict[str, list[click.Option]]:
    from stforecast.config import RunOptions, sections

    method, model = peek(args, "--method", "fuels"), peek(args, "--model", RunOptions.model)
    titles = {
        "data": "Data", "window": "Windows", "training": "Training", "run": "Computation",
        "method_options": f"Options of {method}", "model_options": f"Options of {model}",
    }  # fmt: skip
    return {titles[s]: from_dataclass(t) for s, t in sections(method, model).items()}


@_add_with_sections("run", _run_options)
@click.option("--data", type=EXISTING, required=True, help="Cube that `prepare` wrote.")
@click.option("--method", default="fuels", show_default=True, help="See: stforecast list methods.")
@click.option("--out", type=EXISTING, required=True, help="Folder for the run.")
@click.option("--label", help="Name in tables and figures. By default the method's.")
@click.pass_obj
def run_command(
    obj: dict[str, bool], data: Path, method: str, out: Path, label: str | None, **settings: Any
) -> None:
    """Train a method, judge it on the test part and save forecasts and model.

    The options below are those of FUELS; add --method NAME to see another method's.
    """
    from experiments.progress import rounds_bar
    from experiments.report import summary
    from stforecast.config import resolve
    from stforecast.results import run

    federated = resolve(method, **settings).federated
    with rounds_bar(settings["rounds"], progress=obj["progress"] and federated) as after_round:
        finished = run(method, data, out, settings, label=label, after_round=after_round)
    click.echo(summary(finished))


@cli.command(context_settings=HELP)
@click.argument("config", type=EXISTING)
@click.option("--out", type=EXISTING, required=True, help="Folder for runs and tables.")
@click.option("--data", type=EXISTING, multiple=True, help="Use this cube instead. Repeatable.")
@click.option("--service", multiple=True, help="Use this service instead. Repeatable.")
@click.option("--seed", type=int, multiple=True, help="Use this seed instead. Repeatable.")
@click.option("--rounds", type=int, help="Use this number of rounds instead.")
@click.pass_obj
def bench(
    obj: dict[str, bool], config: Path, out: Path, data: tuple[Path, ...],
    service: tuple[str, ...], seed: tuple[int, ...], rounds: int | None,
) -> None:  # fmt: skip
    """Run a benchmark: methods × data × seeds from a TOML file, with a table at the end.

    Finished runs are kept: started again, it goes on where it stopped.
    """
    from experiments.grid import load_grid, run_grid
    from experiments.report import results_table

    grid = load_grid(config).replace(data=data, services=service, seeds=seed, rounds=rounds)
    outcome = run_grid(grid, out, progress=obj["progress"])
    click.echo(results_table(outcome.runs, outcome.failures))
    click.echo(f"\ntable, errors and runs in {out}")
    if outcome.failures:
        raise InputError(f"{len(outcome.failures)} runs failed: see failed.txt in {out}/runs")


def _plot_options(args: list[str]) -> dict[str, list[click.Option]]:
    from stforecast.plots import PLOTS

    kind = next((a for a in args if a in PLOTS), None)
    return {f"Options of {kind}": from_function(PLOTS[kind])} if kind else {}


@_add_with_sections("plot", _plot_options)
@click.argument("kind", metavar="KIND")
@click.argument("runs", nargs=-1, required=True, type=EXISTING)
@click.option("--out", type=EXISTING, required=True, help="Figure to write: .png, .pdf or .svg.")
def plot(kind: str, runs: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Draw a figure of finished runs: predictions, cdf, communication, horizon or rounds.

    RUNS are run folders, or folders that hold some. With KIND, --help lists its own options.
    """
    from stforecast.plots import PLOTS, save_figure

    from data_prep.errors import choose
    from stforecast.results import find_runs

    if kind not in PLOTS:
        raise choose("plot", kind, PLOTS)
    save_figure(PLOTS[kind](find_runs(runs), **options), out)
    click.echo(f"{out}")


@cli.command(context_settings=HELP)
@click.argument("run", type=EXISTING)
@click.option("--history", type=EXISTING, required=True, help="Cube whose end is forecast from.")
@click.option("--out", type=EXISTING, required=True, help="CSV to write: time, cell, value.")
@click.option("--steps", type=int, help="Steps to forecast. By default the model's horizon.")
def predict(run: Path, history: Path, out: Path, steps: int | None) -> None:
    """Forecast what follows the end of a history, in the data's own units."""
    from stforecast.forecaster import Forecaster
    from stforecast.results import write_csv

    table = Forecaster.load(run).predict(history, steps)
    service, units, clock = (table.attrs[name] for name in ("service", "units", "clock"))
    if clock == "utc":
        table.index = table.index.tz_localize("UTC")  # type: ignore[attr-defined]
    write_csv(table.reset_index().melt("time", value_name=service), out)
    click.echo(
        f"{out}: {len(table)} steps from {table.index[0]} × {table.shape[1]} cells, "
        f"{service} in the data's units ({units}), {clock} clock"
    )


@cli.command(context_settings=HELP)
@click.argument("cube", type=EXISTING)
@click.option("--out", type=EXISTING, required=True, help="File to write, e.g. milano.h5.")
@click.option("--fill-missing", type=float, help="Value for missing entries; without it, refused.")
def export(cube: Path, out: Path, fill_missing: float | None) -> None:
    """Write a Telecom Italia cube in the HDF5 layout that FedDA's code reads."""
    from data_prep.cube import open_cube
    from data_prep.fedda_h5 import write

    with open_cube(cube) as ds:
        click.echo(f"{write(ds, out, fill_missing=fill_missing)}")


@cli.command("list", context_settings=HELP)
@click.argument("what", type=click.Choice(["methods", "data", "models", "metrics"]))
def list_command(what: str) -> None:
    """List what there is to choose from."""
    from experiments.report import LISTS

    click.echo(LISTS[what]())
