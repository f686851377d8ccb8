"""Divergences between clients, of their prototypes and of their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from data_prep.errors import InputError
from stforecast.bench.drawing import ONE_COLUMN, SMALL, TEXT, panels
from stforecast.plots.figure import figure_of_training
from stforecast.plots.inside import Inside, look_inside
from stforecast.results import ForecastRun, data_of

COLORS = "PuOr"
"""Orange below the threshold, purple above: close to the paper's yellow and purple, and safe for
all kinds of colour vision (colorbrewer2.org)."""

NAMES_PER_INCH = 7
"""Maximum number of client ids that are readable along an axis."""


@dataclass(frozen=True, eq=False)
class Divergences:
    """Divergences of all pairs of clients.

    Attributes:
        title: title of the panel.
        values: `(clients, clients)` JSD in nats per value.
        threshold: pairs up to it count as similar.
    """

    title: str
    values: np.ndarray
    threshold: float

    @property
    def pairs(self) -> np.ndarray:
        """Return the values `(pairs,)`, each pair once."""
        return self.values[np.triu_indices(len(self.values), 1)]


@figure_of_training
def divergence(
    runs: Sequence[ForecastRun], *, clients: str | None = None, width: float = ONE_COLUMN
) -> Figure:
    """Divergences of prototypes and of data between the clients of one run of FUELS.

    Left, the Jensen–Shannon divergence of the prototypes on the server, and its threshold β. Right,
    that of the training data, which the paper does not define; here it is computed as for
    prototypes: softmax over the steps of the training part turns each client's z-scores (missing
    ones 0) into a distribution. Both are in nats, divided by the number of values of a
    distribution. The data's threshold is the same quantile of their own divergences. The title
    measures the claim of section 5.5, that both matrices look the same, over all pairs of the run,
    drawn or not: rank correlation (Spearman), and the share of pairs on the same side of both
    thresholds. The data are read again from the run's cube. As in Figure 8 of FUELS (arXiv
    2404.03702).

    Args:
        runs: one run of FUELS with at least three clients.
        clients: ids of clients to draw, in this order, separated by commas; by default all, with
            similar prototypes side by side.
        width: width of the figure in inches.

    Raises:
        InputError: if the run is of another method or has no prototypes, if its data are missing or
            have changed, or if a client is unknown.
    """
    needed = ["server/jsd", "server/threshold", "scaler/mean", "scaler/std"]
    inside = look_inside(runs, {"inter": True, "compared": 0}, needed)
    if inside.run.settings.get("clients", "cell") != "cell":
        raise InputError(
            f"{inside.run.folder}: clients is {inside.run.settings['clients']}; this figure "
            "compares the data of single cells and needs a run with clients cell"
        )
    if len(inside.cells) < 3:
        raise InputError(f"{inside.run.folder}: {len(inside.cells)} clients, expected at least 3")
    jsd = inside.arrays["server/jsd"].astype(np.float64)
    prototypes = Divergences("prototypes", jsd, inside.arrays["server/threshold"].item())
    data = _of_data(inside)
    shown = _cluster_order(jsd) if clients is None else inside.places(clients)
    fig, axes = panels(width, 0.55 * width + 1.05, 2, n_columns=2)
    for ax, panel in zip(axes, (prototypes, data), strict=True):
        _draw(fig, ax, panel, shown)
        _name_clients(ax, inside.cells[shown].astype(str), width / 2 - 0.5)
    fig.suptitle(_verdict(prototypes, data), fontsize=SMALL)
    return fig


def _of_data(inside: Inside) -> Divergences:
    """Return the divergences of the training series, and their threshold."""
    import torch

    from stforecast.federated.prototypes import jensen_shannon

    z = _training_series(inside)
    logits = torch.from_numpy(np.nan_to_num(z.T, nan=0.0))
    values = (jensen_shannon(logits) / len(z)).numpy()
    found = Divergences("training data", values, 0.0)
    beta = inside.run.settings["beta"]
    return Divergences(found.title, values, float(np.quantile(found.pairs, beta)))


def _training_series(inside: Inside) -> np.ndarray:
    """Return `(steps, clients)` z-scores of the training part, NaN where missing."""
    from stforecast.config import resolve
    from stforecast.data.prepared import prepare
    from stforecast.data.scaling import Scaler
    from stforecast.data.series import as_series

    run, about = inside.run, inside.run.about
    path = data_of(about)
    if not path.exists():
        raise InputError(f"{run.folder}: its data, {path}, are missing; restore them")
    series = as_series(path, about["service"]).select(inside.cells)
    config = resolve(**about["settings"]).at(series.calendar.step)
    data = prepare(series, config.window, config.data.split, config.data.scale)
    then = Scaler(inside.arrays["scaler/mean"], inside.arrays["scaler/std"])
    if not all(np.allclose(a, then.state()[name]) for name, a in data.scaler.state().items()):
        raise InputError(f"{run.folder}: its data, {path}, have changed since; run it again")
    return data.z[data.split.fit]


def _cluster_order(values: np.ndarray) -> list[int]:
    """Return the clients in the order of the leaves of average-linkage clustering."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    return leaves_list(linkage(squareform(values, checks=False), "average")).tolist()


def _draw(fig: Figure, ax: Axes, panel: Divergences, shown: Sequence[int]) -> None:
    threshold, highest = panel.threshold, max(panel.pairs.max(), panel.threshold)
    # The scale needs some room on both sides, even if the threshold is an extreme value.
    room = max(1e-3 * highest, 1e-12)
    norm = TwoSlopeNorm(threshold, min(0.0, threshold - room), max(highest, threshold + room))
    image = ax.imshow(panel.values[np.ix_(shown, shown)], cmap=COLORS, norm=norm)
    ax.set_anchor("S")  # The layout leaves no room for a title above axes of equal aspect.
    ax.grid(visible=False)
    ax.set_title(panel.title, fontsize=TEXT)
    bar = fig.colorbar(image, ax=ax, location="bottom", fraction=0.06, aspect=12)
    bar.set_ticks([0, threshold, highest], labels=["0", f"{threshold:.2g}", f"{highest:.2g}"])
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label("JSD (nats a value)\nwhite: the threshold", fontsize=SMALL)


def _name_clients(ax: Axes, names: np.ndarray, inches: float) -> None:
    if len(names) <= NAMES_PER_INCH * inches:
        ax.set_xticks(range(len(names)), names, rotation=90)
        ax.set_yticks(range(len(names)), names)
    else:
        ax.set_xticks([])
        ax.set_yticks([])
    ax.set_xlabel(f"{len(names)} clients, same order", fontsize=SMALL)


def _verdict(one: Divergences, other: Divergences) -> str:
    """Describe how well the order and the sides of the thresholds agree."""
    a, b = one.pairs, other.pairs
    same = np.mean((a <= one.threshold) == (b <= other.threshold))
    return (
        f"{len(a):,} pairs: rank correlation (Spearman) {_rank_correlation(a, b)},\n"
        f"{same:.0%} on the same side of both thresholds"
    )


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> str:
    """Return Spearman's ρ as text; it is undefined if all values are equal."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (a, b)]
    if any(np.ptp(r) == 0 for r in ranks):
        return "undefined"
    return f"{np.corrcoef(*ranks)[0, 1]:.2f}"
