"""Figures of partitions and of task streams: images by client, class and domain or stage."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from data_prep.base.registry import listed
from stforecast.bench.curves import point_look
from stforecast.bench.drawing import SMALL, TEXT, TWO_COLUMNS, PlainFigure, add_legend, legend_point
from vision.results import ImageRun

SIDE_BY_SIDE = 20
"""Maximum number of classes for which the two panels, or five stages, are side by side."""

MARKERS = ("s", "o", "D", "^")
"""More domains than colours differ in their markers."""

PARTS = {"train": "training", "test": "test"}


@listed
def partition(runs: Sequence[ImageRun], *, width: float = TWO_COLUMNS) -> Figure:
    """Images by client and class, for training and test.

    A marker's area is the number of images, its colour the domain. If clients have images of
    several domains, every domain has its own place within a cell. Each panel's title gives the
    number of its largest marker, and the clients' samples in total, in which a shared test image
    counts for each client. Of several runs, the first is drawn.

    Args:
        runs: finished runs.
        width: width of the figure in inches.
    """
    run, about = runs[0], runs[0].about
    return division(run.partition(), about["classes"], about["domains"], about["clients"], width)


def division(
    table: pd.DataFrame,
    classes: Sequence[str],
    domains: Sequence[str],
    n_clients: int,
    width: float = TWO_COLUMNS,
) -> Figure:
    """Draw the table of a partition, without training."""
    n_columns = 2 if len(classes) <= SIDE_BY_SIDE else 1
    n_rows = 2 // n_columns
    of_names = 0.08 * max(map(len, classes))
    height = n_rows * (0.13 * max(n_clients, 4) + 0.55) + of_names + 0.35
    fig = PlainFigure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    own = table.groupby("client")["domain"].unique()
    only = {client: f"{names[0]}  {client}" for client, names in own.items() if len(names) == 1}
    clients = [only.get(i, str(i)) if len(domains) > 1 else str(i) for i in range(n_clients)]
    for ax, (part, title) in zip(axes, PARTS.items(), strict=True):
        rows = table[table["part"] == part]
        # The names of clients need an inch.
        _name_axes(ax, classes, clients, width / n_columns - 1)
        ax.label_outer()
        total, most = rows["samples"].sum(), rows["samples"].max()
        ax.set_title(f"{title}: {total:,} samples, largest marker {most:,}", fontsize=TEXT)
    if len(domains) > 1:
        looks = [point_look(place, MARKERS) for place in range(len(domains))]
        points = zip(domains, looks, strict=True)
        add_legend(fig, points=[legend_point(domain, *look) for domain, look in points])
    # Marker sizes are in points, so the layout must be final before they are drawn.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # `save_figure` tells of what the font lacks.
        fig.draw_without_rendering()
    for ax, part in zip(axes, PARTS, strict=True):
        _draw(ax, table[table["part"] == part], classes, domains)
    return fig


def _name_axes(ax: Axes, classes: Sequence[str], clients: Sequence[str], inches: float) -> None:
    size = min(SMALL, 72 * inches / len(classes))
    rotation = 90 if max(map(len, classes)) > 2 or len(classes) > SIDE_BY_SIDE else 0
    ax.set_xticks(range(len(classes)), classes, rotation=rotation, fontsize=size)
    ax.set_yticks(range(len(clients)), clients, fontsize=SMALL)
    ax.set_xticks([x - 0.5 for x in range(1, len(classes))], minor=True)
    ax.set_yticks([y - 0.5 for y in range(1, len(clients))], minor=True)
    ax.set_xlim(-0.5, len(classes) - 0.5)
    ax.set_ylim(len(clients) - 0.5, -0.5)
    ax.grid(which="minor", color="0.9", linewidth=0.5)
    ax.tick_params(which="both", length=0)
    ax.set_xlabel("class", fontsize=TEXT)
    ax.set_ylabel("client", fontsize=TEXT)
    ax.set_axisbelow(True)


def _draw(ax: Axes, rows: pd.DataFrame, classes: Sequence[str], domains: Sequence[str]) -> None:
    """Draw a marker in each cell, or in a part of it for each domain."""
    several = rows.groupby("client")["domain"].nunique().gt(1).any()
    box, points = ax.get_window_extent(), 72 / ax.figure.dpi
    width = box.width * points / len(classes)
    height = box.height * points / len(ax.get_yticks())
    n = len(domains) if several else 1
    # The largest side of n squares in one cell, and their number in a row.
    side, n_columns = max((min(width / k, height / math.ceil(n / k)), k) for k in range(1, n + 1))
    n_rows = math.ceil(n / n_columns)
    most = rows["samples"].max()
    for d, domain in enumerate(domains):
        own = rows[rows["domain"] == domain]
        row, column = divmod(d, n_columns) if several else (0, 0)
        x = own["class"].map(list(classes).index) + (column + 0.5) / n_columns - 0.5
        y = own["client"] + (row + 0.5) / n_rows - 0.5
        color, marker = point_look(d, MARKERS)
        sizes = ((0.92 * side) ** 2 * own["samples"] / most).clip(lower=1)
        ax.scatter(x, y, sizes, color=color, marker=marker, linewidths=0)


@listed
def stream(runs: Sequence[ImageRun], *, width: float = TWO_COLUMNS) -> Figure:
    """Training images by client and class, one panel per stage; darker is more samples.

    Shades follow the square root of the number, so that rare classes are visible next to frequent
    ones. Of several runs, the first is drawn.

    Args:
        runs: finished runs with a task stream.
        width: width of the figure in inches.
    """
    run = runs[0]
    run.stages()  # It refuses a run without a task stream.
    return stages_of(run.partition(), run.about["classes"], run.about["clients"], width)


def stages_of(
    table: pd.DataFrame,
    classes: Sequence[str],
    n_clients: int,
    width: float = TWO_COLUMNS,
) -> Figure:
    """Draw the table of a stream, without training."""
    rows = table[table["part"] == "train"]
    n_stages = int(table["stage"].max()) + 1
    n_columns = min(n_stages, 5 if len(classes) <= SIDE_BY_SIDE else 2)
    n_rows = -(-n_stages // n_columns)
    of_names = 0.07 * max(map(len, classes)) if len(classes) <= SIDE_BY_SIDE else 0
    height = n_rows * (0.11 * max(n_clients, 6) + 0.35) + 0.3 + of_names
    fig = PlainFigure(figsize=(width, height), layout="constrained")
    axes = fig.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    shades = PowerNorm(0.5, 0, max(int(rows["samples"].max()), 1))
    for stage, ax in enumerate(axes[:n_stages]):
        own = rows[rows["stage"] == stage]
        # Samples of all domains; NaN, drawn in white, for none.
        counts = own.pivot_table("samples", "client", "class", aggfunc="sum")
        counts = counts.reindex(index=range(n_clients), columns=list(classes))
        image = ax.imshow(counts, cmap="Blues", norm=shades, aspect="auto", interpolation="nearest")
        ax.set_title(f"stage {stage}", fontsize=TEXT)
        ax.tick_params(labelsize=SMALL, length=2)
        if len(classes) <= SIDE_BY_SIDE:
            short = max(map(len, classes)) == 1 and len(classes) <= 10
            ax.set_xticks(range(len(classes)), classes, rotation=0 if short else 90)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(n_clients - 0.5, -0.5)
        ax.set_xlabel("class", fontsize=TEXT)
        ax.set_ylabel("client", fontsize=TEXT)
        ax.label_outer()
    for ax in axes[n_stages:]:
        ax.remove()
    bar = fig.colorbar(image, ax=axes[:n_stages].tolist(), pad=0.01, aspect=30)
    bar.set_label("training samples", fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    return fig
