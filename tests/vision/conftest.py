"""Fixtures of the tests of `vision`: the real images and a tiny set."""

import pytest
import torch

from vision.datasets import load
from vision.datasets.image_set import ImageSet


@pytest.fixture(scope="session")
def images_dir(data_dir):
    return data_dir / "images"


@pytest.fixture(scope="session")
def usps(images_dir):
    return load("usps", images_dir)


@pytest.fixture
def grid():
    """Makes a set with `train` + `test` images of each of 3 classes in each of 2 domains."""

    def make(train=10, test=4, classes=3, domains=("ink", "oil")):
        each = train + test
        n = each * classes * len(domains)
        i = torch.arange(n)
        return ImageSet(
            name="grid",
            images=i.to(torch.uint8)[:, None, None, None].expand(n, 1, 2, 2).contiguous(),
            labels=i // each % classes,
            domains=i // (each * classes),
            is_test=i % each >= train,
            class_names=tuple("abcdefghijkl"[:classes]),
            domain_names=tuple(domains),
            source="counted",
        )

    return make
