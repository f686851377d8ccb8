"""Commands and options shared by forecasts and images: run, plot and list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from data_prep.base.registry import Registry
from experiments.endings import say_next, to_json
from experiments.options import (
    HELP,
    JSON,
    KEYWORDS,
    PATH,
    Choice,
    Subcommands,
    check_runs,
    from_function,
    help_text,
    title,
)
from experiments.targets import check_ending

if TYPE_CHECKING:
    from experiments.lists import Listing
    from stforecast.federated.runs.run_folder import Run

C = TypeVar("C", bound=Callable[..., Any])


def run_options(method: str, listed_by: str) -> Callable[[C], C]:
    """Return the options common to all commands that train.

    Args:
        method: default method.
        listed_by: command that lists the methods.
    """
    options = (
        click.option("--method", default=method, show_default=True, help=f"See: {listed_by}."),
        click.option("--out", type=PATH, help="Folder for the run.  [required]"),
        click.option("--label", help="Name in tables and figures; by default the method's."),
        click.option(
            "--resume", type=PATH, help="Resume this unfinished run instead of starting a new one."
        ),
    )

    def add(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def plot_group(
    help: str,
    plots: Registry[Callable[..., Any]],
    find: Callable[..., Sequence[Run]],
    written_by: str,
    further: Sequence[click.Option] = (),
) -> Subcommands:
    """Return the command `plot`, with a subcommand for each figure.

    Args:
        help: help of the command.
        plots: plot functions by name.
        find: function from folders, and `further` options by keyword, to the runs to draw.
        written_by: command that writes such runs.
        further: options on what is drawn.
    """
    return Subcommands(
        "plot",
        known=plots,
        make=lambda name, draw: _plot_command(name, draw, find, further),
        check=lambda args: check_runs(
            (Path(arg) for arg in args[:1] if not arg.startswith("-")), written_by
        ),
        help=help,
        context_settings=HELP,
    )


def _plot_command(
    name: str, draw: Callable[..., Any], find: Callable[..., Sequence[Run]],
    further: Sequence[click.Option],
) -> click.Command:  # fmt: skip
    """Return a command with the function's keyword-only parameters as options."""

    def command(runs: tuple[Any, ...], out: Any, dpi: float, **options: Any) -> None:
        from stforecast.bench.drawing import FORMATS, check_width, save_figure
        from stforecast.bench.figures import dates_tested
        from stforecast.federated.runs.run_folder import is_finished
        from stforecast.plots.excerpt import part_note

        check_ending(out, *FORMATS)
        check_width(options.get("width", 1))
        found = find(runs, **{str(o.name): options.pop(str(o.name)) for o in further})
        shown = part_note(*map(options.get, ("cells", "start", "end")))
        note = "; ".join(filter(None, [dates_tested(found), shown]))
        click.echo(save_figure(draw(found, **options), out, note, dpi))
        if all(is_finished(run.folder) for run in found):
            say_next("report", *runs, "--out", "report.html")

    runs = click.Argument(["runs"], nargs=-1, required=True, type=PATH)
    out = click.Option(
        ["--out"], type=PATH, required=True, help="Figure to write: .png, .pdf or .svg."
    )
    dpi = click.Option(
        ["--dpi"], type=float, default=200, show_default=True, help="Dots per inch of a PNG."
    )
    return click.Command(
        name,
        params=[runs, out, dpi, *further, *from_function(draw, ("ax",), KEYWORDS)],
        callback=command,
        help=f"{help_text(draw.__doc__)}\n\nRUNS are run folders, or folders that contain some.",
        short_help=title(draw.__doc__),
        context_settings=HELP,
    )


def list_command(lists: Mapping[str, Callable[[], Listing]]) -> click.Command:
    """Return the command `list`.

    Args:
        lists: functions that return the lists, by name.
    """

    @click.command("list", context_settings=HELP)
    @click.argument("what", type=Choice(list(lists)))
    @JSON
    def command(what: str, as_json: bool) -> None:
        """List the available names of a kind."""
        found = lists[what]()
        click.echo(to_json(found.records()) if as_json else found)

    return command
