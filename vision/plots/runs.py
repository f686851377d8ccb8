"""Runs that belong together: one entry of a legend each, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from vision.evaluator import column
from vision.results import ImageRun

EVERY = "every"
"""In place of a model's name: all models of each method."""

Group = dict[str, list[ImageRun]]
"""Label to the runs that have it."""


def by_label(runs: Sequence[ImageRun]) -> Group:
    """Runs by label, in order of appearance; those of one label differ in their seeds.

    Raises:
        InputError: if runs of different data or divisions would be drawn together.
    """
    groups: Group = {}
    divided = {(run.about["data"], run.about.get("scenario", "")) for run in runs}
    if len(divided) > 1:
        raise InputError(
            "these runs are of different images or scenarios; draw those of one at a time"
        )
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def curve(runs: Sequence[ImageRun], view: str, mask: str) -> pd.DataFrame:
    """Accuracy in % by round `(rounds × runs)`, rounds that were judged only."""
    return 100 * pd.concat(
        [run.rounds().set_index("round")[column(view, mask)] for run in runs],
        axis=1,
    ).dropna(how="all")


def score(runs: Sequence[ImageRun], selection: str, view: str, mask: str) -> np.ndarray:
    """Accuracy in % of each run."""
    return np.array([100 * run.accuracy(selection, view or None, mask) for run in runs])


def by_model(runs: Sequence[ImageRun], view: str) -> list[tuple[str, list[ImageRun], str]]:
    """Runs by label and model: what a legend calls it, the runs, and the name of the model.

    Args:
        runs: finished runs.
        view: a model; nothing for each method's first, `every` for all of them.

    Raises:
        InputError: if some run has no such model.
    """
    if view != EVERY:
        check_view(runs, view)
    return [
        (members[0].name_of(chosen), members, chosen)
        for members in by_label(runs).values()
        for chosen in (members[0].views if view == EVERY else (view or members[0].views[0],))
    ]


def check_view(runs: Sequence[ImageRun], view: str) -> None:
    """Refuse a model that some run does not have."""
    for run in runs:
        if view and view not in run.views:
            raise choose(f"model of {run.label}", view, run.views)


def check_mask(runs: Sequence[ImageRun], mask: str) -> None:
    """Refuse a mask that some run was not judged with."""
    for run in runs:
        if mask not in run.masks:
            raise choose(f"mask of {run.label}", mask, run.masks)
