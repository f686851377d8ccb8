"""The figure that all plots draw on, of forecasts and of images."""

from __future__ import annotations

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter


class PlainFigure(Figure):
    """A figure whose texts mean what they say: a `$` of a label or a name begins no formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw it, with plain texts."""
        self.write_plainly()
        super().draw(renderer)

    def write_plainly(self) -> None:
        """Take all texts for what they are, but powers of ten along logarithmic axes."""
        axes = [axis for ax in self.axes for axis in (ax.xaxis, ax.yaxis)]
        powers = {
            label
            for axis in axes
            if isinstance(axis.get_major_formatter(), LogFormatter)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
            for label in (tick.label1, tick.label2)
        }
        for text in self.findobj(Text):
            if text not in powers:
                text.set_parse_math(False)
