"""Panels, axes, legend and file of a figure, and the user's options of its look.

Pyplot is not used: figures need no display and may be drawn in threads. Functions that make panels
and curves read the look, so that figures need not pass it on.
"""

from __future__ import annotations

import base64
import io
import logging
import math
import os
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, num2date
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, MaxNLocator, NullFormatter

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What a user asks of any figure.

    Attributes:
        ax: axes to draw on, which several panels divide among them; None for a new figure.
        highlight: names of curves to draw in colour, all others in grey; all in colour if empty.
        among: label and method of each run in the accompanying figures, whose looks are taken.
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


class PlainFigure(Figure):
    """A figure with plain texts: a `$` in a label or a name does not begin a formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure with plain texts."""
        write_plainly(self)
        super().draw(renderer)


def write_plainly(fig: Figure) -> None:
    """Disable formulas in all texts, except powers of ten along logarithmic axes."""
    axes = [axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    powers = {
        label
        for axis in axes
        if isinstance(axis.get_major_formatter(), LogFormatter)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
    }
    for text in fig.findobj(Text):
        if text not in powers:
            text.set_parse_math(False)


ONE_COLUMN, TWO_COLUMNS = 3.5, 7.16
"""Widths in inches of one column and of both in a two-column paper (IEEE)."""

TEXT, SMALL, TINY = 8, 7, 5.5
"""Font sizes in points: axis labels; ticks, titles and the legend; notes at the top."""

CHARACTERS_PER_INCH = 18
"""Average number of `SMALL` characters per inch, with a margin."""

FORMATS = (".pdf", ".png", ".svg")
"""File name extensions that `save_figure` knows."""

_saving = threading.Lock()


def panels(
    width: float,
    height: float,
    n: int = 1,
    *,
    n_columns: int = 1,
    sharex: bool = False,
    sharey: bool = False,
    height_ratios: Sequence[float] | None = None,
) -> tuple[PlainFigure, list[Axes]]:
    """Create a figure with `n` empty panels; widths and heights are in inches.

    `height` is the mean height of a row, `height_ratios` are the rows' ratios.
    """
    shared: dict[str, Any] = {"sharex": sharex, "sharey": sharey}
    n_rows = math.ceil(n / n_columns)
    if current().ax is not None:
        axes = _divided(current(), n, n_columns, shared, height_ratios)
        # The user's own figure may be of any type.
        return axes[0].get_figure(), _styled(axes)  # type: ignore[return-value]
    if not 1 <= width <= 100:
        raise InputError(f"width is {width}; give 1 to 100 inches")
    fig = PlainFigure(figsize=(width, height * n_rows), layout="constrained")
    grid = fig.subplots(n_rows, n_columns, squeeze=False, height_ratios=height_ratios, **shared)
    axes = list(grid.flat)
    for ax in axes[n:]:
        ax.remove()
    return fig, _styled(axes[:n])


def _divided(
    look: Look, n: int, n_columns: int, shared: Mapping[str, bool], ratios: Sequence[float] | None
) -> list[Axes]:
    """Return `n` panels in the place of given axes, which they are themselves if `n` is one."""
    given = look.ax
    assert given is not None
    if n == 1:
        look.panels[:] = [given]
        return [given]
    place, figure = given.get_subplotspec(), given.get_figure(root=False)
    if place is None or figure is None:
        raise InputError(f"this figure has {n} panels; give axes made by plt.subplots, or none")
    n_rows = math.ceil(n / n_columns)
    grid = place.subgridspec(n_rows, n_columns, height_ratios=ratios)
    given.remove()
    axes: list[Axes] = []
    for i in range(n):
        same = {axis: axes[0] if axes and share else None for axis, share in shared.items()}
        axes.append(figure.add_subplot(grid[divmod(i, n_columns)], **same))
    look.panels[:] = axes
    return axes


def _styled(axes: list[Axes]) -> list[Axes]:
    """Return the axes in the style of all figures."""
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=SMALL)
        ax.xaxis.label.set_fontsize(TEXT)
        ax.yaxis.label.set_fontsize(TEXT)
        ax.xaxis.get_offset_text().set_fontsize(SMALL)
        ax.yaxis.get_offset_text().set_fontsize(SMALL)
        ax.grid(color="0.92", linewidth=0.6)
        ax.set_axisbelow(True)
    return axes


def count_axis(ax: Axes, label: str, *, logarithmic: bool = False) -> None:
    """Format the x axis for whole numbers."""
    if logarithmic:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel(label)


