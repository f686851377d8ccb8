"""Accuracy, forgetting and retained knowledge after each stage of a stream.

All functions read the table of stages (`stages.csv`, `vision.evaluation.STAGE_COLUMNS`), for a
model, `view`, and the classes that predictions choose from, `mask`. With the order `inside`, stages
repeat; then the last pass counts, or the mean of the last few.

A^glo and A^loc of GLDP (section 5.1) are `known` after the last stage. A^glo judges averaged
models: `global`, GLDP's `global averaged`, or FedRep's `personal`, which has the averaged body.
A^loc judges clients' own models: `trained`, GLDP's `global` and `local`, or `personal` if the
server averages no part of it. A^sel is `known` with `participants`, after each stage. In all of
them, a client's accuracy is over the test images of all stages so far, and clients count equally.

KR_t and KR_s, the knowledge that is retained over time and among clients, are Eq. 11 and 12 of
FedTA (Yu et al., CVPR 2025), after Yang, Yu, Gao, Wang, Zhang, Li: Federated Continual Learning via
Knowledge Fusion: A Survey, IEEE TKDE 2024, arXiv 2312.16475. Both are ratios of accuracies per
client; above 1, accuracy has increased. A client whose denominator is 0 had nothing to retain and
does not count. The view of the `local` models is `personal`, or `trained` for methods without, that
of the `shared` one `global`, or FedTA's `fused`.
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
    """Return the accuracy after each stage on all stages so far, mean over clients, by `stage`.

    With `participants`, only those of the stage count (A^sel); the last evaluated `passes` of each
    stage are averaged.
    """
    rows = _of(stages, view, mask, passes)
    if participants:
        rows = rows[rows["participant"]]
    clients = rows.groupby(["stage", "round", "client"])[["right", "samples"]].sum()
    accuracy = clients["right"] / clients["samples"]
    return accuracy.groupby(["stage", "round"]).mean().groupby("stage").mean()


def forgetting(stages: pd.DataFrame, view: str, mask: str = MASKS[0]) -> pd.Series:
    """Return the drop of accuracy on former stages from its best to that after the last stage.

    Chaudhry et al., "Riemannian Walk for Incremental Learning", ECCV 2018, arXiv 1801.10112: the
    best is over all stages before the last, so an improvement in the last stage is negative. The
    mean over clients is indexed by `test_stage`, without the last; empty with one stage.
    """
    accuracy = _accuracy(stages, view, mask).unstack("test_stage")
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


def temporal_retention(stages: pd.DataFrame, local: str, mask: str = MASKS[0]) -> pd.Series:
    """Return KR_t: a local model's accuracy on the first task, over that after the first task.

    The mean over clients is indexed by `stage`; it is 1 after the first.
    """
    return temporal_by_client(stages, local, mask).groupby("stage").mean()


def temporal_by_client(stages: pd.DataFrame, local: str, mask: str = MASKS[0]) -> pd.Series:
    """Return the ratios of which KR_t is the mean, indexed by `stage` and `client`."""
    accuracy = _accuracy(stages, local, mask).xs(0, level="test_stage")
    first = accuracy.xs(0, level="stage")
    return _ratio(accuracy, first[first > 0])


def spatial_retention(
    stages: pd.DataFrame, shared: str, local: str, mask: str = MASKS[0]
) -> pd.Series:
    """Return KR_s: the global model's accuracy on a client's task, over that of its own model.

    The mean over clients is indexed by `stage`.
    """
    return spatial_by_client(stages, shared, local, mask).groupby("stage").mean()


def spatial_by_client(
    stages: pd.DataFrame, shared: str, local: str, mask: str = MASKS[0]
) -> pd.Series:
    """Return the ratios of which KR_s is the mean, indexed by `stage` and `client`."""
    present = stages[stages["stage"] == stages["test_stage"]]
    ours, own = (_accuracy(present, v, mask).droplevel("test_stage") for v in (shared, local))
    return _ratio(ours, own[own > 0])


def _accuracy(stages: pd.DataFrame, view: str, mask: str) -> pd.Series:
    """Return the accuracy by `stage, client, test_stage` in each stage's last evaluated round."""
    counts = _of(stages, view, mask, 1).set_index(["stage", "client", "test_stage"])
    return counts["right"] / counts["samples"]


def _ratio(accuracy: pd.Series, reference: pd.Series) -> pd.Series:
    """Return `accuracy / reference` of the clients with a reference, by stage and client."""
    joined = accuracy.rename("a").to_frame().join(reference.rename("b"), how="inner")
    return joined["a"] / joined["b"]
