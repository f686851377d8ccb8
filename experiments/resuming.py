"""Check of the options given with `--resume`: the settings must be those of the run."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource


def check_resumed(ctx: click.Context, allowed: Iterable[str], needed: Iterable[str]) -> bool:
    """Return whether to resume an unfinished run.

    Args:
        ctx: context of a command with the option `--resume`.
        allowed: names of options that may be given with it.
        needed: names of options that a new run requires.

    Raises:
        UsageError: for an option that is not allowed, or a missing one.
    """
    given = {
        name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if "resume" in given:
        if extra := sorted(given - {"resume", *allowed}):
            raise click.UsageError(
                f"--resume uses the settings of the run; leave out {_flag(extra[0])}.", ctx
            )
        return True
    for name in needed:
        if name not in given:
            raise click.UsageError(f"Missing option '{_flag(name)}'.", ctx)
    return False


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
