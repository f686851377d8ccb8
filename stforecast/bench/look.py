"""Look of the figure that is being drawn: given axes, highlighted curves, and others' looks.

Functions that make panels and curves read it, so that figures need not pass it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from matplotlib.axes import Axes


@dataclass(frozen=True)
class Look:
    """What a user asks of any figure.

    Attributes:
        ax: axes to draw on, which several panels divide among them; None for a new figure.
        highlight: names of curves to draw in colour, all others in grey; all in colour if empty.
        among: label and method of each run that figures beside it show, whose looks are taken.
        panels: panels that were made in the place of `ax`.
    """

    ax: Axes | None = None
    highlight: tuple[str, ...] = ()
    among: tuple[tuple[str, str], ...] = ()
    panels: list[Axes] = field(default_factory=list)


_look: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Draw with this look within the context."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def current() -> Look:
    """Return the look of the figure that is being drawn."""
    return _look.get() or Look()