def date_axis(ax: Axes, label: str, zone: str | tzinfo = "UTC", most_ticks: int = 8) -> None:
    """Format the x axis for days and hours in a zone, with the year in its label.

    Times are in UTC, or have no zone; the zone "UTC" leaves them as they are.
    """
    tz = ZoneInfo(zone) if isinstance(zone, str) else zone
    locator = AutoDateLocator(tz, minticks=min(3, most_ticks - 1), maxticks=most_ticks)
    day, minute = "%d %b", "%H:%M"
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(
        ConciseDateFormatter(
            locator,
            tz,
            formats=["%Y", "%b %Y", day, minute, minute, "%S"],
            zero_formats=["%Y", "%b %Y", day, day, minute, minute],
            show_offset=False,
        )
    )
    first, last = ax.dataLim.intervalx if np.isfinite(ax.dataLim.intervalx).all() else ax.get_xlim()
    last -= 1e-6 * (last - first)  # A day ends with the midnight after it.
    years = dict.fromkeys(str(num2date(x, tz).year) for x in (first, last))
    ax.set_xlabel(f"{label}, {'–'.join(years)}")


def legend_point(label: str, color: str, marker: str) -> Line2D:
    """Return an entry of a legend that is a point."""
    return Line2D([], [], label=label, color=color, marker=marker, linestyle="", markersize=4)


def add_legend(fig: PlainFigure, note: str = "", points: Sequence[Line2D] = ()) -> None:
    """Add a legend below the panels, in as few rows as fit the width, and make room for it.

    Equal labels share one entry. `note` has further lines; `points` come first.
    """
    entries: dict[str, Artist] = {str(point.get_label()): point for point in points}
    for ax in current().panels or fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    handles, style = list(entries.values()), {"frameon": False, "fontsize": SMALL}
    if current().panels:
        first = current().panels[0]
        own = first.legend(handles, list(entries), title=note, title_fontsize=SMALL, **style)
        own.set_in_layout(False)
        return
    n_characters = int(CHARACTERS_PER_INCH * fig.get_figwidth())
    labels = [textwrap.fill(label, n_characters - 10) for label in entries]
    title = "\n".join(textwrap.fill(line, n_characters) for line in note.splitlines())
    for n_rows in range(1, max(1, len(entries)) + 1):
        legend = fig.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=max(1, math.ceil(len(entries) / n_rows)),
            title=title,
            title_fontproperties={"size": SMALL, "style": "italic"},
            **style,
        )
        write_plainly(fig)
        box = legend.get_window_extent()
        if box.width <= fig.bbox.width or n_rows >= len(entries):
            break
        legend.remove()
    fig.set_figheight(fig.get_figheight() + box.height / fig.dpi)


def save_figure(fig: Figure, path: str | os.PathLike[str], note: str = "") -> Path:
    """Write a figure atomically, as PDF, PNG or SVG by the extension, and return the path.

    `note` is a small text at the top, such as the dates of the data.
    """
    path = Path(path)
    extension = path.suffix.lower()
    if extension not in FORMATS:
        found = f"extension {extension!r}" if extension else "no extension"
        raise InputError(f"{path}: {found}, expected one of {', '.join(FORMATS)}")
    if not isinstance(fig, Figure):
        raise InputError(f"{path}: found {type(fig).__name__}, expected a figure; return it")
    if note:
        fig.set_figheight(fig.get_figheight() + 0.12)
    if note and fig.get_suptitle():
        fig.suptitle(f"{fig.get_suptitle()}\n{note}", fontsize=SMALL)
    elif note:
        fig.suptitle(note, x=0.995, ha="right", fontsize=TINY, color="0.4")
    # Type 42 keeps text as text; publishers refuse matplotlib's default, Type 3. It can be set for
    # the whole process only, hence the lock.
    with _saving, mpl.rc_context({"pdf.fonttype": 42}), atomic_path(path) as part, _known_glyphs():
        fig.savefig(part, format=extension[1:], dpi=200)
    return path


def png_address(fig: Figure, dpi: float) -> str:
    """Return a figure as the `data:` address of a PNG, for a page."""
    content = io.BytesIO()
    with _known_glyphs():
        fig.savefig(content, format="png", dpi=dpi)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


@contextmanager
def _known_glyphs() -> Iterator[None]:
    """Tell once of all characters that the font lacks; pass other warnings on."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    lacking = set()
    for each in found:
        if glyph := re.match(r"Glyph (\d+) .* missing from font", str(each.message)):
            lacking.add(chr(int(glyph[1])))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if lacking:
        log.warning(
            "the figure shows boxes for %s, which its font lacks; name a font that has them after "
            "DejaVu Sans at font.family in a file matplotlibrc",
            " ".join(sorted(lacking)),
        )
