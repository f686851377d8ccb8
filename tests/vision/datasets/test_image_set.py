"""Sets, their checks and unions, against hand-made numbers and Pillow."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from data_prep.base.errors import InputError
from vision.datasets.image_set import ImageSet, chosen_share, hold_out, join


def test_take_keeps_what_belongs_together(grid):
    some = grid().take(torch.tensor([83, 0]))
    assert some.images[:, 0, 0, 0].tolist() == [83, 0]
    assert some.labels.tolist() == [2, 0]
    assert some.domains.tolist() == [1, 0]
    assert some.is_test.tolist() == [True, False]
    assert len(some) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(84, 1, 2, 2)}, r"images are torch.float32 \(84, 1, 2, 2\)"),
        ({"images": torch.zeros(84, 2, 2, 1, dtype=torch.uint8)}, "1 or 3 channels"),
        ({"labels": torch.zeros(83, dtype=torch.int64)}, r"labels are torch.int64 \(83,\)"),
        ({"is_test": torch.zeros(84)}, "is_test are torch.float32"),
        ({"labels": torch.full((84,), 3)}, "labels .*3 to 3; .*0 to 2"),
        ({"domains": torch.full((84,), -1)}, "domains .* -1"),
        ({"class_names": ("a", "a", "b")}, "different"),
    ],
)
def test_a_set_that_does_not_fit_together_is_refused(grid, change, message):
    with pytest.raises(InputError, match=message):
        replace(grid(), **change)


@pytest.mark.parametrize(("channels", "old", "new"), [(1, 9, 4), (3, 16, 5), (3, 7, 12)])
def test_resizing_is_pillows(grid, channels, old, new):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, channels, old, old), dtype=np.uint8)
    one = torch.zeros(5, dtype=torch.int64)
    images = ImageSet("x", torch.from_numpy(pixels), one, one, one > 0, ("a",), ("b",), "")
    resized = images.resized(new)
    assert resized.images.dtype == torch.uint8
    for ours, theirs in zip(resized.images, pixels, strict=True):
        for plane, expected in zip(ours, theirs, strict=True):
            pillows = Image.fromarray(expected).resize((new, new), Image.Resampling.BILINEAR)
            assert abs(plane.numpy().astype(int) - np.asarray(pillows)).max() <= 1


def test_resizing_more_than_one_batch_keeps_the_order(grid, monkeypatch):
    monkeypatch.setattr("vision.datasets.image_set.ROWS", 10)
    resized = grid().resized(5)
    assert resized.images[:, 0, 4, 4].tolist() == list(range(84))


def test_size_must_be_positive(grid):
    with pytest.raises(InputError, match="size is 0"):
        grid().resized(0)


def test_join_keeps_domains_and_makes_all_rgb(grid):
    grey, color = grid(domains=("ink",)), grid(domains=("oil", "chalk")).as_rgb()
    both = join([grey, color], size=4)
    assert both.images.shape == (42 + 84, 3, 4, 4)
    assert both.domain_names == ("ink", "oil", "chalk")
    assert both.domains.bincount().tolist() == [42, 42, 42]
    assert both.images[42 + 83].unique().tolist() == [83]
    assert both.name == "grid+grid"


def test_join_of_two_grey_sets_stays_grey(grid):
    assert join([grid(domains=("ink",)), grid(domains=("oil",))]).channels == 1


def test_join_refuses_what_does_not_fit(grid):
    ink, oil = grid(domains=("ink",)), grid(domains=("oil",))
    with pytest.raises(InputError, match="same name"):
        join([ink, ink])
    with pytest.raises(InputError, match=r"2 × 2 .*3 × 3; .*size"):
        join([ink, oil.resized(3)])
    with pytest.raises(InputError, match=r"3 classes .*grid 4"):
        join([ink, grid(classes=4, domains=("oil",))])


def test_a_share_of_each_stratum_is_chosen():
    strata = torch.tensor([0] * 10 + [2] * 5 + [1])
    found = chosen_share(strata, 0.3, torch.Generator().manual_seed(0))
    assert [int(found[strata == s].sum()) for s in range(3)] == [3, 1, 2]


def test_every_item_of_a_stratum_is_equally_likely():
    strata = torch.tensor([0, 1] * 4)
    rng = torch.Generator().manual_seed(1)
    times = sum(chosen_share(strata, 0.5, rng).long() for _ in range(2000))
    assert (times - 1000).abs().max() < 120


def test_the_test_part_leaves_each_class_of_a_domain_a_training_image():
    labels = torch.tensor([0] * 10 + [1] * 10 + [0] * 2 + [1])
    domains = torch.tensor([0] * 20 + [1] * 3)
    is_test = hold_out(labels, domains)
    cells = [is_test[(labels == c) & (domains == d)].sum().item() for d in (0, 1) for c in (0, 1)]
    assert cells == [2, 2, 0, 0]
    assert torch.equal(is_test, hold_out(labels, domains))
