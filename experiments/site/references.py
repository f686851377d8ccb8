"""The reference of the commands and of the methods' options, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import click

from stforecast.cli.commands import OptionSections
from stforecast.cli.options import from_dataclass, help_text

NOTE = "Options and defaults as `--help` prints them; `--method` and `--model` change some of them."


def commands_page() -> str:
    """Return the page of all commands."""
    from stforecast.cli.main import cli

    sections = _sections(cli, click.Context(cli, info_name="stforecast"))
    return "\n\n".join(["# Commands", NOTE, *sections])


def options_page() -> str:
    """Return the page of the options that methods and models have of their own."""
    from stforecast.baselines import BASELINES
    from stforecast.forecasting.config import defaults
    from stforecast.methods import METHODS
    from stforecast.models import MODELS
    from vision.config import defaults as image_defaults
    from vision.methods import METHODS as IMAGE_METHODS
    from vision.models import MODELS as IMAGE_MODELS
    from vision.partition import PARTITIONS
    from vision.streams import STREAMS

    forecasts = {**METHODS, **BASELINES}
    made_for = {name: defaults(name) for name in forecasts}
    of_images = {name: image_defaults(name) for name in IMAGE_METHODS}
    parts = [
        "# Options of methods, models and partitions",
        "Methods and models without options are not listed. [All methods](../methods.md) says what "
        "they do.",
        "## Methods of forecasts", *_options(forecasts, made_for),
        "## Models of forecasts", *_options(MODELS, {}),
        "## Methods of images", *_options(IMAGE_METHODS, of_images),
        "## Models of images", *_options(IMAGE_MODELS, {}),
        "## Partitions and task streams", *_options({**PARTITIONS, **STREAMS}, {}),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _options(known: Mapping[str, Any], made_for: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Return a heading and a table for each entry that has options."""
    for name, entry in known.items():
        if options := from_dataclass(getattr(entry, "Options", entry), made_for.get(name)):
            yield f"### {name}"
            if summary := getattr(entry, "summary", ""):
                yield f"{summary[0].upper()}{summary[1:]}."
            yield _table(options, click.Context(click.Command(name)))


def _sections(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Return the section of a command, and those of its subcommands."""
    depth = len(ctx.command_path.split())
    if depth > 1:
        yield f"{'#' * min(depth, 4)} {ctx.command_path}"
    yield help_text(command.help).replace("\b\n", "")
    yield f"```text\n{' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)])}\n```"
    more = command.make_sections([]) if isinstance(command, OptionSections) else {}
    own = [p for p in command.get_params(ctx) if isinstance(p, click.Option)]
    for title, options in {"": own, **more}.items():
        if title:
            yield f"**{title}**"
        yield _table(options, ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if found := command.get_command(ctx, name):
                yield from _sections(found, click.Context(found, parent=ctx, info_name=name))


def _table(options: list[click.Option], ctx: click.Context) -> str:
    """Tabulate options with their help, as HTML."""
    records = (option.get_help_record(ctx) for option in options)
    rows = (
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"
        for name, text in filter(None, records)
        if not name.startswith(("-h,", "--help"))
    )
    body = "\n".join(rows)
    return f'<table class="options">\n{body}\n</table>' if body else ""
