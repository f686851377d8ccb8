"""Methods side by side, and accuracy against a setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from vision.plots.runs import by_label, by_model, check_mask, check_view, score
from vision.plots.style import COLORS, ONE_COLUMN, SMALL, TEXT, legend_below, line_look, panels
from vision.results import ImageRun


@listed
def bars(
    runs: Sequence[ImageRun],
    *,
    selection: str = "last",
    view: str = "",
    mask: str = "all classes",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test accuracy of each method, mean over clients and seeds (PFPL, Figure 5).

    Args:
        runs: finished runs; the whiskers are ± one standard deviation over seeds.
        selection: `last` round, `best` round or mean of the `last ten`.
        view: which of a method's models, or `every` one; by default its first.
        mask: `all classes`; `own classes`: those of the client's training images; of task streams,
            `task classes`: those of the test image's task.
        width: width of the figure in inches.
    """
    check_mask(runs, mask)
    models = by_model(runs, view)
    fig, (ax,) = panels(width, 0.2 * len(models) + 0.5)
    found = [score(members, selection, model, mask) for _, members, model in models]
    means = np.array([s.mean() for s in found])
    spread = np.array([s.std(ddof=1) if len(s) > 1 else 0 for s in found])
    places = np.arange(len(models))
    ax.barh(places, means, 0.7, color=COLORS[0], xerr=spread if spread.any() else None)
    for y, (m, s) in enumerate(zip(means, spread, strict=True)):
        ax.annotate(
            f"{m:.1f}", (m + s, y), (3, 0), textcoords="offset points", va="center", fontsize=SMALL
        )
    ax.set_xlim(0, min(112, 1.15 * float((means + spread).max())))
    ax.set_yticks(places, [label for label, _, _ in models], fontsize=SMALL)
    ax.invert_yaxis()
    ax.set_xlabel(f"test accuracy in %, {selection} round, {mask}", fontsize=TEXT)
    return fig


@listed
def sweep(
    runs: Sequence[ImageRun],
    *,
    setting: str,
    selection: str = "last",
    view: str = "",
    mask: str = "all classes",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test accuracy against one setting, a line for each method (PFPL, Figures 3, 4a and 4b).

    Args:
        runs: finished runs that differ in the setting; seeds are averaged.
        setting: name of a setting, such as alpha, lam or shots.
        selection: `last` round, `best` round or mean of the `last ten`.
        view: which of a method's models; by default its first.
        mask: `all classes`; `own classes`: those of the client's training images; of task streams,
            `task classes`: those of the test image's task.
        width: width of the figure in inches.
    """
    check_view(runs, view)
    check_mask(runs, mask)
    by_label(runs)
    lines: dict[str, dict[float, list[ImageRun]]] = {}
    for run in runs:
        value = run.about["settings"].get(setting)
        if isinstance(value, (int, float)):
            lines.setdefault(run.method, {}).setdefault(float(value), []).append(run)
    if not lines:
        raise InputError(f"none of these runs has a number as {setting}; name another setting")
    fig, (ax,) = panels(width, 0.7 * width)
    for place, (method, points) in enumerate(lines.items()):
        values = sorted(points)
        found = [score(points[v], selection, view, mask) for v in values]
        mean = np.array([s.mean() for s in found])
        spread = np.array([s.std(ddof=1) if len(s) > 1 else 0 for s in found])
        color, style = line_look(place)
        ax.plot(values, mean, style, marker="o", markersize=3, color=color, label=method)
        if spread.any():
            ax.fill_between(values, mean - spread, mean + spread, color=color, alpha=0.15)
    ax.set_xlabel(setting, fontsize=TEXT)
    ax.set_ylabel(f"test accuracy in %, {selection}", fontsize=TEXT)
    legend_below(fig)
    return fig
