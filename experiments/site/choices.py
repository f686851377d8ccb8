"""Parts of docstrings on pages: what a method's module says about its choices stands in one place.

A page holds `<!-- docstring of vision.methods.gldp from "Choices where" -->`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PART = re.compile(r'^<!-- docstring of ([\w.]+) from "([^"]+)" -->$', re.M)


def with_docstrings(page: str) -> str:
    """Return a page with the parts of docstrings that it asks for."""
    return PART.sub(lambda found: docstring_from(found[1], found[2]), page)


def docstring_from(module: str, begin: str) -> str:
    """Return a module's docstring from some words on.

    Raises:
        ValueError: if the docstring does not have them.

    >>> docstring_from("experiments.site.choices", "A page holds").partition(" `")[0]
    'A page holds'
    """
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    _, found, rest = (ast.get_docstring(ast.parse(source)) or "").partition(begin)
    if not found:
        raise ValueError(f"the docstring of {module} has no {begin!r}")
    return begin + rest
