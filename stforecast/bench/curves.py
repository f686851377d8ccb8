"""Curves: groups of runs in a figure and their style, in one panel or as small multiples."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic
from zlib import crc32

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from data_prep.base.errors import InputError, choose
from stforecast.bench import drawing
from stforecast.bench.run_groups import R, RunGroup, T, group_runs
from stforecast.federated.runs.run_folder import Run

COLORS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9")
"""Okabe and Ito's colours for all kinds of colour vision (jfly.uni-koeln.de/color), without black,
which observations use, and yellow, which is faint on white."""

HUES = (*COLORS, "#808080")
"""Colours of methods; grey is that of references that repeat past values."""

HOMES = {
    method: hue + len(HUES) * dash
    for hue, methods in enumerate(
        (  # Of each colour, one for each line style; the darkest colour is the default's alone.
            "fedlean",
            "fedavg fedprox fedavg_ft scaffold",
            "fuels fedproto fedda fpl",
            "fedtrees lightgbm fedper fedbn",
            "solo ridge ditto apfl",
            "boosting central fedrep chronos",
            "seasonal_day seasonal_week last_value historical_average",
        )
    )
    for dash, method in enumerate(methods.split())
} | dict.fromkeys(("fedta", "gldp", "pfpl"), 0)
"""Place of methods that have the same one in every figure; papers on images have the default's."""

FAINT = "0.75"
"""Grey of curves in the background."""

MOST_TOGETHER = len(COLORS)
"""Number of curves that can be told apart in one panel; more are drawn as small multiples."""

