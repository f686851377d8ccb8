"""Accuracy and forgetting after each stage of a stream.

All functions read the table of stages (`stages.csv`, `vision.evaluator.STAGE_COLUMNS`). With the
order `inside`, stages repeat; then the last pass counts, or the mean of the last few.

A^glo and A^loc of GLDP (section 5.1) are `known` after the last stage. A^glo judges averaged
models: `global`, GLDP's `global averaged`, or FedRep's `personal`, which has the averaged body.
A^loc judges clients' own models: `trained`, GLDP's `global` and `local`, or `personal` if the
server averages no part of it. A^sel is `known` with `participants`, after each stage. In all of
them, a client's accuracy is over the test images of all stages so far, and clients count equally.
"""

from __future__ import annotations

import pandas as pd

from vision.evaluation import MASKS


def known(
    stages: pd.DataFrame,
    view: str,
    mask: str = MASKS[0],
    *,
    participants: bool = False,
    passes: int = 1,
) -> pd.Series:
    """Return the accuracy after each stage on all stages so far, mean over clients.

    Args:
        stages: table of stages.
        view: a model.
        mask: classes that a prediction chooses from.
        participants: whether to count the stage's participants only (A^sel).
        passes: number of the last evaluated rounds of each stage to average.

    Returns:
        Indexed by `stage`.
    """
    rows = _of(stages, view, mask, passes)
    if participants:
        rows = rows[rows["participant"]]
    clients = rows.groupby(["stage", "round", "client"])[["right", "samples"]].sum()
    accuracy = clients["right"] / clients["samples"]
    return accuracy.groupby(["stage", "round"]).mean().groupby("stage").mean()


def matrix(
    stages: pd.DataFrame, view: str, mask: str = MASKS[0], *, passes: int = 1
) -> pd.DataFrame:
    """Return the accuracy after a stage (rows) on one stage (columns), mean over clients.

    Args:
        stages: table of stages.
        view: a model.
        mask: classes that a prediction chooses from.
        passes: number of the last evaluated rounds of each stage to average.

    Returns:
        NaN for stages that had not begun.
    """
    return _by_client(stages, view, mask, passes).groupby("stage").mean()


def forgetting(
    stages: pd.DataFrame, view: str, mask: str = MASKS[0], *, passes: int = 1
) -> pd.Series:
    """Return the drop of accuracy on former stages from its best to that after the last stage.

    Chaudhry et al., "Riemannian Walk for Incremental Learning", ECCV 2018, arXiv 1801.10112: the
    best is over all stages before the last, so an improvement in the last stage is negative.

    Args:
        stages: table of stages.
        view: a model.
        mask: classes that a prediction chooses from.
        passes: number of the last evaluated rounds of each stage to average.

    Returns:
        Mean over clients, indexed by `test_stage`, without the last; empty with one stage.
    """
    accuracy = _by_client(stages, view, mask, passes)
    last = accuracy.index.get_level_values("stage").max()
    after = accuracy.xs(last, level="stage").drop(columns=last, errors="ignore")
    before = accuracy.drop(index=last, level="stage")
    best = before.groupby("client").max().reindex(columns=after.columns)
    return (best - after).mean()


def _of(stages: pd.DataFrame, view: str, mask: str, passes: int) -> pd.DataFrame:
    """Select the rows of one model and mask in the last passes of each stage."""
    rows = stages[(stages["view"] == view) & (stages["mask"] == mask)]
    rank = rows.groupby("stage")["round"].rank(method="dense", ascending=False)
    return rows[rank <= passes]


def _by_client(stages: pd.DataFrame, view: str, mask: str, passes: int) -> pd.DataFrame:
    """Return the accuracy by stage and client (rows) and test stage (columns)."""
    rows = _of(stages, view, mask, passes)
    accuracy = (rows["right"] / rows["samples"]).rename("accuracy")
    table = pd.concat([rows[["stage", "client", "test_stage"]], accuracy], axis=1)
    return table.pivot_table("accuracy", ["stage", "client"], "test_stage", aggfunc="mean")
