"""Figures of task streams: images by client and stage, and accuracy after each stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from data_prep.base.errors import InputError
from data_prep.base.registry import listed
from stforecast.bench import drawing
from vision.plots.curves import model_curves
from vision.results import ImageRun
from vision.streams.measures import known

NARROW = 20
"""Maximum number of classes for which five stages are side by side."""


@listed
def stream(
    runs: Sequence[ImageRun], *, part: str = "train", width: float = drawing.TWO_COLUMNS
) -> Figure:
    """Images by client and class, one panel per stage; darker is more samples.

    Shades follow the square root of the number, so that rare classes are visible next to frequent
    ones.

    Args:
        runs: finished runs with a task stream; the first is drawn.
        part: images to count, `train` or `test`.
        width: width of the figure in inches.
    """
    run = runs[0]
    if "stages" not in run.about:
        raise InputError(f"{run.folder}: has no stages; draw a run with a task stream")
    if part not in ("train", "test"):
        raise InputError(f"part is {part!r}; choose train or test")
    return stages_of(run.partition(), run.about["classes"], run.about["clients"], part, width)


def stages_of(
    table: pd.DataFrame,
    classes: Sequence[str],
    n_clients: int,
    part: str = "train",
    width: float = drawing.TWO_COLUMNS,
) -> Figure:
    """Draw the table of a stream, without training."""
    rows = table[table["part"] == part]
    n_stages = int(table["stage"].max()) + 1
    n_columns = min(n_stages, 5 if len(classes) <= NARROW else 2)
    n_rows = -(-n_stages // n_columns)
    height = n_rows * (0.11 * max(n_clients, 6) + 0.35) + _name_height(classes)
    fig = drawing.PlainFigure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    shades = PowerNorm(0.5, 0, max(int(rows["samples"].max()), 1))
    for stage, ax in enumerate(axes[:n_stages]):
        counts = _counts(rows[rows["stage"] == stage], classes, n_clients)
        image = ax.imshow(counts, cmap="Blues", norm=shades, aspect="auto", interpolation="nearest")
        _name_axes(ax, stage, classes, n_clients)
    for ax in axes[n_stages:]:
        ax.remove()
    bar = fig.colorbar(image, ax=axes[:n_stages].tolist(), pad=0.01, aspect=30)
    bar.set_label(f"{'training' if part == 'train' else 'test'} samples", fontsize=drawing.TEXT)
    bar.ax.tick_params(labelsize=drawing.SMALL)
    return fig


def _counts(rows: pd.DataFrame, classes: Sequence[str], n_clients: int) -> np.ndarray:
    """Return samples `(clients, classes)` over all domains; NaN, drawn in white, for none."""
    counts = rows.pivot_table("samples", "client", "class", aggfunc="sum")
    return counts.reindex(index=range(n_clients), columns=list(classes)).to_numpy()


def _name_height(names: Sequence[str]) -> float:
    """Return the height of the class names below the axis, if shown, in inches."""
    return 0.3 + (0.07 * max(map(len, names)) if len(names) <= NARROW else 0)


def _name_axes(ax: Axes, stage: int, classes: Sequence[str], n_clients: int) -> None:
    ax.set_title(f"stage {stage}", fontsize=drawing.TEXT)
    ax.tick_params(labelsize=drawing.SMALL, length=2)
    if len(classes) <= NARROW:
        ax.set_xticks(range(len(classes)), classes, rotation=90)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(n_clients - 0.5, -0.5)
    ax.set_xlabel("class", fontsize=drawing.TEXT)
    ax.set_ylabel("client", fontsize=drawing.TEXT)
    ax.label_outer()


@listed
def stages(
    runs: Sequence[ImageRun],
    *,
    view: str = "",
    mask: str = "all classes",
    participants: bool = True,
    passes: int = 10,
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Accuracy after each stage on the test images of all stages so far (GLDP, Figure 4).

    Args:
        runs: finished runs with task streams; those that differ only in the seed are averaged, in a
            band of ± one standard deviation.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, those that a client has had so
            far; or `task classes`, those of the test image's task.
        participants: average only over the clients that took part in the stage (A^sel), or all.
        passes: number of last evaluated rounds of each stage to average.
        width: width of the figure in inches.
    """
    fig, (ax,) = drawing.panels(width, 0.75 * width)
    for curve, name in model_curves(runs, view, mask):
        after = [
            known(run.stages(), name, mask, participants=participants, passes=passes)
            for run in curve.group.runs
        ]
        curve.draw_mean(ax, 100 * pd.concat(after, axis=1), marker=".")
    drawing.count_axis(ax, "stage")
    ax.set_ylabel(f"accuracy in %, {mask}")
    drawing.add_legend(fig)
    return fig
