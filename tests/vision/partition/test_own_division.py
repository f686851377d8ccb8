"""Divisions of somebody's own with too few parts, an image twice, or test images to train on."""

import pytest
import torch

from data_prep.base.errors import InputError
from vision.partition.base import Partitioner
from vision.streams.base import Streamer

PARTITIONS = {
    r"deal returned 1 parts, expected a tensor of ids for each of 3 clients": lambda pool: [
        pool.train
    ],
    "deal returned 0 parts": lambda pool: None,
    "deal returned 3 parts, expected a tensor": lambda pool: [[0], [1], [2]],
    "training images of all domains: deal returned one twice": lambda pool: [pool.train[:6]] * 3,
    r"training images of all domains: client 0 gets image \d+, which is none": lambda pool: (
        pool.test.tensor_split(3)
    ),
    "client 1 gets image 9999, which is none": lambda pool: [
        pool.train[:5], torch.tensor([9999]), pool.train[5:],
    ],
}  # fmt: skip

STREAMS = {
    "deal returned 1 stages, expected 2": lambda train, test: ([train], [test]),
    r"test images that nobody trains on: client 0 gets image \d+": lambda train, test: (
        [train, train], [train, test],
    ),
    r"training images: client 0 gets image \d+": lambda train, test: ([test, train], [test, test]),
}  # fmt: skip


@pytest.fixture
def images(grid):
    return grid(train=12, test=6, classes=3, domains=("ink",))


@pytest.mark.parametrize("message", PARTITIONS)
def test_a_mistake_in_a_partition_is_named(images, message):
    deal = {"name": "", "deal": lambda self, pool, rng: PARTITIONS[message](pool)}
    with pytest.raises(InputError, match=message):
        type("Own", (Partitioner,), deal)(clients=3).split(images)


@pytest.mark.parametrize("message", STREAMS)
def test_a_mistake_in_a_stream_is_named(images, message):
    train = (~images.is_test).nonzero()[:, 0].tensor_split(3)
    test = images.is_test.nonzero()[:, 0].tensor_split(3)
    deal = {"name": "", "deal": lambda self, images, seed: STREAMS[message](train, test)}
    with pytest.raises(InputError, match=message):
        type("Own", (Streamer,), deal)(clients=3, stages=2).split(images)
