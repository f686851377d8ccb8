"""Tutorials: Markdown whose commands and Python blocks run, with their output below them.

    python -m experiments.docs tutorials     # runs docs/tutorials/*.md and writes what they print

A block of `sh` holds commands of `stforecast`, where those marked `# refused` end with an error;
one of `python` runs with the names of those before it, and one of `toml` is saved as the file that
its first line names. A block of `text` shows what the block before it prints; one that ends with
`…` shows as many lines as it has. A picture `figures/NAME.png` is the file NAME.png that a command
drew.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from stforecast.cli.main import main

BLOCK = re.compile(r"^```(sh|python|toml|text)\n(.*?)^```$", re.M | re.S)
PICTURE = re.compile(r"\]\((?:docs/)?figures/([\w-]+\.png)\)")


class Step(NamedTuple):
    """The text that a block of `text` shows, and the output of the block before it."""

    shown: str
    printed: str


def steps(page: str) -> Iterator[Step]:
    """Run the blocks of a page in the working folder, and yield what each `text` block shows."""
    names: dict[str, Any] = {}
    do: dict[str, Callable[[str], object]] = {
        "sh": _commands,
        "python": lambda code: exec(code, names),
        "toml": lambda text: Path(text.partition("\n")[0].lstrip("# ")).write_text(text),
    }
    printed = ""
    for language, text in BLOCK.findall(page):
        if language == "text":
            yield Step(text, printed)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                do[language](text)
            printed = out.getvalue()


def refreshed(page: str) -> str:
    """Return the page with the output of its blocks, run in the working folder."""
    printed = iter([_shortened(step) for step in steps(page)])

    def block(found: re.Match[str]) -> str:
        return f"```text\n{next(printed)}```" if found[1] == "text" else found[0]

    return BLOCK.sub(block, page)


def pictures(page: str) -> list[str]:
    """Return the names of the pictures that a page shows."""
    return PICTURE.findall(page)


def _commands(text: str) -> None:
    """Type each command; print the message of one that is refused.

    Raises:
        RuntimeError: if a command fails, or one marked `# refused` does not.
    """
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = 0
            try:
                main(shlex.split(line, comments=True)[1:])
            except SystemExit as done:
                code = int(done.code or 0)
        message = err.getvalue().strip().rpartition("\n")[2]
        if bool(code) is not line.endswith("# refused"):
            raise RuntimeError(f"{line}: {message or 'was not refused'}")
        if code:
            click.echo(message)


def _shortened(step: Step) -> str:
    """Return what was printed, cut where the page cuts it: after as many lines, then `…`."""
    lines = [line.rstrip() for line in step.printed.strip("\n").splitlines()]
    shown = step.shown.rstrip("\n").splitlines()
    if shown and shown[-1] == "…":
        lines = [*lines[: len(shown) - 1], "…"]
    return "".join(f"{line}\n" for line in lines)
