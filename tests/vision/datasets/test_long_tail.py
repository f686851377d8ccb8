"""Long-tailed training parts and sets that are held out."""

import pytest
import torch

from data_prep.base.errors import InputError
from vision.datasets import load
from vision.datasets.image_set import hold_out_for_server, long_tailed


def counts(images, test=False):
    of_part = images.is_test if test else ~images.is_test
    return images.labels[of_part].bincount(minlength=len(images.class_names)).tolist()


def test_classes_become_exponentially_rarer(grid):
    images = grid(train=100, test=4, classes=3, domains=("ink",))
    # 100 · 25^0, 100 · 25^-½ = 20, 100 · 25^-1 = 4.
    tailed = long_tailed(images, 25)
    assert counts(tailed) == [100, 20, 4]
    assert counts(tailed, test=True) == [4, 4, 4]
    assert counts(long_tailed(images, 1000)) == [100, 3, 1]
    assert "long tail of factor 25" in tailed.source


def test_the_rarest_class_sets_the_length(grid):
    images = grid(train=100, classes=3, domains=("ink",))
    fewer = images.take(
        ~((images.labels == 0) & ~images.is_test) | (torch.arange(len(images)) < 40)
    )
    assert counts(fewer) == [40, 100, 100]
    assert counts(long_tailed(fewer, 4)) == [40, 20, 10]


def test_a_factor_of_one_changes_nothing(grid):
    images = grid()
    assert long_tailed(images, 1) is images


def test_the_choice_is_random_and_repeatable(grid):
    images = grid(train=100, classes=3, domains=("ink",))
    one, again, other = (long_tailed(images, 10, seed).images.flatten(1) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_balanced_set_is_taken_from_the_training_part(grid):
    images = grid(train=10, test=4, classes=3, domains=("ink",))
    rest, taken = hold_out_for_server(images, 2)
    assert counts(taken) == [2, 2, 2]
    assert counts(rest) == [8, 8, 8]
    assert counts(rest, test=True) == [4, 4, 4]
    pixels = torch.cat([rest.images, taken.images])[:, 0, 0, 0]
    assert torch.equal(pixels.sort().values, images.images[:, 0, 0, 0].sort().values)


def test_impossible_wishes_are_refused(grid):
    images = grid(train=10, domains=("ink",))
    with pytest.raises(InputError, match=r"imbalance is 0\.5"):
        long_tailed(images, 0.5)
    with pytest.raises(InputError, match=r"surrogate is 10; .*10 "):
        hold_out_for_server(images, 10)
    with pytest.raises(InputError, match="class b "):
        long_tailed(images.take((images.labels != 1) | images.is_test), 10)


def test_cifar10_at_the_papers_factors(images_dir):
    images = load("cifar10", images_dir)
    # 500 · 50^(-c/9), rounded down.
    expected = [500, 323, 209, 135, 87, 56, 36, 23, 15, 10]
    assert counts(long_tailed(images, 50)) == expected
    assert counts(long_tailed(images, 10))[-1] == 50
    assert counts(long_tailed(images, 100))[-1] == 5
