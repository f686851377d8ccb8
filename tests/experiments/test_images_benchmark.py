from contextlib import nullcontext

import pytest

from experiments.benchmarks import frame, images
from experiments.benchmarks.images import (
    COLUMNS,
    PROBLEMS,
    ImageProblem,
    runner_of_images,
    time_in_turns,
)
from vision.backbones.vit import Geometry

SMALL = {
    "cnn": ImageProblem("small", "cnn", (1, 20, 20), 3, 2),
    "vit": ImageProblem("small", "vit", (3, 32, 32), 3, 2),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SMALL)
def test_the_loop_computes_what_the_cohorts_do(name, monkeypatch):
    monkeypatch.setattr(images, "VIT", Geometry(16, 32, 2, 2, 64, 7))
    ours, loop = (runner_of_images(SMALL[name], 3, loop, 1) for loop in (False, True))
    losses = [(ours().value, loop().value) for _ in range(3)]
    assert len({first for first, _ in losses}) == 3
    for first, second in losses:
        assert first == pytest.approx(second, rel=1e-4)


@pytest.mark.slow
def test_both_paths_are_measured_with_one_thread_and_with_several(monkeypatch):
    here = lambda make, *args: nullcontext(make(*args))  # noqa: E731
    monkeypatch.setattr(frame, "own_process", here)
    rows = time_in_turns(SMALL["cnn"], n_clients=2, threads=2, repetitions=2)
    assert [(r["path"], r["threads"]) for r in rows] == [
        ("loop over clients", 1), ("loop over clients", 2), ("ours", 1), ("ours", 2),
    ]  # fmt: skip
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert max(r["speedup"] for r in rows[:2]) == rows[0]["cpu_ratio"] == 1
    assert rows[0]["by_turn"] == "1 [1, 1]"


def test_a_federation_of_each_model_can_be_made():
    federation = images.federation_of_images(PROBLEMS["resnet18"], n_clients=1)
    assert federation.train.tensors["x"].shape == (1, 10, 3, 32, 32)


def test_the_models_are_those_of_the_page():
    assert {p.model for p in PROBLEMS.values()} == {"cnn", "resnet18", "vit"}
