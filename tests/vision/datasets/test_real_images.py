"""The real files, against published counts and a second, plain reading."""

import bz2
import itertools

import numpy as np
import pytest

from vision.datasets import load
from vision.datasets.image_set import join
from vision.datasets.syn_generated import syn_generated


def test_mnist(images_dir):
    images = load("mnist", images_dir)
    assert images.images.shape == (70_000, 1, 28, 28)
    assert int(images.is_test.sum()) == 10_000
    train = images.labels[~images.is_test].bincount().tolist()
    assert train == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    raw = images_dir / "MNIST" / "raw"
    for name, place, item in (("train", 59_999, 59_999), ("t10k", 123, 60_123)):
        with (raw / f"{name}-images-idx3-ubyte").open("rb") as file:
            file.seek(16 + 784 * place)
            assert images.images[item].numpy().tobytes() == file.read(784)
        with (raw / f"{name}-labels-idx1-ubyte").open("rb") as file:
            file.seek(8 + place)
            assert file.read(1)[0] == images.labels[item]


@pytest.mark.repeats
def test_usps(images_dir, usps):
    images = usps
    assert images.images.shape == (9_298, 1, 16, 16)
    assert int(images.is_test.sum()) == 2_007
    assert images.labels[~images.is_test].bincount().tolist() == [
        1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644,
    ]  # fmt: skip
    with bz2.open(images_dir / "usps.t.bz2", "rt") as file:
        label, *pairs = next(itertools.islice(file, 500, None)).split()
    values = dict(pair.split(":") for pair in pairs)
    expected = [(float(values.get(str(i + 1), 0)) + 1) / 2 * 255 for i in range(256)]
    item = 7_291 + 500
    assert int(label) - 1 == images.labels[item]
    assert abs(images.images[item].numpy().ravel() - np.array(expected)).max() <= 0.5


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("name", "file", "n", "domains", "n_test"),
    [
        ("pacs", "pacs-64px-subset", 1_680, 4, 4 * 7 * 12),
        ("office-caltech10", "office-caltech10-64px-subset", 1_652, 4, None),
        ("cifar10", "cifar10-subset", 6_000, 1, 1_000),
        ("cifar100", "cifar100-subset", 12_000, 1, 2_000),
    ],
)
def test_subsets(images_dir, name, file, n, domains, n_test):
    images = load(name, images_dir)
    with np.load(images_dir / f"{file}.npz") as arrays:
        assert np.array_equal(images.images.permute(0, 2, 3, 1), arrays["images"])
        assert np.array_equal(images.labels, arrays["labels"])
        assert images.class_names == tuple(arrays["class_names"])
        assert domains == 1 or np.array_equal(images.domains, arrays["domains"])
        assert domains > 1 or np.array_equal(images.is_test, arrays["is_test"])
    assert (len(images), len(images.domain_names)) == (n, domains)
    assert n_test is None or int(images.is_test.sum()) == n_test


@pytest.mark.slow
def test_three_domains_of_digits(images_dir, usps):
    sets = [syn_generated(size=16, n_images=100), load("usps", images_dir), load("digits8x8")]
    images = join(sets, 16)
    assert images.images.shape == (100 + 9_298 + 1_797, 3, 16, 16)
    assert images.domains.bincount().tolist() == [100, 9_298, 1_797]
    assert (images.images[100:9_398] == usps.images).all()
