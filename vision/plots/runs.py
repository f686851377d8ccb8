"""Curves of image runs, one per method and model, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from stforecast.bench.curves import Curve, as_curves, curves_of
from stforecast.bench.run_groups import RunGroup
from vision.evaluator import column
from vision.results import ImageRun

EVERY = "every"
"""Value of `view` for all models of each method."""


def image_curves(runs: Sequence[ImageRun]) -> list[Curve[ImageRun]]:
    """Return a curve for each group of runs.

    Raises:
        InputError: if the runs have different data or partitions.
    """
    if len({tuple(run.facts().values()) for run in runs}) > 1:
        raise InputError(
            "these runs are of different images or scenarios; draw those of one at a time"
        )
    return as_curves(runs)


def model_curves(
    runs: Sequence[ImageRun], view: str, mask: str
) -> list[tuple[Curve[ImageRun], str]]:
    """Return a curve for each group of runs and model, with the name of the model.

    Args:
        runs: finished runs.
        view: a model, or several with commas between, of which the first that a method has is
            drawn; empty for each method's first, `every` for all of them.
        mask: classes that predictions choose from.

    Raises:
        InputError: if some run has no such model or mask.
    """
    check_mask(runs, mask)
    chosen = [
        (curve, name)
        for curve in image_curves(runs)
        for name in (curve.runs[0].views if view == EVERY else (_first_of(view, curve.runs),))
    ]
    named = [RunGroup(c.base, (*c.tags, *c.runs[0].tags_of(name)), c.runs) for c, name in chosen]
    return list(zip(curves_of(named), (name for _, name in chosen), strict=True))


def _first_of(view: str, runs: Sequence[ImageRun]) -> str:
    """Return the first of the models in `view` that the runs have; their first if it is empty."""
    there = [name for name in view.split(", ") if name in runs[0].views]
    chosen = there[0] if there else view
    check_view(runs, chosen)
    return chosen or runs[0].views[0]


def accuracies(runs: Sequence[ImageRun], view: str, mask: str) -> pd.DataFrame:
    """Return the accuracy in % by round `(rounds × runs)`, for evaluated rounds only."""
    found = [run.rounds().set_index("round")[column(view, mask)] for run in runs]
    return 100 * pd.concat(found, axis=1).dropna(how="all")


def score(runs: Sequence[ImageRun], selection: str, view: str, mask: str) -> np.ndarray:
    """Return the accuracy in % of each run."""
    return np.array([100 * run.accuracy(selection, view or None, mask) for run in runs])


def check_view(runs: Sequence[ImageRun], view: str) -> None:
    """Refuse a model that a run does not have."""
    for run in runs:
        if view and view not in run.views:
            raise choose(f"model of {run.label}", view, run.views)


def check_mask(runs: Sequence[ImageRun], mask: str) -> None:
    """Refuse a mask that a run was not evaluated with."""
    for run in runs:
        if mask not in run.masks:
            raise choose(f"mask of {run.label}", mask, run.masks)
