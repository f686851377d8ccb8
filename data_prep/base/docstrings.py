"""What docstrings say, for the help of commands and the comments of settings."""

from __future__ import annotations

import inspect
import re
import textwrap

HELP_WIDTH = 78
"""Width of help that is not wrapped to the terminal, such as lists, in columns."""


def entries(doc: str | None, section: str) -> dict[str, str]:
    r"""Return names and texts of one section of a Google-style docstring.

    >>> entries("Sum.\n\nArgs:\n    a: a number,\n        such as 1.\n    b: another.", "Args")
    {'a': 'a number, such as 1.', 'b': 'another.'}
    """
    body = inspect.cleandoc(doc or "").partition(f"\n{section}:\n")[2]
    body = re.split(r"\n(?=\S)", body)[0]
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", body, re.M | re.S)
    return {name: " ".join(text.split()) for name, text in found}


def help_text(doc: str | None) -> str:
    """Return a docstring's text before its sections for click; lists and code are kept."""
    sections = r"\n(?:Args|Attributes|Options|Returns|Raises):\n"
    text = re.split(sections, inspect.cleandoc(doc or ""))[0]
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("    "):
            paragraph = f"\b\n{paragraph}"
        elif paragraph.startswith("- "):
            items = re.split(r"\n(?=- )", paragraph)
            items = [" ".join(item.split()) for item in items]
            filled = [textwrap.fill(i, HELP_WIDTH, subsequent_indent="  ") for i in items]
            paragraph = "\b\n" + "\n".join(filled)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def title(doc: str | None) -> str:
    """Return the first line of a docstring.

    >>> title(title.__doc__)
    'Return the first line of a docstring'
    """
    return inspect.cleandoc(doc or "").partition("\n")[0].rstrip(".")
