"""Knowledge retention over time and among clients: FedTA's KR_t and KR_s.

Yang, Yu, Gao, Wang, Zhang, Li: Federated Continual Learning via Knowledge Fusion: A Survey, IEEE
TKDE 2024, arXiv 2312.16475; as Eq. 11 and 12 in FedTA (Yu et al., CVPR 2025). Both read the table
of stages (`stages.csv`, `vision.evaluator.STAGE_COLUMNS`) and are ratios of accuracies per client;
above 1, accuracy has increased. A client whose denominator is 0 had nothing to retain and does not
count.
"""

from __future__ import annotations

import pandas as pd

from vision.evaluation import MASKS


def temporal_retention(stages: pd.DataFrame, local: str, mask: str = MASKS[0]) -> pd.Series:
    """Return KR_t: a local model's accuracy on the first task, over that after the first task.

    Args:
        stages: table of stages.
        local: view of the local models: `personal`, or `trained` for methods without.
        mask: classes that a prediction chooses from.

    Returns:
        Mean over clients after each stage, indexed by `stage`; 1 after the first.
    """
    return _mean(temporal_by_client(stages, local, mask))


def temporal_by_client(stages: pd.DataFrame, local: str, mask: str = MASKS[0]) -> pd.Series:
    """Return the ratios of which KR_t is the mean, indexed by `stage` and `client`."""
    accuracy = _accuracy(stages, local, mask).xs(0, level="test_stage")
    first = accuracy.xs(0, level="stage")
    return _ratio(accuracy, first[first > 0])


def spatial_retention(
    stages: pd.DataFrame, shared: str, local: str, mask: str = MASKS[0]
) -> pd.Series:
    """Return KR_s: the global model's accuracy on a client's task, over that of its own model.

    Args:
        stages: table of stages.
        shared: view of the global model: `global`, FedTA's `fused`.
        local: view of the local models: `personal`, or `trained` for methods without.
        mask: classes that a prediction chooses from.

    Returns:
        Mean over clients after each stage, indexed by `stage`.
    """
    return _mean(spatial_by_client(stages, shared, local, mask))


def spatial_by_client(
    stages: pd.DataFrame, shared: str, local: str, mask: str = MASKS[0]
) -> pd.Series:
    """Return the ratios of which KR_s is the mean, indexed by `stage` and `client`."""
    present = stages[stages["stage"] == stages["test_stage"]]
    ours, own = (_accuracy(present, v, mask).droplevel("test_stage") for v in (shared, local))
    return _ratio(ours, own[own > 0])


def _accuracy(stages: pd.DataFrame, view: str, mask: str) -> pd.Series:
    """Return the accuracy by `stage, client, test_stage` in each stage's last evaluated round."""
    rows = stages[(stages["view"] == view) & (stages["mask"] == mask)]
    rows = rows[rows["round"] == rows.groupby("stage")["round"].transform("max")]
    counts = rows.set_index(["stage", "client", "test_stage"])
    return counts["right"] / counts["samples"]


def _ratio(accuracy: pd.Series, reference: pd.Series) -> pd.Series:
    """Return `accuracy / reference` of the clients with a reference, by stage and client."""
    joined = accuracy.rename("a").to_frame().join(reference.rename("b"), how="inner")
    return joined["a"] / joined["b"]


def _mean(ratios: pd.Series) -> pd.Series:
    """Return the mean over clients by stage."""
    return ratios.groupby("stage").mean().rename("retention")
