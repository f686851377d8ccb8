"""Knowledge retention over time and among clients."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from data_prep.registry import listed
from stforecast.bench.drawing import TEXT, TWO_COLUMNS, add_legend, count_axis, panels
from vision.evaluation import TRAINED
from vision.plots.runs import check_mask, image_curves
from vision.results import ImageRun
from vision.streams.retention import spatial_retention, temporal_retention

TITLES = ("over time, KR_t", "among clients, KR_s")


@listed
def retention(
    runs: Sequence[ImageRun], *, mask: str = "all classes", width: float = TWO_COLUMNS
) -> Figure:
    """Knowledge retention after each stage (FedTA, Figure 4; Eq. 11 and 12), mean over seeds.

    Left: the share of the first stage's accuracy that clients' own models retain. Right: the
    accuracy of the shared model on the present stage, relative to clients' own models; not for
    methods without a shared model.

    Args:
        runs: finished runs with task streams of successive stages.
        mask: classes to choose from: `all classes`; `own classes`, those that a client has had so
            far; or `task classes`, those of the test image's task.
        width: width of the figure in inches.
    """
    check_mask(runs, mask)
    fig, axes = panels(width, 0.38 * width, 2, n_columns=2, sharey=True)
    for curve in image_curves(runs):
        for ax, ratios in zip(axes, _ratios(curve.runs, mask), strict=True):
            if ratios:
                mean = 100 * pd.concat(ratios, axis=1).mean(axis=1)
                ax.plot(mean.index, mean, label=curve.label, marker=".", **curve.line)
    for ax, title in zip(axes, TITLES, strict=True):
        ax.set_title(title, fontsize=TEXT)
        count_axis(ax, "stage")
        ax.axhline(100, color="0.6", linewidth=0.8, zorder=1)
    axes[0].set_ylabel(f"retained in %, {mask}")
    add_legend(fig)
    return fig


def _ratios(runs: Sequence[ImageRun], mask: str) -> tuple[list[pd.Series], list[pd.Series]]:
    """Return KR_t and KR_s of each run; no KR_s if the first model is the client's own."""
    local = "personal" if "personal" in runs[0].views else TRAINED
    shared, stages = runs[0].views[0], [run.stages() for run in runs]
    among = [] if shared == local else [spatial_retention(s, shared, local, mask) for s in stages]
    return [temporal_retention(s, local, mask) for s in stages], among
