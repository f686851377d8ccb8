"""Accuracy over rounds, and communication per round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from data_prep.registry import listed
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import ONE_COLUMN, SMALL, add_legend, count_axis, panels
from stforecast.bench.traffic import floats
from vision.plots.runs import accuracies, image_curves, model_curves
from vision.results import ImageRun


@listed
def rounds(
    runs: Sequence[ImageRun],
    *,
    view: str = "",
    mask: str = "all classes",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test accuracy after each round, mean over clients; a band is ± one standard deviation.

    Args:
        runs: finished runs; those that differ only in the seed are averaged.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, those of the client's training
            images; or, for task streams, `task classes`, those of the test image's task.
        width: width of the figure in inches.
    """
    fig, (ax,) = panels(width, 0.75 * width)
    for curve, name in model_curves(runs, view, mask):
        curve.draw_mean(ax, accuracies(curve.runs, name, mask))
    count_axis(ax, "round")
    ax.set_ylabel(f"test accuracy in %, {mask}")
    add_legend(fig)
    return fig


@listed
def communication(runs: Sequence[ImageRun], *, width: float = ONE_COLUMN) -> Figure:
    """Number of floats that one client sends and receives in a round (PFPL, Figure 4c).

    Args:
        runs: finished runs; of those that differ only in the seed, the first is drawn.
        width: width of the figure in inches.
    """
    sent = {
        curve.name: [floats(curve.runs[0].rounds(), way) for way in ("up", "down")]
        for curve in image_curves(runs)
    }
    fig, (ax,) = panels(width, 0.25 * len(sent) + 0.6)
    places = np.arange(len(sent))
    for shift, (name, color) in enumerate((("sends", COLORS[0]), ("receives", COLORS[3]))):
        values = np.array([v[shift] for v in sent.values()])
        bars = ax.barh(places + 0.38 * (shift - 0.5), values, 0.36, color=color, label=name)
        labels = [f"{v:,.0f}" for v in values]
        ax.bar_label(bars, labels, padding=2, fontsize=SMALL - 1)
    largest = max(max(v) for v in sent.values())
    if largest:
        ax.set_xscale("symlog", linthresh=1000, linscale=0.5)
        ax.set_xticks([0, *(10.0**k for k in range(3, 2 + len(f"{largest:.0f}")))])
        ax.set_xlim(0, 30 * largest)
    ax.set_yticks(places, list(sent))
    ax.invert_yaxis()
    ax.set_xlabel("floats a client and round (log scale)")
    add_legend(fig)
    return fig
