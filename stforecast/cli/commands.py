"""Classes of commands and groups, commands that kinds of runs share, and the ends of commands."""

from __future__ import annotations

import inspect
import json
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data_prep.base.errors import InputError, choose, close_to
from data_prep.base.registry import Registry, help_text, title
from stforecast.cli import options

if TYPE_CHECKING:
    from stforecast.cli.lists import NameTable
    from stforecast.federated.runs.run_folder import Run

log = logging.getLogger(__name__)


CONFIG = click.Option(
    ["--config"],
    type=options.PATH,
    help="TOML file with these options, written with _ for -. Options on the command line "
    "override its values. Its paths are relative to its folder.",
)


class Sectioned(click.Command):
    """A command with options that depend on its arguments, shown in sections of its help.

    If it has the option `CONFIG`, the keys of that file are the names of its options.

    Args:
        sections: function from the raw arguments to titled lists of further options.
    """

    def __init__(
        self,
        *args: Any,
        sections: options.Sections = lambda args: {},
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fixed = list(self.params)
        self.make_sections = sections
        self._sections: dict[str, list[click.Option]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the options that the arguments call for, then parse a file's and those in `args`."""
        path = options.peek(args, "--config", "")
        if path and any(option.name == "config" for option in self.fixed):
            args = [*self._words(Path(path), args), *args]
        self._sections = self.make_sections(args)
        self.params = self.fixed + [o for section in self._sections.values() for o in section]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            known = {flag for option in self.params for flag in option.opts}
            decisive = ("--method", "--model", "--partition")  # Others depend on them.
            others = " or ".join(flag for flag in decisive if flag in known)
            message = f"No such option {e.option_name!r} here; it may need another {others}."
            if e.option_name == "--horizon" and "--steps" in known:
                message = "No such option '--horizon'; the steps to forecast are '--steps'."
            elif e.possibilities or not others:
                raise
            raise click.NoSuchOption(e.option_name, message, ctx=ctx) from e

    def _words(self, path: Path, args: list[str]) -> Iterator[str]:
        from stforecast.bench.grid_file import read_toml

        table = read_toml(path)
        typed = [f"--{key}={table[key]}" for key in ("method", "model") if key in table]
        sections = self.make_sections([*typed, *args]).values()
        known = {key_of(o): o for o in [*self.fixed, *(o for s in sections for o in s)]}
        del known["config"]
        for key, value in table.items():
            if key not in known:
                raise InputError(f"{path}: {choose('key', key, known)}")
            try:
                yield from option_words(known[key], value, path.parent)
            except TypeError as e:
                raise InputError(f"{path}: {key} is {value!r}; {e}") from e

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the fixed options, then each section under its title."""
        own = {id(o) for section in self._sections.values() for o in section}
        shown = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        fixed = [o for o in shown if id(o) not in own]
        for heading, params in {"Options": fixed, **self._sections}.items():
            records = [r for r in (p.get_help_record(ctx) for p in params) if r]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class SectionedGroup(Sectioned, click.Group):
    """A command with options in sections that also has subcommands, which take none of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, unless a subcommand is named."""
        if args and args[0] in self.commands:
            return click.Group.parse_args(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the subcommands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def command(
    *declared: click.Option,
    name: str | None = None,
    cls: type[click.Command] = Sectioned,
    flags: Mapping[str, str] | None = None,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a command: its keyword-only parameters are options, others are arguments.

    The docstring describes the options, except those that are `declared`. `flags` renames some. A
    parameter `ctx` is the context. Further `settings` are passed to the command's class.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        places = {name: i for i, name in enumerate(inspect.signature(function).parameters)}
        known = tuple(str(option.name) for option in declared)
        made = [*options.arguments(function), *options.from_function(function, known, flags)]
        return cls(
            name or function.__name__.removesuffix("_command"),
            params=sorted([*declared, *made], key=lambda p: places.get(str(p.name), -1)),
            callback=click.pass_context(function) if "ctx" in places else function,
            help=help_text(function.__doc__),
            context_settings=options.HELP,
            **settings,
        )

    return make


class SuggestingGroup(click.Group):
    """Commands; for an unknown name, the closest is suggested."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse an unknown command and suggest the closest."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}{close_to(name, self.list_commands(ctx))}.")
        return super().resolve_command(ctx, args)


class Subcommands(click.Group):
    """Subcommands generated on demand from the entries of a registry.

    Args:
        known: the registry.
        make: function from a name and its entry to a command.
        check: refuses raw arguments before the entries, which are slow to import.
    """

    def __init__(
        self,
        *args: Any,
        known: Registry[Any],
        make: Callable[[str, Any], click.Command],
        check: Callable[[list[str]], None] = lambda _: None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"no_args_is_help": False, **kwargs})
        self._known, self._make, self._check = known, make, check

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the entries, in the registry's order."""
        return list(self._known)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Check the arguments; return the name, the command and its arguments."""
        self._check(args[1:])
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        """Return the command of one entry."""
        return self._make(name, self._known.find(name))


def key_of(option: click.Parameter) -> str:
    """Return the name of an option in a file.

    >>> key_of(click.Option(["--first-client", "first"]))
    'first_client'
    """
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def option_words(option: click.Parameter, value: Any, folder: Path) -> Sequence[str]:
    """Return the words of an option in a file, whose paths and .csv are relative to its folder.

    >>> option_words(click.Option(["--data"], type=click.Path()), "north.nc", Path("/etc"))
    ['--data=/etc/north.nc']
    """
    flag = max(option.opts, key=len)
    if isinstance(option, click.Option) and option.is_flag:
        if not isinstance(value, bool):
            raise TypeError("write true or false")
        return [flag] if value else list(option.secondary_opts[:1])
    values = value if isinstance(value, list) and option.multiple else [value]
    if odd := [v for v in values if isinstance(v, (bool, list, Mapping))]:
        raise TypeError(f"expected a text or a number, not {odd[0]!r}")
    of_path = isinstance(option.type, click.Path)
    values = [folder / v if of_path or str(v).endswith(".csv") else v for v in values]
    return [f"{flag}={v}" for v in values]


def say_next(*words: object) -> None:
    """Write the next command to type to standard error, unless notices are off."""
    log.info("next: stforecast %s", shlex.join(map(str, words)))


def say_json(about: Mapping[str, Any], indent: int | None = 2) -> None:
    """Print what a command found as JSON, with the warnings that it gave in `notes`, each once."""
    warned = (click.get_current_context().obj or {}).get("warned", [])
    known = [*about.get("notes", ()), *about.get("alarms", ())]
    more = [text for text in dict.fromkeys(warned) if not any(note in text for note in known)]
    click.echo(to_json({**about, "notes": [*about.get("notes", ()), *more]}, indent))


def to_json(about: Any, indent: int | None = 2) -> str:
    """Return what a command found as JSON, with null for NaN and infinity.

    Without an `indent` it is one line.

    >>> print(to_json([float("nan"), "a"]))
    [
      null,
      "a"
    ]
    """
    return json.dumps(for_json(about), indent=indent, default=str, allow_nan=False)


def for_json(value: Any) -> Any:
    """Return a value for JSON, with None for NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: for_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_plot_group(
    help: str,
    plots: Registry[Callable[..., Any]],
    find: Callable[..., Sequence[Run]],
    written_by: str,
    further: Sequence[click.Option] = (),
) -> Subcommands:
    """Return the command `plot`, with a subcommand for each figure.

    `find` turns folders, and the `further` options by keyword, into the runs to draw, which the
    command `written_by` writes.
    """
    return Subcommands(
        "plot",
        known=plots,
        make=lambda name, draw: _plot_command(name, draw, find, further),
        check=lambda args: options.check_runs(
            (Path(arg) for arg in args[:1] if not arg.startswith("-")), written_by
        ),
        help=help,
        context_settings=options.HELP,
    )


