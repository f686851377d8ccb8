import torch

from experiments.benchmarks import images
from experiments.benchmarks.frame import timed
from experiments.benchmarks.images import compare_caching, costs
from vision.backbones.backbone import Backbone
from vision.backbones.load import TINY, load_backbone
from vision.models.vit import ViTOptions


def test_features_computed_once_give_the_same_round(monkeypatch):
    runs = []
    run = Backbone._run
    monkeypatch.setattr(
        Backbone, "_run", lambda self, images, *rest: runs.append(1) or run(self, images, *rest)
    )
    seconds, difference = compare_caching(
        ViTOptions(backbone=TINY, input_size=8), samples=16, epochs=2
    )
    assert difference < 1e-4
    assert all(s > 0 for s in seconds.values())
    # Queries, two steps and F_out; then a query in each step, and both in the second stage's. Each
    # side runs once before it is timed, as what runs first pays for all that torch prepares.
    assert len(runs) == 2 * ((1 + 2 + 1) + (1 + 2 * 2 + 1 + 2 * 2))


def test_every_way_has_a_cost_without_that_of_a_first_run(monkeypatch):
    backbone = load_backbone(TINY, input_size=8)
    run, runs, timed_runs = Backbone._run, [], []
    monkeypatch.setattr(
        Backbone, "_run", lambda self, images, *rest: runs.append(1) or run(self, images, *rest)
    )
    monkeypatch.setattr(
        images.frame, "timed", lambda work: timed_runs.append(len(runs)) or timed(work)
    )
    found = costs(backbone, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert len(found) == 4
    assert timed_runs == [1, 2, 2, 3]
    assert all(s > 0 for s in found.values())
