"""Accuracy over rounds, and what it costs to send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from data_prep.registry import listed
from vision.plots.runs import by_label, by_model, check_mask, curve
from vision.plots.style import ONE_COLUMN, SMALL, TEXT, legend_below, line_look, panels
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
        runs: finished runs; those that differ in their seed only are averaged.
        view: which of a method's models, or `every` one; by default its first.
        mask: `all classes`; `own classes`: those of the client's training images; of task streams,
            `task classes`: those of the test image's task.
        width: width of the figure in inches.
    """
    check_mask(runs, mask)
    fig, (ax,) = panels(width, 0.75 * width)
    for place, (label, members, model) in enumerate(by_model(runs, view)):
        table = curve(members, model, mask)
        color, style = line_look(place)
        mean, spread = table.mean(axis=1), table.std(axis=1).fillna(0)
        ax.plot(mean.index, mean, style, color=color, linewidth=1.2, label=label)
        if len(members) > 1:
            ax.fill_between(
                mean.index, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0
            )
    ax.set_xlabel("round", fontsize=TEXT)
    ax.set_ylabel(f"test accuracy in %, {mask}", fontsize=TEXT)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(fig)
    return fig


@listed
def communication(runs: Sequence[ImageRun], *, width: float = ONE_COLUMN) -> Figure:
    """Values that one client sends and receives in a round (PFPL, Figure 4c), counted as sent.

    Args:
        runs: finished runs; of those that differ in their seed only, the first is drawn.
        width: width of the figure in inches.
    """
    groups = by_label(runs)
    sent = {
        label: [
            float((members[0].rounds()[f"bytes_{way}"] / members[0].rounds()["participants"]).max())
            / 4
            for way in ("up", "down")
        ]
        for label, members in groups.items()
    }
    fig, (ax,) = panels(width, 0.25 * len(sent) + 0.6)
    places = np.arange(len(sent))
    for shift, (name, color) in enumerate((("sends", "#0072B2"), ("receives", "#E69F00"))):
        values = np.array([v[shift] for v in sent.values()])
        bars = ax.barh(places + 0.38 * (shift - 0.5), values, 0.36, color=color, label=name)
        labels = [f"{v:,.0f}" for v in values]
        ax.bar_label(bars, labels, padding=2, fontsize=SMALL - 1)
    largest = max(max(v) for v in sent.values())
    if largest:
        ax.set_xscale("symlog", linthresh=1000, linscale=0.5)
        ax.set_xticks([0, *(10.0**k for k in range(3, 2 + len(f"{largest:.0f}")))])
        ax.set_xlim(0, 30 * largest)
    ax.set_yticks(places, list(sent), fontsize=SMALL)
    ax.invert_yaxis()
    ax.set_xlabel("floats a client and round (log scale)", fontsize=TEXT)
    legend_below(fig)
    return fig
