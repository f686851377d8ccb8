"""What `--resume` means on a command line: the settings are those of the run, and no others."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource


def check_resumed(ctx: click.Context, allowed: Iterable[str], needed: Iterable[str]) -> bool:
    """Whether an unfinished run shall be gone on with.

    Args:
        ctx: of a command with the option `--resume`.
        allowed: names of options that may stand beside it.
        needed: names of options that a new run must have.

    Raises:
        UsageError: for an option too many, or one too few.
    """
    given = {
        name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if "resume" in given:
        if extra := sorted(given - {"resume", *allowed}):
            raise click.UsageError(
                f"--resume goes on with the settings of the run; leave out {_flag(extra[0])}.", ctx
            )
        return True
    for name in needed:
        if name not in given:
            raise click.UsageError(f"Missing option '{_flag(name)}'.", ctx)
    return False


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
