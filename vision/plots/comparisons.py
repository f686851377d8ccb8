"""Test accuracy by method, and against a setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from data_prep.registry import listed
from stforecast.bench.bars import score_bars
from stforecast.bench.drawing import ONE_COLUMN
from stforecast.bench.sweep import draw_sweep
from vision.config import RunOptions, resolve
from vision.plots.runs import check_mask, check_view, image_curves, model_curves, score
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
        runs: finished runs; whiskers are one standard deviation over seeds.
        selection: round that counts: `last`, `best`, or the mean of the `last ten`.
        view: model of each method to draw; of several, separated by commas, the first that the
            method has; or `every` for all its models. By default its first.
        mask: classes to choose from: `all classes`; `own classes`, those of the client's training
            images; or, for task streams, `task classes`, those of the test image's task.
        width: width of the figure in inches.
    """
    models = model_curves(runs, view, mask)
    curves = [curve for curve, _ in models]
    scores = [score(curve.runs, selection, name, mask) for curve, name in models]
    fig, ax = score_bars(curves, scores, width)
    several = any(len(some) > 1 for some in scores)
    ax.set_xlabel(_axis_name(selection, mask, seeds=several))
    return fig


@listed
def sweep(
    runs: Sequence[ImageRun],
    *,
    setting: str | None = None,
    selection: str = "last",
    view: str = "",
    mask: str = "all classes",
    width: float = ONE_COLUMN,
) -> Figure:
    """Test accuracy against one setting, a line for each method (PFPL, Figures 3, 4a and 4b).

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation. Runs are grouped into lines by method and other settings, not by label. A method
    without the setting is a horizontal line.

    Args:
        runs: finished runs that differ in the setting.
        setting: numeric setting on the x axis, such as alpha, lam or shots; optional if the runs
            differ in only one number.
        selection: round that counts: `last`, `best`, or the mean of the `last ten`.
        view: model of each method to draw; by default its first.
        mask: classes to choose from: `all classes`; `own classes`, those of the client's training
            images; or, for task streams, `task classes`, those of the test image's task.
        width: width of the figure in inches.
    """
    check_view(runs, view)
    check_mask(runs, mask)
    image_curves(runs)
    return draw_sweep(
        runs,
        setting,
        lambda some: score(some, selection, view, mask),
        _default,
        lambda several: _axis_name(selection, mask, seeds=several),
        width,
    )


def _axis_name(selection: str, mask: str, *, seeds: bool) -> str:
    spread = "\n(mean ± std over seeds)" if seeds else ""
    rounds = "rounds" if selection == "last ten" else "round"
    return f"test accuracy in %, {selection} {rounds}, {mask}{spread}"


def _default(run: ImageRun, setting: str) -> object:
    """Return the default of the setting."""
    model = run.settings.get("model", RunOptions.model)
    partition = run.settings.get("partition", RunOptions.partition)
    return resolve(run.method, model=model, partition=partition).flat().get(setting)
