"""Generated parts of the documentation: `python -m experiments.docs` rewrites them.

A part lies between `<!-- NAME: generated -->` and `<!-- NAME: end -->`. A test fails where the text
there is not what the registries say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.report import methods_table

README = Path(__file__).parents[1] / "README.md"

PARTS: dict[str, Callable[[], str]] = {"methods": methods_table}
"""Name of each generated part and what makes it."""


def updated(text: str) -> str:
    """The text with every generated part made anew."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(updated(README.read_text()))
