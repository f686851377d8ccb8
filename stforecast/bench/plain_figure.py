"""Figure type of all plots, of forecasts and of images."""

from __future__ import annotations

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter


class PlainFigure(Figure):
    """A figure with plain texts: a `$` in a label or a name does not begin a formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure with plain texts."""
        self.write_plainly()
        super().draw(renderer)

    def write_plainly(self) -> None:
        """Disable formulas in all texts, except powers of ten along logarithmic axes."""
        write_plainly(self)


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
