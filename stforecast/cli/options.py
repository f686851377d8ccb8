"""Command-line options generated from dataclass fields and function parameters, and their checks.

A new method, model or data set needs no change here: its options appear automatically, with its
docstring as help.
"""

from __future__ import annotations

import dataclasses
import glob
import inspect
import os
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from click.core import ParameterSource
from click.types import OptionHelpExtra

from data_prep.base.errors import InputError, close_to, no_file
from data_prep.base.files import path_of
from data_prep.base.registry import entries

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of the context of every command."""


class _Path(click.Path):
    """A path, or the URL of a database of SQLite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path."""
        return super().convert(path_of(os.fspath(value)), param, ctx)


PATH = _Path(path_type=Path)

Sections = Callable[[list[str]], dict[str, list[click.Option]]]
"""Function from raw arguments to titled lists of options that depend on them."""

JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, for scripts.")

RUN_FOLDER = click.Option(["--out"], type=PATH, help="Folder for the run.  [required]")

EVENTS = click.Option(
    ["--events"],
    type=PATH,
    help="Table (.csv) of the events known for these times, for a run that reads events.",
)

LIMITS = tuple(
    click.Option(
        [f"--{which}-limit"],
        type=float,
        help=f"{which.capitalize()} limit of the service: no forecast or bound goes beyond it.",
    )
    for which in ("lower", "upper")
)


def from_dataclass(options: type, defaults: Mapping[str, Any] | None = None) -> list[click.Option]:
    """Return an option for each field, described by the docstring's `Attributes`.

    Inherited fields are described by the docstring of their class. `defaults` replace the
    dataclass's.
    """
    # Pydantic takes a while to import, and commands without such options need none.
    from stforecast.federated.core.options import range_of, type_hints

    absent, missing = inspect.Parameter.empty, dataclasses.MISSING
    fields = dataclasses.fields(options)
    values = {f.name: absent if f.default is missing else f.default for f in fields}
    values |= defaults or {}
    texts: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        texts |= entries(cls.__doc__, "Args") | entries(cls.__doc__, "Attributes")
    return [
        _option(name, hint, values[name], texts.get(name, ""), str(range_of(hint)))
        for name, hint in type_hints(options).items()
    ]


TITLES = {
    "data": "Data", "window": "Windows", "training": "Training", "loss": "Loss",
    "uplink": "Uploads", "robust": "Defence", "interval": "Intervals",
    "rolling": "Rolling evaluation", "run": "Computation",
}  # fmt: skip
"""Titles of the sections of settings that all runs share."""


def by_section(
    method: str, types: Mapping[str, type], defaults: Mapping[str, Any], titles: Mapping[str, str]
) -> dict[str, list[click.Option]]:
    """Return the options of a run by title; `titles` has the sections not in `TITLES`."""
    from stforecast.federated.core.options import sections_of

    sections_of(method, types)
    titles = {**TITLES, "method_options": f"Options of {method}", **titles}
    return {titles[section]: from_dataclass(kind, defaults) for section, kind in types.items()}


def given(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line or in its file, without defaults."""
    typed = ParameterSource.COMMANDLINE
    return {n: v for n, v in options.items() if ctx.get_parameter_source(n) is typed}


def from_function(
    function: Callable[..., Any],
    leave_out: tuple[str, ...] = (),
    flags: Mapping[str, str] | None = None,
) -> list[click.Option]:
    """Return an option for each keyword-only parameter, described by the docstring.

    Its section is `Args`, or `Options` if shared options are left out of it.
    """
    named, hints = flags or {}, typing.get_type_hints(function)
    texts = entries(function.__doc__, "Args") | entries(function.__doc__, "Options")
    return [
        _option(
            p.name, hints[p.name], p.default, texts.get(p.name, ""), flag=named.get(p.name, p.name)
        )
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in leave_out
    ]


def arguments(function: Callable[..., Any]) -> list[click.Argument]:
    """Return an argument for each parameter that is not keyword-only, except `ctx`."""
    hints, found = typing.get_type_hints(function), []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "ctx":
            n = -1 if typing.get_origin(hints[p.name]) is tuple else 1
            kind = _click_type(hints[p.name])
            found.append(click.Argument([p.name], type=kind, nargs=n, required=True))
    return found


