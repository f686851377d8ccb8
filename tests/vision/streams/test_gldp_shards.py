"""Streams of GLDP: who has which shards in which stage."""

import pytest
import torch

from data_prep.base.errors import InputError
from vision.datasets.image_set import long_tailed
from vision.partition.base import Partition
from vision.streams import STREAMS
from vision.streams.base import TaskStream

SHARDS = STREAMS["gldp-shards"]


@pytest.fixture
def images(grid):
    """6 classes of 40 training and 30 test images."""
    return grid(train=40, test=30, classes=6, domains=("ink",))


def all_ids(part):
    return torch.cat([ids for stage in part for ids in stage])


@pytest.mark.parametrize("cut", ["equal", "class"])
@pytest.mark.parametrize("spread", [0, 2])
def test_every_training_image_is_given_out_once(images, cut, spread):
    stream = SHARDS(clients=4, stages=3, shards=2, cut=cut, stage_spread=spread).split(images, 3)
    assert torch.equal(all_ids(stream.train).sort().values, (~images.is_test).nonzero()[:, 0])
    assert (len(stream), len(stream.train[0]), stream.order) == (3, 4, "inside")


@pytest.mark.parametrize("shards", [2, 5, 8])
def test_equal_shards_make_equal_clients(images, shards):
    tailed = long_tailed(images, 10)
    for seed in range(3):
        stream = SHARDS(clients=4, stages=3, shards=shards).split(tailed, seed)
        sizes = [len(ids) for stage in stream.train for ids in stage]
        assert max(sizes) - min(sizes) <= 1
        for own in stream.own_classes(tailed)[0]:
            assert 1 <= own.sum() <= 2 * shards


def test_class_shards_have_exactly_s_classes(images):
    tailed = long_tailed(images, 4)
    stream = SHARDS(clients=4, stages=3, shards=2, cut="class").split(tailed, 1)
    holders = torch.zeros(6)
    for stage in stream.train:
        for ids in stage:
            classes = tailed.labels[ids].unique()
            assert len(classes) == 2
            holders[classes] += 1
    assert holders.tolist() == [4] * 6


@pytest.mark.parametrize("shared", [False, True])
def test_a_client_is_tested_on_its_classes_of_the_stage(images, shared):
    stream = SHARDS(clients=4, stages=3, shards=2, shared_test=shared).split(images, 1)
    for train, test in zip(stream.train, stream.test, strict=True):
        for mine, tested in zip(train, test, strict=True):
            own = images.labels[mine].unique()
            assert images.is_test[tested].all()
            assert torch.equal(images.labels[tested].unique(), own)
            if shared:
                assert len(tested) == 30 * len(own)
    ids = all_ids(stream.test)
    assert shared or len(ids.unique()) == len(ids)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("cut", ["equal", "class"])
def test_tests_are_balanced_however_long_the_tail(images, cut, shared):
    tailed = long_tailed(images, 8)
    stream = SHARDS(clients=4, stages=3, shards=2, cut=cut, shared_test=shared).split(tailed, 1)
    hands = torch.zeros(6)
    for stage in stream.train:
        for mine in stage:
            hands[tailed.labels[mine].unique()] += 1
    # As many as the class of the most clients and stages has for each; there are 30 of a class.
    each = 30 if shared else 30 // int(hands.max())
    for stage in stream.test:
        for tested in stage:
            assert set(tailed.labels[tested].unique(return_counts=True)[1].tolist()) == {each}


def test_with_equal_classes_all_test_images_are_used(images):
    stream = SHARDS(clients=5, stages=3, shards=2, cut="class").split(images, 1)
    assert torch.equal(all_ids(stream.test).sort().values, images.is_test.nonzero()[:, 0])


def test_too_few_test_images_for_the_clients_of_a_class_are_refused(grid):
    few = grid(train=40, test=2, classes=6, domains=("ink",))
    message = "has 2 test images and 4 clients ask for 1 each; use shared_test$"
    with pytest.raises(InputError, match=message):
        SHARDS(clients=4, stages=3, shards=2, cut="class").split(few)


def test_classes_drift_between_stages_and_differ_between_clients(images):
    stream = SHARDS(clients=4, stages=3, shards=2, cut="class").split(images, 1)
    first, *_, last = stream.own_classes(images)
    assert (first.sum(1) == 2).all()
    assert (last.sum(1) > 2).all()
    assert len(first.unique(dim=0)) > 1


def test_clients_may_have_fewer_stages(images):
    stream = SHARDS(clients=6, stages=3, shards=1, stage_spread=2).split(images, 1)
    present = torch.tensor([[len(ids) > 0 for ids in stage] for stage in stream.train])
    lengths = present.sum(0)
    assert lengths.min() >= 1
    assert lengths.max() == 3
    assert lengths.unique().tolist() != [3]
    for seed in range(6):  # One client has all stages, whatever is drawn.
        drawn = SHARDS(clients=2, stages=3, shards=1, stage_spread=2).split(images, seed)
        assert any(len(ids) for ids in drawn.train[-1])
    for client, n in enumerate(lengths):
        assert present[:, client].tolist() == [True] * n + [False] * (3 - n)
        assert [len(stage[client]) > 0 for stage in stream.test] == present[:, client].tolist()


def test_accumulated_data_stay(images):
    one = SHARDS(clients=4, stages=3, shards=2).split(images, 1)
    kept = one.accumulated()
    for client in range(4):
        so_far = torch.cat([one.train[m][client] for m in range(3)]).sort().values
        assert torch.equal(kept.train[2][client], so_far)
        assert torch.equal(kept.train[0][client], one.train[0][client])
        assert torch.equal(kept.test[2][client], one.test[2][client])


def test_the_seed_decides(images):
    first, again, other = (
        SHARDS(clients=4, stages=3, shards=2).split(images, seed).train for seed in (1, 1, 2)
    )
    assert torch.equal(all_ids(first), all_ids(again))
    assert not torch.equal(all_ids(first), all_ids(other))


def test_table(images):
    nothing = torch.tensor([], dtype=torch.long)
    # Ids 0-39 are training images of a, 40-69 its test images; b's are 70 to 139.
    train = ((torch.tensor([0, 1, 70]), nothing), (nothing, torch.tensor([2])))
    test = ((torch.tensor([40]), nothing), (nothing, torch.tensor([41, 42])))
    table = TaskStream(train, test).table(images)
    assert list(table.columns) == ["client", "part", "stage", "domain", "class", "samples"]
    assert table.to_numpy().tolist() == [
        [0, "train", 0, "ink", "a", 2],
        [0, "train", 0, "ink", "b", 1],
        [0, "test", 0, "ink", "a", 1],
        [1, "train", 1, "ink", "a", 1],
        [1, "test", 1, "ink", "a", 2],
    ]


def test_a_partition_is_a_stream_of_one_stage():
    ids = (torch.tensor([0]), torch.tensor([1]))
    stream = TaskStream.of(Partition(ids, ids))
    assert (len(stream), stream.train, stream.test) == (1, (ids,), (ids,))
    assert TaskStream.of(stream) is stream


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"shards": 0}, "shards is 0"),
        ({"stage_spread": 5}, "stage_spread is 5 .*5"),
        ({"cut": "both"}, "equal or class"),
        ({"stage_order": "mixed"}, "inside or sequential"),
        ({"clients": 100}, "240 .*; 100 .*4 shards .*5 stages"),
        ({"cut": "class", "shards": 7}, "shards is 7; .*6 "),
    ],
)
def test_impossible_streams_are_refused(images, options, message):
    with pytest.raises(InputError, match=message):
        SHARDS(**options).split(images)
