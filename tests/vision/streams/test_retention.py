import numpy as np
import pandas as pd
import pytest

from vision.streams.measures import spatial_retention, temporal_retention


def rows(view, right, round=None):
    """Right predictions of 10 by (stage, client, test stage)."""
    return [
        {
            "round": round or 2 * (stage + 1),
            "stage": stage,
            "test_stage": on,
            "view": view,
            "mask": "all classes",
            "client": client,
            "participant": True,
            "right": n,
            "samples": 10,
        }
        for (stage, client, on), n in right.items()
    ]


LOCAL = {
    (0, 0, 0): 8, (0, 1, 0): 5, (0, 2, 0): 0,
    (1, 0, 0): 4, (1, 1, 0): 5, (1, 2, 0): 3,
    (1, 0, 1): 9, (1, 1, 1): 10, (1, 2, 1): 5,
}  # fmt: skip
GLOBAL = {
    (0, 0, 0): 4, (0, 1, 0): 5, (0, 2, 0): 1,
    (1, 0, 0): 9, (1, 1, 0): 9, (1, 2, 0): 9,
    (1, 0, 1): 3, (1, 1, 1): 5, (1, 2, 1): 5,
}  # fmt: skip


@pytest.fixture
def stages():
    earlier = rows("personal", dict.fromkeys(LOCAL, 10), round=1)
    masked = [{**r, "mask": "own classes"} for r in rows("personal", dict.fromkeys(LOCAL, 10))]
    return pd.DataFrame(earlier + masked + rows("personal", LOCAL) + rows("global", GLOBAL))


def test_over_time_clients_that_knew_nothing_do_not_count(stages):
    retention = temporal_retention(stages, "personal")
    assert retention.to_dict() == {0: 1.0, 1: pytest.approx((4 / 8 + 5 / 5) / 2)}


def test_among_clients_the_present_task_counts(stages):
    retention = spatial_retention(stages, "global", "personal")
    assert retention.to_dict() == {
        0: pytest.approx((4 / 8 + 5 / 5) / 2),
        1: pytest.approx((3 / 9 + 5 / 10 + 5 / 5) / 3),
    }


def test_it_is_nan_free_or_absent_where_nobody_knew_anything(stages):
    nothing = stages.assign(right=0)
    assert temporal_retention(nothing, "personal").empty
    assert not np.isfinite(spatial_retention(nothing, "global", "personal")).any()
