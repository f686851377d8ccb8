"""Equations of a page as MathML, which browsers draw without a script or a font of ours."""

from __future__ import annotations

import html
import re

MATHS = re.compile(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.S)
"""An equation as pymdownx's arithmatex leaves it."""


def with_mathml(page: str) -> str:
    """Return the HTML of a page with every equation as MathML."""
    return MATHS.sub(_mathml, page)


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # of the extra `docs`

    tag, latex = found[1], html.unescape(found[2])
    return convert(latex, display="block" if tag == "div" else "inline")
