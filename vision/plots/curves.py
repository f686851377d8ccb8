"""Curves and bars of image runs, one per method and model, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from data_prep.base.errors import InputError, choose
from data_prep.base.registry import listed, listed_as
from stforecast.bench import drawing
from stforecast.bench.charts import draw_sweep, score_bars
from stforecast.bench.curves import COLORS, Curve, as_curves, curves_of
from stforecast.bench.run_groups import RunGroup
from stforecast.bench.tables import floats
from vision.evaluation import column
from vision.results import ImageRun
from vision.streams.measures import known, spatial_retention, temporal_retention


def image_curves(runs: Sequence[ImageRun]) -> list[Curve[ImageRun]]:
    """Return a curve for each group of runs of the same images, scenario and kind of partition."""
    for name in ("data", "scenario", "partition"):
        found = {(run.settings | run.facts()).get(name): run.folder for run in runs}
        if len(found) > 1:
            each = ", ".join(f"{value or 'none'} ({folder})" for value, folder in found.items())
            raise InputError(f"these runs differ in {name}: {each}; draw those of one at a time")
    return as_curves(runs)


def model_curves(
    runs: Sequence[ImageRun], view: str, mask: str
) -> list[tuple[Curve[ImageRun], str]]:
    """Return a curve for each group of runs and model, with the name of the model.

    `view` names a model, or several with commas between; the first that a method has is
    drawn; empty for each method's first, `every` for all of them.
    """
    check_view(runs, mask=mask)
    chosen = [
        (group, name)
        for group in (curve.group for curve in image_curves(runs))
        for name in _views(view, group.runs)
    ]
    named = [RunGroup(g.base, (*g.tags, *g.runs[0].tags_of(name)), g.runs) for g, name in chosen]
    return list(zip(curves_of(named), (name for _, name in chosen), strict=True))


def _views(view: str, runs: Sequence[ImageRun]) -> Sequence[str]:
    """Return the models to draw of runs that differ only in the seed; see `model_curves`."""
    models = runs[0].views
    if view == "every":
        return models
    chosen = next((name for name in view.split(", ") if name in models), view)
    check_view(runs, view=chosen)
    return (chosen or models[0],)


def accuracies(runs: Sequence[ImageRun], view: str, mask: str) -> pd.DataFrame:
    """Return the accuracy in % by evaluated round `(rounds × runs)`."""
    found = [run.rounds().set_index("round")[column(view, mask)] for run in runs]
    return 100 * pd.concat(found, axis=1).dropna(how="all")


def last_accuracies(runs: Sequence[ImageRun], view: str, mask: str) -> np.ndarray:
    """Return the accuracy in % of each run."""
    return np.array([100 * run.accuracy("last", view or None, mask) for run in runs])


def check_view(runs: Sequence[ImageRun], *, view: str = "", mask: str = "") -> None:
    """Refuse a model that a run does not have, and a mask that it was not evaluated with."""
    for run in runs:
        if view and view not in run.views:
            raise choose(f"model of {run.label}", view, run.views)
        if mask and mask not in run.masks:
            raise choose(f"mask of {run.label}", mask, run.masks)


@listed_as("rounds")
def accuracy_by_round(
    runs: Sequence[ImageRun],
    *,
    view: str = "",
    mask: str = "all classes",
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Test accuracy after each round, mean over clients; a band is ± one standard deviation.

    Args:
        runs: finished runs; those that differ only in the seed are averaged.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, of the client's training
            images; or, for task streams, `task classes`, of the test image's task.
        width: width of the figure in inches.
    """
    fig, (ax,) = drawing.panels(width, 0.75 * width)
    for curve, name in model_curves(runs, view, mask):
        curve.draw_mean(ax, accuracies(curve.group.runs, name, mask))
    drawing.count_axis(ax, "round")
    ax.set_ylabel(f"test accuracy in %, {mask}")
    drawing.add_legend(fig)
    return fig


@listed_as("communication")
def floats_by_method(runs: Sequence[ImageRun], *, width: float = drawing.ONE_COLUMN) -> Figure:
    """Number of floats that one client sends and receives in a round (PFPL, Figure 4c).

    Args:
        runs: finished runs; of those that differ only in the seed, the first is drawn.
        width: width of the figure in inches.
    """
    sent = {
        curve.group.name: [floats(curve.group.runs[0].rounds(), way) for way in ("up", "down")]
        for curve in image_curves(runs)
    }
    fig, (ax,) = drawing.panels(width, 0.25 * len(sent) + 0.6)
    places = np.arange(len(sent))
    for shift, (name, color) in enumerate((("sends", COLORS[0]), ("receives", COLORS[3]))):
        values = np.array([v[shift] for v in sent.values()])
        bars = ax.barh(places + 0.38 * (shift - 0.5), values, 0.36, color=color, label=name)
        labels = [f"{v:,.0f}" for v in values]
        ax.bar_label(bars, labels, padding=2, fontsize=drawing.SMALL - 1)
    largest = max(max(v) for v in sent.values())
    if largest:
        ax.set_xscale("symlog", linthresh=1000, linscale=0.5)
        ax.set_xticks([0, *(10.0**k for k in range(3, 2 + len(f"{largest:.0f}")))])
        ax.set_xlim(0, 30 * largest)
    ax.set_yticks(places, list(sent))
    ax.invert_yaxis()
    ax.minorticks_off()
    ax.set_xlabel("floats per client and round (log scale)")
    drawing.add_legend(fig)
    return fig


