import torch

from experiments.benchmarks.frozen import compare, costs
from vision.backbones import TINY, load_backbone
from vision.models.vit import ViTOptions


def test_features_computed_once_give_the_same_round():
    torch.manual_seed(0)
    model = ViTOptions(backbone=TINY, input_size=8)
    seconds, difference = compare(model, samples=20, epochs=2)
    assert difference < 1e-4
    assert seconds["once"] < seconds["in every step"]


def test_every_way_has_a_cost():
    backbone = load_backbone(TINY, input_size=8)
    found = costs(backbone, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert len(found) == 4
    assert all(s > 0 for s in found.values())
