"""Measures over stages, by hand."""

import pandas as pd
import pytest

from vision.evaluation import STAGE_COLUMNS
from vision.streams.measures import forgetting, known

# Two stages inside each of two rounds, two clients; client 1 took part in stage 0 of the last pass
# only, and has no stage 1. (round, stage, test stage, client, participant, right, samples)
ROWS = [
    (1, 0, 0, 0, True, 1, 10), (1, 0, 0, 1, True, 2, 4),
    (2, 1, 0, 0, True, 3, 10), (2, 1, 1, 0, True, 5, 5), (2, 1, 0, 1, False, 0, 4),
    (3, 0, 0, 0, False, 8, 10), (3, 0, 0, 1, True, 1, 4),
    (4, 1, 0, 0, True, 6, 10), (4, 1, 1, 0, True, 3, 5), (4, 1, 0, 1, False, 3, 4),
]  # fmt: skip


@pytest.fixture
def stages():
    rows = [
        (round, stage, test_stage, view, "all classes", client, part, right * factor, samples)
        for view, factor in (("global", 1), ("other", 0))
        for round, stage, test_stage, client, part, right, samples in ROWS
    ]
    return pd.DataFrame(rows, columns=STAGE_COLUMNS)


def test_what_is_known_so_far(stages):
    assert known(stages, "global").tolist() == pytest.approx(
        [(0.8 + 0.25) / 2, (9 / 15 + 0.75) / 2]
    )
    assert known(stages, "other").tolist() == [0, 0]


def test_of_participants(stages):
    assert known(stages, "global", participants=True).tolist() == pytest.approx([0.25, 0.6])


def test_mean_over_passes(stages):
    both = known(stages, "global", participants=True, passes=2)
    assert both.tolist() == pytest.approx([((0.1 + 0.5) / 2 + 0.25) / 2, (8 / 15 + 9 / 15) / 2])


def test_forgetting_is_the_drop_from_the_best(stages):
    # Client 0: 0.8 to 0.6; client 1: 0.25 to 0.75.
    found = forgetting(stages, "global")
    assert found.index.tolist() == [0]
    assert found[0] == pytest.approx((0.2 - 0.5) / 2)


def test_forgetting_takes_the_best_of_several_stages():
    rows = [
        (stage + 1, stage, 0, "global", "all classes", 0, True, right, 10)
        for stage, right in enumerate([5, 9, 4])
    ]
    found = forgetting(pd.DataFrame(rows, columns=STAGE_COLUMNS), "global")
    assert found[0] == pytest.approx(0.5)
