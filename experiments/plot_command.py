"""The command that makes one kind of figure, from the function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from experiments.options import HELP, PATH, from_function, help_text, title
from experiments.targets import check_ending


def plot_command(
    name: str, draw: Callable[..., Any], find: Callable[[Sequence[Path]], Sequence[Any]]
) -> click.Command:
    """A command with the function's keyword-only parameters as options.

    Args:
        name: of the command.
        draw: takes finished runs and options, returns a figure.
        find: finished runs in and below folders.
    """

    def command(runs: tuple[Path, ...], out: Path, **options: Any) -> None:
        from stforecast.plots.drawing import FORMATS, check_width, save_figure

        check_ending(out, *FORMATS)
        check_width(options.get("width", 1))
        click.echo(save_figure(draw(find(runs), **options), out))

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
