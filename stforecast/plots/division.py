"""Figure of a division of cells among clients: the levels of their cells, and their mean weeks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from stforecast.bench.drawing import SMALL, TEXT, TWO_COLUMNS, panels
from stforecast.data.partition.heterogeneity import Heterogeneity

MOST_NAMED = 30
"""Most clients whose names fit next to their rows."""


def division(found: Heterogeneity, names: Sequence[str], width: float = TWO_COLUMNS) -> Figure:
    """Draw the number of cells of each client in each class of levels, and the clients' weeks.

    Left: a marker's area is a number of cells. Right: the share of the week's total in each slot,
    less the mean of all clients, so that equal clients have white rows.
    """
    n_clients, n_levels = found.counts.shape
    height = 0.9 + 0.16 * min(max(n_clients, 6), MOST_NAMED)
    fig, (left, right) = panels(width, height, 2, n_columns=2)
    clients, levels = np.nonzero(found.counts)
    cells = found.counts[clients, levels]
    left.scatter(levels, clients, 120 * cells / cells.max(), linewidths=0)
    left.set_xticks(range(n_levels), ["lowest", *[""] * (n_levels - 2), "highest"])
    left.set(xlim=(-0.5, n_levels - 0.5), ylim=(n_clients - 0.5, -0.5), xlabel="level of the cells")
    left.set_title(f"{cells.sum():g} cells, largest marker {cells.max():g}", fontsize=TEXT)
    if n_clients <= MOST_NAMED:
        left.set_yticks(range(n_clients), names)
    differences = 100 * (found.weeks / found.weeks.mean(axis=0) - 1)
    most = max(float(np.abs(differences).max()), 0.1)
    image = right.imshow(
        differences, "RdBu_r", aspect="auto", interpolation="nearest", vmin=-most, vmax=most,
        extent=(0, 7, n_clients - 0.5, -0.5),
    )  # fmt: skip
    right.set_xticks(np.arange(7) + 0.5, ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    right.set_yticks([])
    right.grid(visible=False)
    slot = "day" if differences.shape[1] == 7 else "hour"
    right.set_title(f"each {slot}'s share of the week, against all clients'", fontsize=TEXT)
    bar = fig.colorbar(image, ax=right, format=lambda x, _: f"{x:+.3g} %" if x else "0 %")
    bar.ax.tick_params(labelsize=SMALL)
    return fig