class RangedOption(click.Option):
    """An option whose help shows the valid range; the dataclass validates it.

    Args:
        takes: text of the range; empty without bounds.
    """

    def __init__(self, *args: Any, takes: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.takes = takes

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        """Return the text in brackets: the default and the range."""
        extra = super().get_help_extra(ctx)
        return {**extra, "range": self.takes} if self.takes else extra


def _option(
    name: str, hint: Any, default: Any, text: str, takes: str = "", flag: str = ""
) -> click.Option:
    flag = "--" + (flag or name).replace("_", "-")
    switch = getattr(hint, "__origin__", hint) is bool
    if switch and default:
        flag = f"{flag}/--no-{flag[2:]}"
    try:
        kind = _click_type(hint)
    except KeyError:
        raise InputError(
            f"the option {name} has the type {hint}, expected bool, int, float, str, Path, a "
            "Literal or a tuple; change its annotation"
        ) from None
    missing, several = default is inspect.Parameter.empty, typing.get_origin(hint) is tuple
    return RangedOption(
        [flag, name],
        takes=takes,
        type=kind,
        is_flag=switch or None,  # Of False, the value may be left out.
        multiple=several,
        required=missing,
        show_default=not (missing or default in (None, "", ()) or default is False),
        help=_sentence(text),
        **({} if missing else {"default": default}),
    )


def _sentence(text: str) -> str:
    """Remove backticks, and capitalise the text unless it begins with code.

    >>> _sentence("name of the `x`"), _sentence("`sum`: of all")
    ('Name of the x', 'sum: of all')
    """
    return (text[:1].upper() + text[1:]).replace("`", "").replace(". [", ".  [")


def _click_type(hint: Any) -> click.ParamType | None:
    if typing.get_origin(hint) is tuple:
        return _click_type(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return SuggestingChoice(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (a for a in typing.get_args(hint) if a is not type(None))
        return _click_type(inner)
    if typing.get_origin(hint) is Annotated:
        return _click_type(hint.__origin__)
    known = {bool: click.BOOL, int: click.INT, float: click.FLOAT, str: click.STRING, Path: PATH}
    return known[hint]


class SuggestingChoice(click.Choice[str]):
    """A choice of names; for an unknown name, the closest is suggested."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for an unknown name."""
        return super().get_invalid_choice_message(value, ctx) + close_to(str(value), self.choices)


def section(title: str, place: str, **settings: Any) -> Sections:
    """Return what gives the options of a dataclass or function, such as `package.module:name`.

    It is imported when its options are needed. Further `settings` are passed to `from_function`.
    """

    def options(args: list[str]) -> dict[str, list[click.Option]]:
        found = pkgutil.resolve_name(place)
        made = from_dataclass if isinstance(found, type) else from_function
        return {title: made(found, **settings)}

    return options


def peek(args: list[str], flag: str, default: str) -> str:
    """Return the value of `flag`, such as `--method`, among raw arguments, before they are parsed.

    >>> peek(["--rounds", "5", "--method=solo"], "--method", "fuels")
    'solo'
    """
    return [default, *_values(args, flag)][-1]


def check_cubes(args: list[str]) -> None:
    """Refuse paths among raw arguments that are no files, before slow packages are imported.

    With a flag for help nothing is checked.
    """
    if not {"--help", "-h"} & set(args):
        for path in map(Path, _values(args, "--data")):
            if not path.is_file():
                raise no_file(path, "cube", "write one with `stforecast prepare`")


def check_history(path: Path) -> None:
    """Refuse a path where nothing is, and that is no pattern, before slow packages are imported."""
    if not (path.exists() or glob.has_magic(str(path))):
        remedy = "give a cube, or records like those that the run's data were prepared from"
        raise no_file(path, "history", remedy)


def check_run(folder: Path) -> None:
    """Refuse a path that is no folder, before slow packages are imported."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no run here; give the folder of a run or of Forecaster.save")


def check_runs(folders: Iterable[Path], command: str = "stforecast run") -> None:
    """Refuse paths that are no folders, before slow packages are imported."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no finished run here; `{command}` writes one")


def _values(args: list[str], flag: str) -> Iterator[str]:
    for i, arg in enumerate(args):
        if arg.startswith(f"{flag}="):
            yield arg.partition("=")[2]
        elif arg == flag and i + 1 < len(args):
            yield args[i + 1]


def check_ending(path: Path, *endings: str) -> None:
    """Refuse a file name whose ending does not match the format to write.

    >>> check_ending(Path("forecast.json"), ".csv")
    Traceback (most recent call last):
    data_prep.base.errors.InputError: forecast.json: the name ends in .json, expected .csv
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a file to write; add a file name")
    if path.suffix.lower() not in endings:
        found = f"the name ends in {path.suffix}" if path.suffix else "the name has no ending"
        raise InputError(f"{path}: {found}, expected {' or '.join(endings)}")


def check_given(ctx: click.Context, *names: str) -> None:
    """Raise an error that names the first option that is not given."""
    if missing := [name for name in names if ctx.params[name] is None]:
        raise click.UsageError(f"Missing option '--{missing[0]}'.", ctx)


def check_resumed(ctx: click.Context, allowed: Iterable[str], needed: Iterable[str]) -> None:
    """Refuse further options with `--resume`, and a new run without the options that it needs."""
    if ctx.params["resume"] is None:
        return check_given(ctx, *needed)
    if extra := sorted(given(ctx, ctx.params).keys() - {"resume", *allowed}):
        flag = extra[0].replace("_", "-")
        raise click.UsageError(f"--resume uses the settings of the run; leave out --{flag}.", ctx)