LINE_STYLES = ("-", "--", ":", "-.", (0, (9, 2)), (0, (9, 2, 2, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")


def point_look(place: int, markers: Sequence[str] = MARKERS) -> tuple[str, str]:
    """Return colour and marker of the points at a place; markers change when colours repeat."""
    return COLORS[place % len(COLORS)], markers[place // len(COLORS) % len(markers)]


@dataclass(frozen=True)
class Curve(Generic[R]):
    """A group of runs and its style.

    Attributes:
        group: the runs.
        place: determines colour, line and marker, see `label_places`.
        faint: whether it is in the background, in grey.
    """

    group: RunGroup[R]
    place: int
    faint: bool = False

    @property
    def color(self) -> str:
        """Colour of the curve; where a colour repeats, the line differs."""
        return FAINT if self.faint else HUES[self.place % len(HUES)]

    @property
    def marker(self) -> str:
        """Shape of the curve's points; where a colour repeats, the shape differs."""
        return MARKERS[(self.place + self.dash) % len(MARKERS)]

    @property
    def dash(self) -> int:
        """Number of the curve's line style, from 0."""
        return self.place // len(HUES) % len(LINE_STYLES)

    @property
    def line(self) -> dict[str, Any]:
        """Colour, style and width of the curve's lines."""
        if self.faint:
            return {"color": self.color, "linestyle": "-", "linewidth": 0.7, "zorder": 1.5}
        return {"color": self.color, "linestyle": LINE_STYLES[self.dash], "linewidth": 1.2}

    def draw_mean(self, ax: Axes, table: pd.DataFrame, **style: Any) -> None:
        """Draw the mean of a table's columns by its index, in a band of one standard deviation."""
        mean, deviation = table.mean(axis=1), table.std(axis=1).fillna(0)
        ax.plot(mean.index, mean, **{"label": self.group.label, **self.line, **style})
        if table.shape[1] > 1:
            ax.fill_between(mean.index, mean - deviation, mean + deviation, **self.band)

    @property
    def band(self) -> dict[str, Any]:
        """Style of the curve's bands."""
        return {"color": self.color, "alpha": 0.0 if self.faint else 0.2, "linewidth": 0}

    @property
    def behind(self) -> Curve[R]:
        """The same curve in the background."""
        return replace(self, faint=True)

    @property
    def alone(self) -> Curve[R]:
        """The same curve as the only one in colour, with a full line."""
        return replace(self, place=self.place % len(HUES), faint=False)


def label_places(named: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the place of each label, whatever the order of the labels.

    A method in `HOMES` has its place there, by its own name or by that of one variant. Any other
    label begins at a colour that its text determines, and takes the next that is taken least.

    >>> label_places([("fedavg", "fedavg"), ("fedlean", "fedlean"), ("solo, day", "solo")])
    {'fedavg': 1, 'fedlean': 0, 'solo, day': 4}
    """
    found: dict[str, int] = {}
    pairs = sorted(set(named), key=lambda pair: (pair[0] != pair[1], pair))
    for label, method in pairs:
        home = HOMES.get(method)
        if home is not None and home not in found.values():
            found.setdefault(label, home)
    for label, _ in pairs:
        if label not in found:
            found[label] = _free(crc32(label.encode()), found.values())
    return found


def _free(start: int, taken: Collection[int]) -> int:
    """Return a place of the colour that is taken least, from a colour on."""
    n_taken = Counter(place % len(HUES) for place in taken)
    first, *others = range(len(COLORS))
    begin = start % len(others)
    order = (*others[begin:], *others[:begin], first)
    return _of_hue(min(order, key=n_taken.__getitem__), taken)


def _of_hue(place: int, taken: Collection[int]) -> int:
    """Return a place of the same colour whose line style is free, or the place itself."""
    hue = place % len(HUES)
    lines = (hue + len(HUES) * dash for dash in range(len(LINE_STYLES)))
    return next((line for line in lines if line not in taken), place)


def as_curves(runs: Sequence[R]) -> list[Curve[R]]:
    """Return a curve for each group of runs, of which there must be at least one."""
    if not runs:
        raise InputError("no runs to draw; give at least one folder of a finished run")
    groups = group_runs(runs)
    names = {name for group in groups for name in (group.name, group.base)}
    if unknown := set(drawing.current().highlight) - names:
        raise choose("name to highlight", min(unknown), [group.name for group in groups])
    return curves_of(groups)


def curves_of(groups: Sequence[RunGroup[R]]) -> list[Curve[R]]:
    """Return a curve for each group.

    Groups with one label have its colour in several line styles; all colours if there is no other
    label.
    """
    shown = set(drawing.current().highlight)
    of_label = label_places(
        (*drawing.current().among, *labels_of(r for group in groups for r in group.runs))
    )
    labels = {group.base for group in groups}
    taken = {of_label[label] for label in labels}
    curves: list[Curve[R]] = []
    for group in groups:
        place = of_label[group.base]
        if any(curve.group.base == group.base for curve in curves):
            start = crc32(group.name.encode())
            place = _of_hue(place, taken) if len(labels) > 1 else _free(start, taken)
            taken.add(place)
        faint = bool(shown) and not shown & {group.name, group.base}
        curves.append(Curve(group, place, faint))
    return curves


def best_first(
    curves: Sequence[Curve[R]], values: Sequence[T], error: Callable[[T], float]
) -> tuple[list[Curve[R]], list[T]]:
    """Return curves and their values from the lowest error of the values to the highest."""
    order = np.argsort([error(own) for own in values], kind="stable")
    return [curves[i] for i in order], [values[i] for i in order]


def labels_of(runs: Iterable[Run]) -> tuple[tuple[str, str], ...]:
    """Return label and method of each run, for `label_places`."""
    return tuple((run.label, run.method) for run in runs)


SINGLE, PANEL = 2.3, 1.25
"""Heights of a single and of a small panel in inches."""

UNNAMED = "_"
"""Label of lines that do not appear in a legend."""


def draw_curves(
    curves: Sequence[Curve[R]],
    values: Sequence[T],
    labels: Sequence[str],
    draw: Callable[[Axes, Curve[R], T, str], None],
    width: float,
) -> tuple[drawing.PlainFigure, list[Axes]]:
    """Draw curves together; more than six each in a panel of its own, the others behind it in grey.

    `draw` draws the values of a curve with a label, which is a text in the legend, or the title of
    a panel.
    """
    if len(curves) <= MOST_TOGETHER:
        fig, (ax,) = drawing.panels(width, SINGLE)
        for curve, own, label in zip(curves, values, labels, strict=True):
            draw(ax, curve, own, label)
        return fig, [ax]
    fig, axes = small_panels(width, len(curves))
    pairs = list(zip(curves, values, strict=True))
    for ax, (curve, own), label in zip(axes, pairs, labels, strict=True):
        for other, its in pairs:
            if other is not curve:
                draw(ax, other.behind, its, UNNAMED)
        draw(ax, curve.alone, own, UNNAMED)
        title_panel(ax, label, width / columns(width))
    return fig, axes


def small_panels(width: float, n: int) -> tuple[drawing.PlainFigure, list[Axes]]:
    """Create small panels that share their axes."""
    return drawing.panels(width, PANEL, n, n_columns=columns(width), sharex=True, sharey=True)


def columns(width: float) -> int:
    """Return the number of small panels in a row."""
    return 3 if width > drawing.ONE_COLUMN else 2


def in_lines(title: str, width: float) -> str:
    """Return the title of a small panel in lines of the panel's width in inches."""
    return textwrap.fill(title, int(0.85 * width * drawing.CHARACTERS_PER_INCH))


def title_panel(ax: Axes, text: str, width: float) -> None:
    """Write a title above a small panel, in lines of its width in inches."""
    ax.set_title(in_lines(text, width), fontsize=drawing.SMALL - 0.5, loc="left")


def outer_labels(axes: Sequence[Axes], x: str, y: str, width: float) -> None:
    """Label the axes at the left and in the last row of a grid of panels.

    Panels above a gap in the last row have numbers alone.
    """
    in_row, height = (columns(width), PANEL) if len(axes) > 1 else (1, SINGLE)
    lines = textwrap.fill(y, int(drawing.CHARACTERS_PER_INCH * height * 0.8))
    x = textwrap.fill(x, int(drawing.CHARACTERS_PER_INCH * width / in_row * 0.85))
    for i, ax in enumerate(axes):
        ax.set_xlabel(x if i // in_row == (len(axes) - 1) // in_row else "")
        ax.tick_params(axis="x", labelbottom=i + in_row >= len(axes))
        ax.set_ylabel("" if i % in_row else lines)
