"""What a run of FUELS has learned: divergences between clients, and its filtering matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import TwoSlopeNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from safetensors import SafetensorError, safe_open

from data_prep.base.errors import InputError
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import ONE_COLUMN, SMALL, TEXT, add_legend, panels
from stforecast.data.splits import parse_split
from stforecast.forecasting.results import ForecastRun, data_of
from stforecast.plots.excerpt import named
from stforecast.plots.figure import figure_of_training


@dataclass(frozen=True, eq=False)
class Inside:
    """Arrays of a run's selected model.

    Attributes:
        run: the run.
        cells: `(clients,)` ids or names of the clients, in the order of the arrays.
        round: round of the selected model.
        arrays: the requested arrays by name.
    """

    run: ForecastRun
    cells: np.ndarray
    round: int
    arrays: dict[str, np.ndarray]

    def places(self, names: str) -> list[int]:
        """Return the rows of clients in the arrays, from ids with commas between."""
        known = {str(cell): place for place, cell in enumerate(self.cells)}
        return named(known, names.split(","), "client", f"of {self.run.folder}")


def look_inside(
    runs: Sequence[ForecastRun], needed: Mapping[str, object], names: Sequence[str]
) -> Inside:
    """Read arrays of `model/state.safetensors` of one FUELS run with the needed settings."""
    if not runs:
        raise InputError("no runs to draw; give at least one folder of a finished run")
    folders = {run.folder.resolve(): run for run in runs}
    if len(folders) > 1:
        raise InputError(f"this figure is of one run, {len(folders)} were given; name one folder")
    (run,) = folders.values()
    if run.method != "fuels":
        raise InputError(f"{run.folder}: a run of {run.method}; this figure needs one of fuels")
    for name, value in needed.items():
        if run.settings.get(name) != value:
            raise InputError(
                f"{run.folder}: {name} is {run.about['settings'].get(name)}; this figure needs a "
                f"run with {name} {value}"
            )
    path = run.folder / "model"
    try:
        about = json.loads((path / "forecaster.json").read_text())
        with safe_open(path / "state.safetensors", framework="numpy") as state:
            arrays = {name: state.get_tensor(name) for name in names}
        # Clients that hold several cells have names.
        clients = list(dict.fromkeys(about.get("clients", about["cells"])))
        return Inside(run, np.asarray(clients), int(about["round"]), arrays)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as e:
        raise InputError(
            f"{path}: cannot be read ({e}); this figure needs the model that the run wrote"
        ) from e


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
    the training data's, which the paper does not define; here it is computed as for
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
        # Along an axis, seven names an inch are readable.
        names = [str(c) for c in inside.cells[shown] if len(shown) <= 7 * (width / 2 - 0.5)]
        ax.set_xticks(range(len(names)), names, rotation=90)
        ax.set_yticks(range(len(names)), names)
        ax.set_xlabel(f"{len(shown)} clients, same order", fontsize=SMALL)
    fig.suptitle(_verdict(prototypes, data), fontsize=SMALL)
    return fig


def _of_data(inside: Inside) -> Divergences:
    """Compute the divergences of the training data, which are read again."""
    import torch

    from stforecast.data.prepared import prepare
    from stforecast.data.scaling import Scaler
    from stforecast.data.series import as_series
    from stforecast.federated.core.prototypes import jensen_shannon
    from stforecast.forecasting.config import resolve

    run, about = inside.run, inside.run.about
    path = data_of(about)
    if not path.exists():
        raise InputError(f"{run.folder}: its data, {path}, are missing; restore them")
    series = as_series(path, about["service"]).select(inside.cells)
    config = resolve(**about["settings"]).at(series.calendar.step)
    own = config.data
    data = prepare(series, config.window, own.split, own.scale, outliers=own.outliers)
    then = Scaler(inside.arrays["scaler/mean"], inside.arrays["scaler/std"])
    now = data.scaler.state()
    if not all(np.allclose(a, now[name]) for name, a in then.state().items()):
        raise InputError(f"{run.folder}: its data, {path}, have changed since; run it again")
    z = data.z[data.split.fit]
    values = (jensen_shannon(torch.from_numpy(np.nan_to_num(z.T, nan=0.0))) / len(z)).numpy()
    pairs = values[np.triu_indices(len(values), 1)]
    threshold = float(np.quantile(pairs, inside.run.settings["beta"]))
    return Divergences("training data", values, threshold)


def _cluster_order(values: np.ndarray) -> list[int]:
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    return leaves_list(linkage(squareform(values, checks=False), "average")).tolist()


def _draw(fig: Figure, ax: Axes, panel: Divergences, shown: Sequence[int]) -> None:
    threshold, highest = panel.threshold, max(panel.pairs.max(), panel.threshold)
    # The scale needs some room on both sides, even if the threshold is an extreme value.
    room = max(1e-3 * highest, 1e-12)
    norm = TwoSlopeNorm(threshold, min(0.0, threshold - room), max(highest, threshold + room))
    # Close to the paper's yellow and purple, and safe for all kinds of colour vision.
    image = ax.imshow(panel.values[np.ix_(shown, shown)], cmap="PuOr", norm=norm)
    ax.set_anchor("S")  # The layout leaves no room for a title above axes of equal aspect.
    ax.grid(visible=False)
    ax.set_title(panel.title, fontsize=TEXT)
    bar = fig.colorbar(image, ax=ax, location="bottom", fraction=0.06, aspect=12)
    bar.set_ticks([0, threshold, highest], labels=["0", f"{threshold:.2g}", f"{highest:.2g}"])
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label("JSD (nats a value)\nwhite: the threshold", fontsize=SMALL)


def _verdict(one: Divergences, other: Divergences) -> str:
    """Describe how well the order and the sides of the thresholds agree.

    The rank correlation is undefined if all values are equal.
    """
    from scipy.stats import spearmanr

    a, b = one.pairs, other.pairs
    known = np.ptp(a) and np.ptp(b)
    correlation = f"{spearmanr(a, b).statistic:.2f}" if known else "undefined"
    same = np.mean((a <= one.threshold) == (b <= other.threshold))
    return (
        f"{len(a):,} pairs: rank correlation (Spearman) {correlation},\n"
        f"{same:.0%} on the same side of both thresholds"
    )


KEPT, LEFT_OUT = COLORS[1], COLORS[0]


@figure_of_training
def filter(
    runs: Sequence[ForecastRun], *, client: str | None = None, width: float = ONE_COLUMN
) -> Figure:
    """The filtering matrix W of one client, of one run of FUELS.

    The circle in row b and column i shows W_bi: its area is |W_bi|, its colour the sign. If W_bi is
    above 0, the shifted sample i is a negative of sample b in the contrastive loss; otherwise it is
    left out. In the grey band the closeness inputs of both samples overlap. The text below gives
    the share left out on the diagonal (the positives), in the rest of the band, and beyond it. As
    Figure 9 of FUELS (arXiv 2404.03702).

    Args:
        runs: one run of FUELS.
        client: id of the client; by default the first.
        width: width of the figure in inches.
    """
    name = "clients/params/filter"
    inside = look_inside(runs, {"intra": True, "filter_train": True}, [name])
    place = 0 if client is None else inside.places(client)[0]
    weights, settings = inside.arrays[name][place], inside.run.settings
    fig, (ax,) = panels(width, width + 0.25)
    _circles(ax, weights)
    period = inside.run.about["window"]["period"]
    in_slots = settings["prototypes"] == "periodic"  # A batch has one sample of each slot.
    steps = max(1, period // len(weights)) if in_slots else 1
    overlap = math.ceil(settings["closeness"] / steps)
    if overlap:  # The band in which the closeness inputs of both samples overlap.
        x, reach = np.array([-0.5, len(weights) - 0.5]), overlap - 0.5
        label = f"inputs overlap: |b − i| < {overlap}"
        ax.fill_between(x, x - reach, x + reach, color="0.9", linewidth=0, zorder=0, label=label)
    by_days = parse_split(str(settings["split"])).by_clock  # So training begins at slot 0.
    slots = by_days and (in_slots or len(weights) == period)
    place_name = "slot of the period" if slots else "place in the batch"
    ax.set_xlim(-0.5, len(weights) - 0.5)
    ax.set_ylim(len(weights) - 0.5, -0.5)
    ax.set_aspect("equal", anchor="S")  # The layout leaves no room for a title above such axes.
    ax.grid(visible=False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 3, 6, 10]))
    ax.set_xlabel(f"shifted sample i, {place_name}")
    ax.set_ylabel(f"sample b, {place_name}")
    title = f"W of client {inside.cells[place]} after round {inside.round}"
    ax.set_title(f"{title}; largest |W| {np.abs(weights).max():.2g}", fontsize=SMALL)
    add_legend(fig, _left_out(weights, overlap))
    return fig


def _circles(ax: Axes, weights: np.ndarray) -> None:
    """Draw the circles, on squares that mark what is left out, however small its weight."""
    largest = max(np.abs(weights).max(), np.finfo(np.float32).tiny)
    kept = weights > 0
    for chosen, color in ((kept, KEPT), (~kept, LEFT_OUT)):
        sizes = 0.95 * np.sqrt(np.abs(weights[chosen]) / largest)
        rows, columns = np.nonzero(chosen)
        place = {"offsets": np.stack([columns, rows], axis=1), "offset_transform": ax.transData}
        style: dict[str, Any] = {"units": "xy", "facecolors": color, "linewidth": 0}
        circles = EllipseCollection(sizes, sizes, np.zeros_like(sizes), **style | place)
        ax.add_collection(circles, autolim=False)
    faint = (*to_rgb(LEFT_OUT), 0.25)
    rgba = np.where(kept[..., None], (0.0, 0.0, 0.0, 0.0), faint)
    ax.imshow(rgba, zorder=0.5)
    ax.plot([], [], "o", color=KEPT, markersize=5, label="above 0: a negative")
    ax.plot(
        [], [], "s", color=faint, markersize=7, markeredgewidth=0, label="not above 0: left out"
    )


def _left_out(weights: np.ndarray, overlap: int) -> str:
    """Describe the shares of W that are not above 0.

    >>> _left_out(np.array([[-1.0, 2.0, 3.0], [4.0, -1.0, 6.0], [-1.0, -1.0, 9.0]]), 2)
    'Left out: 67% of the diagonal, 25% of the rest of the band, 50% beyond it'
    """
    b, i = np.indices(weights.shape)
    distance = np.abs(b - i)
    near = (distance > 0) & (distance < overlap)
    places = {
        "of the diagonal": distance == 0,
        "of the rest of the band": near,
        "beyond it": (distance > 0) & ~near,
    }
    shares = [f"{np.mean(weights[p] <= 0):.0%} {name}" for name, p in places.items() if p.any()]
    return f"Left out: {', '.join(shares)}"