def _plot_command(
    name: str,
    draw: Callable[..., Any],
    find: Callable[..., Sequence[Run]],
    further: Sequence[click.Option],
) -> click.Command:
    """Return a command with the function's keyword-only parameters as options."""

    def command(runs: tuple[Any, ...], out: Any, **given: Any) -> None:
        from stforecast.bench.drawing import FORMATS, save_figure
        from stforecast.bench.figures import dates_tested
        from stforecast.federated.runs.run_folder import is_finished
        from stforecast.plots.excerpt import part_note

        options.check_ending(out, *FORMATS)
        found = find(runs, **{str(o.name): given.pop(str(o.name)) for o in further})
        part = map(given.get, ("cells", "start", "end"))  # An own figure's may be no texts.
        shown = part_note(*(text if isinstance(text, str) else None for text in part))
        note = "; ".join(filter(None, [dates_tested(found), shown]))
        click.echo(save_figure(draw(found, **given), out, note))
        if all(is_finished(run.folder) for run in found):
            say_next("report", *runs, "--out", "report.html")

    folders = click.Argument(["runs"], nargs=-1, required=True, type=options.PATH)
    out = click.Option(
        ["--out"], type=options.PATH, required=True, help="Figure to write: .png, .pdf or .svg."
    )
    names = {"start": "from", "end": "to"}  # Which are no names of parameters, or bad ones.
    drawn = options.from_function(draw, ("ax",), names)
    return click.Command(
        name,
        params=[folders, out, *further, *drawn],
        callback=command,
        help=f"{help_text(draw.__doc__)}\n\nRUNS are run folders, or folders that contain some.",
        short_help=title(draw.__doc__),
        context_settings=options.HELP,
    )


def make_list_command(lists: Mapping[str, Callable[[], list[NameTable]]]) -> click.Command:
    """Return the command `list` of the functions that return the lists, by name."""

    def show(what: str, *, as_json: bool) -> None:
        """List the available names of a kind."""
        tables = lists[what]()
        records = [record for table in tables for record in table.records()]
        click.echo(to_json(records) if as_json else "\n\n".join(map(str, tables)))

    known = click.Argument(["what"], type=options.SuggestingChoice(list(lists)))
    return click.Command("list", options.HELP, show, [known, options.JSON], help=show.__doc__)
