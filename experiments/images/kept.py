"""Table of forgetting and knowledge retention, for streams with successive stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.images.comparison_table import compared_masks
from stforecast.bench.tables import spread
from vision.comparison import Row
from vision.evaluation import TRAINED
from vision.results import ImageRun
from vision.streams.measures import forgetting, known, spatial_retention, temporal_retention

NOTE = (
    "task classes: a prediction chooses from the classes of the test image's task; forgetting: "
    "drop from the best accuracy on a former stage to the accuracy on it after the last stage; "
    "KR_t: share of the accuracy on the first stage that clients' own models retain; KR_s: "
    "accuracy of the shared model on the present stage, relative to that of clients' own models; "
    "all in %"
)


def stages_in_turn(run: ImageRun) -> bool:
    """Return whether the run had successive stages, whose knowledge may be forgotten."""
    return run.about.get("stages", 1) > 1 and run.settings["stage_order"] == "sequential"


def kept_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the rows of the table of accuracy after each stage, forgetting and retention."""
    return [
        {"method": row.name, "choosing from": mask, **_row(row.group.runs, row.view, mask)}
        for row in rows
        for mask in compared_masks(rows)
    ]


def _row(runs: Sequence[ImageRun], view: str, mask: str) -> dict[str, str]:
    stages = [run.stages() for run in runs]
    local = "personal" if "personal" in runs[0].views else TRAINED
    after = np.mean([known(s, view, mask) for s in stages], axis=0)
    lost = [100 * float(forgetting(s, view, mask).mean()) for s in stages]
    if view == local or runs[0].judged(view) == "own":
        name, ratios = "KR_t", [temporal_retention(s, view, mask) for s in stages]
    else:
        name, ratios = "KR_s", [spatial_retention(s, view, local, mask) for s in stages]
    last = [100 * r.iloc[-1] for r in ratios if len(r)]
    found = {name: spread(last, 2)} if last else {}
    return {
        "after each stage": " / ".join(f"{100 * a:.1f}" for a in after),
        "forgetting": spread(lost, 2),
        **{n: found.get(n, "-") for n in ("KR_t", "KR_s")},
    }
