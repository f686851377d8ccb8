"""t-SNE of features before and after FedTA's tail anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError
from data_prep.base.registry import listed_as
from stforecast.bench.curves import point_look
from stforecast.bench.drawing import TEXT, TWO_COLUMNS, add_legend, legend_point, panels
from stforecast.federated.core.state import Participants
from stforecast.federated.core.tensors import take
from vision.learner import Learner
from vision.methods.fedta import FedTA
from vision.results import ImageRun
from vision.streams.base import TaskStream


@listed_as("anchors")
def tail_anchors(
    runs: Sequence[ImageRun],
    *,
    client: int = 0,
    stage: int = 0,
    width: float = TWO_COLUMNS,
) -> Figure:
    """t-SNE of test images before and after the tail anchors, after all tasks (Figure 5).

    A panel for each run shows the features of one task's images after the anchors; a panel to its
    left, unless equal to the previous run's, shows the features that select the anchors.
    Colours are classes. Features lie on the unit sphere, as FedTA compares them by cosine. The
    titles give the number of selected anchors, and the mean silhouette of the classes before t-SNE:
    1 for well separated classes, 0 for overlapping ones.

    Args:
        runs: finished runs of fedta, e.g. with different numbers of anchors.
        client: client whose anchors to draw.
        stage: task whose test images to draw; the first was learned longest ago.
        width: width of the figure in inches.
    """
    from sklearn.metrics import silhouette_score

    runs = [r for r in runs if r.method == FedTA.name and r.settings["tail_anchor"]]
    if not runs:
        raise InputError("none of these is a run of fedta with tail anchors; draw one that is")
    views = [_features(run, client, stage) for run in runs]
    labels = views[0].labels
    if any(not torch.equal(v.ids, views[0].ids) for v in views):
        raise InputError(
            "these runs have different images in that task; draw runs of one partition"
        )
    drawn: list[tuple[str, np.ndarray]] = []
    for i, (run, view) in enumerate(zip(runs, views, strict=True)):
        if not i or not np.array_equal(view.before, views[i - 1].before):
            drawn.append(("before the anchors", view.before))
        n = run.settings["anchors"]
        drawn.append((f"{n} anchors, {view.chosen} chosen", view.behind))
    columns = min(len(drawn), 3)
    fig, axes = panels(width, width / columns + 0.7, len(drawn), n_columns=columns)
    for ax, (title, features) in zip(axes, drawn, strict=True):
        _panel(ax, features, labels)
        score = silhouette_score(features, labels, metric="cosine")
        ax.set_title(f"{title}\nsilhouette {score:.2f}", fontsize=TEXT)
    names = [runs[0].about["classes"][label] for label in np.unique(labels)]
    add_legend(fig, points=[legend_point(n, *point_look(i)) for i, n in enumerate(names)])
    return fig


@dataclass(frozen=True)
class _Features:
    """Ids and classes of n images, F_out `(n, d)`, F_TA `(n, width)`, and the anchors in use."""

    ids: Tensor
    labels: np.ndarray
    before: np.ndarray
    behind: np.ndarray
    chosen: int


def _features(run: ImageRun, client: int, stage: int) -> _Features:
    """Compute the features of a client's test images of a stage, under the shared anchor pool."""
    learner = Learner.load(run.folder)
    config, (method, state) = learner.config, learner.fitted()
    assert isinstance(method, FedTA)
    images = run.images()
    tests = TaskStream.of(config.partition.split(images, config.run.seed)).test
    if not (0 <= client < len(tests[0]) and 0 <= stage < len(tests)):
        raise InputError(
            f"{run.folder}: client is {client} and stage {stage}; there are clients 0 to "
            f"{len(tests[0]) - 1} and stages 0 to {len(tests) - 1}"
        )
    ids, labels = tests[stage][client], images.labels[tests[stage][client]]
    if len(labels.unique()) < 2 or len(ids) <= len(labels.unique()):
        raise InputError(f"{run.folder}: {len(ids)} test images are too few to draw; use more")
    one = torch.tensor([client])
    clients = state.clients
    payload = method.broadcast(state.server, Participants(one, clients.sizes[one], state.round))
    params = {**take({**clients.params, **clients.memory}, one), **payload}
    x = images.images[ids][None].to(params["anchor.values"].device)
    with torch.no_grad():
        before = method.features(params, x)
        behind, chosen = method.anchored(params, before)
    n_chosen = chosen.unique().numel()
    return _Features(ids, labels.numpy(), _unit(before), _unit(behind), n_chosen)


def _unit(features: Tensor) -> np.ndarray:
    return F.normalize(features[0], dim=-1).cpu().double().numpy()


def _panel(ax: Axes, features: np.ndarray, labels: np.ndarray) -> None:
    from sklearn.manifold import TSNE

    most = (len(features) - 1) / 3  # It needs more samples than three times the perplexity.
    tsne = TSNE(perplexity=min(15, most), init="pca", random_state=0)
    flat = np.asarray(tsne.fit_transform(features))
    for place, label in enumerate(np.unique(labels)):
        color, marker = point_look(place)
        x, y = flat[labels == label].T
        ax.scatter(x, y, s=12, color=color, marker=marker, linewidths=0, alpha=0.9)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set(visible=True, color="0.8")
