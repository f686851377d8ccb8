"""t-SNE of the prototypes of clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors.numpy import load_file
from sklearn.manifold import TSNE

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.bench.curves import point_look
from stforecast.bench.drawing import TEXT, TWO_COLUMNS, add_legend, legend_point, panels
from vision.methods.pfpl import PFPL, PFPLOptions, mixtures
from vision.results import ImageRun


@listed
def prototypes(
    runs: Sequence[ImageRun], *, perplexity: float = 10, width: float = TWO_COLUMNS
) -> Figure:
    """t-SNE of the local prototypes of a PFPL run and of each client's mixtures (Figure 3).

    A panel for each domain shows its clients' prototypes in the colour of their class, joined by
    lines to their mixtures (rings); other domains' prototypes are grey. All panels share one
    embedding, so distances are comparable. A client with images of several domains is in the panel
    of its most frequent one.

    Args:
        runs: finished runs of pfpl; the first is drawn.
        perplexity: perplexity of t-SNE, roughly the number of neighbours of a prototype.
        width: width of the figure in inches.
    """
    run = next((run for run in runs if run.method == PFPL.name), None)
    if run is None:
        raise InputError(f"none of these is a run of {PFPL.name}, whose prototypes are drawn")
    local, mixed, client, label = _points(run)
    if len(local) <= 3:
        raise InputError(f"{run.folder}: {len(local)} prototypes are too few to draw; use more")
    flat = TSNE(
        perplexity=min(perplexity, (2 * len(local) - 1) / 3), init="pca", random_state=0
    ).fit_transform(np.concatenate([local, mixed]))
    here, there = flat[: len(local)], flat[len(local) :]
    home = _home(run)[client]
    domains = run.about["domains"]
    present = [d for d in range(len(domains)) if (home == d).any()]
    columns = min(len(present), 4)
    fig, axes = panels(width, width / max(columns, 2) + 0.2, len(present), n_columns=columns)
    for ax, d in zip(axes, present, strict=True):
        _panel(ax, here, there, label, home == d)
        ax.set_title(domains[d], fontsize=TEXT)
    points = [legend_point(run.about["classes"][c], *point_look(c)) for c in np.unique(label)]
    add_legend(fig, points=[*points, legend_point("its mixture", "0.4", "o", fillstyle="none")])
    return fig


def _points(run: ImageRun) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return local prototypes and mixtures `(n, d)`, and their clients and classes `(n,)`."""
    state = load_file(run.folder / "model" / "state.safetensors")
    local = torch.from_numpy(state["server/prototypes"])
    known = torch.from_numpy(state["server/known"]).bool()
    names = PFPLOptions.__dataclass_fields__
    options = PFPLOptions(**{n: run.settings[n] for n in names})
    mixed = mixtures(local, known, torch.arange(len(local)), options)
    client, label = known.nonzero(as_tuple=True)
    return local[known].numpy(), mixed[known].numpy(), client.numpy(), label.numpy()


def _home(run: ImageRun) -> np.ndarray:
    """Return the most frequent domain of each client's training images, `(clients,)`."""
    table = run.partition()
    counts = table[table["part"] == "train"].groupby(["client", "domain"])["samples"].sum()
    home = counts.unstack(fill_value=0).idxmax(axis=1)
    return home.map(run.about["domains"].index).to_numpy()


def _panel(
    ax: Axes, here: np.ndarray, there: np.ndarray, label: np.ndarray, own: np.ndarray
) -> None:
    x, y = here[~own].T
    ax.scatter(x, y, s=8, color="0.85", linewidths=0)
    for (x, y), (u, v), c in zip(here[own], there[own], label[own], strict=True):
        color, marker = point_look(int(c))
        ax.plot([x, u], [y, v], color=color, linewidth=0.5)
        ax.scatter([u], [v], s=22, facecolors="none", edgecolors=color, linewidths=0.7)
        ax.scatter([x], [y], s=12, color=color, marker=marker, linewidths=0)
    ax.set_xticks([])
    ax.set_yticks([])
