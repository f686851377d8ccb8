"""Commands whose options may stand in a TOML file: `--config node.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from data_prep.base.errors import InputError, choose
from experiments.options import PATH, OptionSections, peek

CONFIG = click.option(
    "--config", type=PATH,
    help="TOML file with these options, written with _ for -. Options on the command line "
    "override its values. Its paths are relative to its folder.",
)  # fmt: skip


class Configured(OptionSections):
    """A command with `CONFIG`, whose file's keys are the names of its options."""

    def __init__(
        self,
        *args: Any,
        sections: Callable[[list[str]], dict[str, list[click.Option]]] = lambda args: {},
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, sections=sections, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the file's options before those that were typed, then parse.

        Raises:
            InputError: if the file cannot be read, or for a key that is no option.
        """
        if path := peek(args, "--config", ""):
            args = [*self._words(Path(path), args), *args]
        return super().parse_args(ctx, args)

    def _words(self, path: Path, args: list[str]) -> Iterator[str]:
        from stforecast.bench.grid_file import read_toml

        table = read_toml(path)
        typed = [f"--{key}={table[key]}" for key in ("method", "model") if key in table]
        sections = self.make_sections([*typed, *args]).values()
        options = {key_of(o): o for o in [*self.fixed, *(o for s in sections for o in s)]}
        del options["config"]
        for key, value in table.items():
            if key not in options:
                raise InputError(f"{path}: {choose('key', key, options)}")
            try:
                yield from option_words(options[key], value, path.parent)
            except TypeError as e:
                raise InputError(f"{path}: {key} is {value!r}; {e}") from e


def key_of(option: click.Parameter) -> str:
    """Return the name of an option in a file.

    >>> key_of(click.Option(["--first-client", "first"]))
    'first_client'
    """
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def option_words(option: click.Parameter, value: Any, folder: Path) -> Sequence[str]:
    """Return the words of a command line for an option of a file.

    Args:
        option: the option.
        value: its value.
        folder: folder from which relative paths begin.

    Raises:
        TypeError: if the value is of a type that no option has.

    >>> option_words(click.Option(["--data"], type=PATH), "north.nc", Path("/etc"))
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
    if isinstance(option.type, click.Path):
        values = [folder / v for v in values]
    return [f"{flag}={v}" for v in values]