@listed_as("bars")
def accuracy_bars(
    runs: Sequence[ImageRun],
    *,
    view: str = "",
    mask: str = "all classes",
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Test accuracy of each method, mean over clients and seeds (PFPL, Figure 5).

    Args:
        runs: finished runs; whiskers are one standard deviation over seeds.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, of the client's training
            images; or, for task streams, `task classes`, of the test image's task.
        width: width of the figure in inches.
    """
    models = model_curves(runs, view, mask)
    curves = [curve for curve, _ in models]
    scores = [last_accuracies(curve.group.runs, name, mask) for curve, name in models]
    fig, ax = score_bars(curves, scores, width)
    ax.set_xlabel(_axis_name(mask, seeds=any(len(some) > 1 for some in scores)))
    return fig


@listed_as("sweep")
def accuracy_sweep(
    runs: Sequence[ImageRun],
    *,
    setting: str | None = None,
    view: str = "",
    mask: str = "all classes",
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Test accuracy against one setting, a line for each method (PFPL, Figures 3, 4a and 4b).

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation. Runs are grouped into lines by method and other settings, not by label. A method
    without the setting is a horizontal line.

    Args:
        runs: finished runs that differ in the setting.
        setting: numeric setting on the x axis, such as alpha, lam or shots; optional if the runs
            differ in only one number.
        view: model of each method to draw; by default its first.
        mask: classes to choose from: `all classes`; `own classes`, of the client's training
            images; or, for task streams, `task classes`, of the test image's task.
        width: width of the figure in inches.
    """
    check_view(runs, view=view, mask=mask)
    image_curves(runs)
    return draw_sweep(
        runs,
        setting,
        lambda some: last_accuracies(some, view, mask),
        lambda several: _axis_name(mask, seeds=several),
        width,
    )


def _axis_name(mask: str, *, seeds: bool) -> str:
    spread = "\n(mean ± std over seeds)" if seeds else ""
    return f"test accuracy in %, last round, {mask}{spread}"


@listed
def retention(
    runs: Sequence[ImageRun], *, mask: str = "all classes", width: float = drawing.TWO_COLUMNS
) -> Figure:
    """Knowledge retention after each stage (FedTA, Figure 4; Eq. 11 and 12), mean over seeds.

    Left: the share of the first stage's accuracy that clients' own models retain. Right: the
    accuracy of the shared model on the present stage, relative to clients' own models; not for
    methods without a shared model.

    Args:
        runs: finished runs with task streams of successive stages.
        mask: classes to choose from: `all classes`; `own classes`, those that a client has had so
            far; or `task classes`, of the test image's task.
        width: width of the figure in inches.
    """
    check_view(runs, mask=mask)
    fig, axes = drawing.panels(width, 0.38 * width, 2, n_columns=2, sharey=True)
    for curve in image_curves(runs):
        tables = [run.stages() for run in curve.group.runs]
        shared, local = curve.group.runs[0].views[0], curve.group.runs[0].local_view
        found = [[temporal_retention(table, local, mask) for table in tables]]
        if shared != local:
            found.append([spatial_retention(table, shared, local, mask) for table in tables])
        for ax, ratios in zip(axes, found, strict=False):
            mean = 100 * pd.concat(ratios, axis=1).mean(axis=1)
            ax.plot(mean.index, mean, label=curve.group.label, marker=".", **curve.line)
    for ax, title in zip(axes, ("over time, KR_t", "among clients, KR_s"), strict=True):
        ax.set_title(title, fontsize=drawing.TEXT)
        drawing.count_axis(ax, "stage")
        ax.axhline(100, color="0.6", linewidth=0.8, zorder=1)
    axes[0].set_ylabel(f"retained in %, {mask}")
    drawing.add_legend(fig)
    return fig


@listed
def stages(
    runs: Sequence[ImageRun],
    *,
    view: str = "",
    mask: str = "all classes",
    width: float = drawing.ONE_COLUMN,
) -> Figure:
    """Accuracy after each stage on the test images of all stages so far (GLDP, Figure 4).

    It is the mean over the clients that took part in the stage (A^sel), and over the last ten
    evaluated rounds of each stage.

    Args:
        runs: finished runs with task streams; those that differ only in the seed are averaged, in a
            band of ± one standard deviation.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, those that a client has had so
            far; or `task classes`, of the test image's task.
        width: width of the figure in inches.
    """
    fig, (ax,) = drawing.panels(width, 0.75 * width)
    for curve, name in model_curves(runs, view, mask):
        after = [
            known(run.stages(), name, mask, participants=True, passes=10)
            for run in curve.group.runs
        ]
        curve.draw_mean(ax, 100 * pd.concat(after, axis=1), marker=".")
    drawing.count_axis(ax, "stage")
    ax.set_ylabel(f"accuracy in %, {mask}")
    drawing.add_legend(fig)
    return fig
