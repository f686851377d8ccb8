"""What the commands of forecasts and of images share: options of run, plot and list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from data_prep.registry import Registry
from experiments.options import HELP, PATH, Subcommands, from_function, help_text, title
from experiments.targets import check_ending

if TYPE_CHECKING:
    from stforecast.federated.runs.run import Run

C = TypeVar("C", bound=Callable[..., Any])


def run_options(method: str, listed_by: str) -> Callable[[C], C]:
    """The options of a command that trains which do not depend on what it trains.

    Args:
        method: what is trained by default.
        listed_by: command that lists the methods.
    """
    options = (
        click.option("--method", default=method, show_default=True, help=f"See: {listed_by}."),
        click.option("--out", type=PATH, help="Folder for the run.  [required]"),
        click.option("--label", help="Name in tables and figures. By default the method's."),
        click.option(
            "--resume", type=PATH, help="Go on with this unfinished run, in place of a new one."
        ),
    )

    def add(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def plot_group(
    help: str, plots: Registry[Callable[..., Any]], run_type: Callable[[], type[Run]]
) -> Subcommands:
    """The command `plot`, which has a command for each figure.

    Args:
        help: what it draws.
        plots: functions that draw.
        run_type: gives the kind of runs that they draw.
    """
    return Subcommands(
        "plot",
        known=plots,
        make=lambda name, draw: _plot_command(name, draw, run_type()),
        help=help,
        context_settings=HELP,
    )


def _plot_command(name: str, draw: Callable[..., Any], run_type: type[Run]) -> click.Command:
    """A command with the function's keyword-only parameters as options."""

    def command(runs: tuple[Any, ...], out: Any, **options: Any) -> None:
        from stforecast.bench.drawing import FORMATS, check_width, save_figure

        check_ending(out, *FORMATS)
        check_width(options.get("width", 1))
        click.echo(save_figure(draw(run_type.find(runs), **options), out))

    runs = click.Argument(["runs"], nargs=-1, required=True, type=PATH)
    out = click.Option(
        ["--out"], type=PATH, required=True, help="Figure to write: .png, .pdf or .svg."
    )
    return click.Command(
        name,
        params=[runs, out, *from_function(draw)],
        callback=command,
        help=f"{help_text(draw.__doc__)}\n\nRUNS are run folders, or folders that hold some.",
        short_help=title(draw.__doc__),
        context_settings=HELP,
    )


def list_command(lists: Mapping[str, Callable[[], str]]) -> click.Command:
    """The command `list`.

    Args:
        lists: functions that make them, by name.
    """

    @click.command("list", context_settings=HELP)
    @click.argument("what", type=click.Choice(list(lists)))
    def command(what: str) -> None:
        """List what there is to choose from."""
        click.echo(lists[what]())

    return command
