"""Sections of a page: every function here marked `listed` makes one, or None.

Its parameters are names of `NEEDS`. Where something is missing, the section
is left out; a parameter with a default is not needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from data_prep.base.errors import InputError
from data_prep.base.registry import Registry, is_listed
from stforecast.report.section import Section

NEEDS = ("outlook", "series", "places", "model", "board", "months", "sleep")
"""Names of the parameters that a section may need, see docs/extend.md."""

GIVEN = ("arrays", "room")
"""What each section may take: the page's `Arrays`, and how many further values they may get."""


def needs(section: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that a section needs.

    Raises:
        InputError: if no page has something of that name.
    """
    own = {n: one for n, one in inspect.signature(section).parameters.items() if n not in GIVEN}
    if unknown := own.keys() - {*NEEDS}:
        raise InputError(f"it needs {', '.join(sorted(unknown))}; known are {', '.join(NEEDS)}")
    return [name for name, one in own.items() if one.default is one.empty]


SECTIONS: Registry[Callable[..., Section | None]] = Registry(
    "section of a report",
    "stforecast.report.sections",
    is_entry=lambda thing: is_listed(thing) and needs(thing) is not None,
    group="stforecast.report_sections",
    sort_by=lambda entry: (not entry.__module__.startswith(__name__), entry.__name__),
)
"""Every section by name: the package's own first, which are the longest."""
