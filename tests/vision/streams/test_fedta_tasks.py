import pytest
import torch

from data_prep.base.errors import InputError
from vision.datasets.image_set import ImageSet
from vision.streams import STREAMS

Tasks = STREAMS["fedta-tasks"]
SMALL = {"clients": 3, "stages": 2, "task_classes": 3, "private_classes": 2}


def image_set(classes=10, train=40, test=4):
    each = train + test
    i = torch.arange(classes * each)
    return ImageSet(
        "counted",
        i.to(torch.uint8)[:, None, None, None].expand(len(i), 1, 2, 2).contiguous(),
        i // each,
        0 * i,
        i % each >= train,
        tuple(f"c{k}" for k in range(classes)),
        ("all",),
        "counted",
    )


def classes_of(images, stream, client):
    return [set(images.labels[stage[client]].tolist()) for stage in stream.train]


def test_clients_have_private_and_public_classes_in_tasks_of_equal_size():
    images = image_set()
    stream = Tasks(**SMALL).split(images, seed=3)
    assert stream.order == "sequential"
    own = []
    for client in range(3):
        first, second = classes_of(images, stream, client)
        assert len(first) == len(second) == 3
        assert not first & second
        own.append(first | second)
    public = set.intersection(*own)
    assert len(public) == 4
    private = [o - public for o in own]
    assert [len(p) for p in private] == [2, 2, 2]
    assert len(set.union(*private)) == 6


def test_no_training_image_is_dealt_twice_and_none_is_lost():
    images = image_set()
    stream = Tasks(**SMALL).split(images, seed=3)
    dealt = torch.cat([ids for stage in stream.train for ids in stage])
    assert len(dealt.unique()) == len(dealt) == 10 * 40
    assert not images.is_test[dealt].any()


def test_shares_of_a_public_class_are_random_and_not_too_small():
    images = image_set(train=1000)
    stream = Tasks(**SMALL, min_share=0.2).split(images, seed=3)
    counts = torch.zeros(3, 10)
    for stage in stream.train:
        for client, ids in enumerate(stage):
            counts[client] += images.labels[ids].bincount(minlength=10)
    shares = counts[:, (counts > 0).all(0)] / 1000
    assert shares.shape == (3, 4)
    assert shares.min() >= 0.1995
    assert shares.std(1).min() > 0.02


def test_official_test_images_are_those_of_the_task_and_shared():
    images = image_set()
    stream = Tasks(**SMALL).split(images, seed=3)
    for train, test in zip(stream.train, stream.test, strict=True):
        for own, ids in zip(train, test, strict=True):
            assert images.is_test[ids].all()
            assert set(images.labels[ids].tolist()) == set(images.labels[own].tolist())
            assert len(ids) == 3 * 4


def test_few_shots_are_used_of_each_class():
    images = image_set()
    stream = Tasks(**SMALL, train_shots=20, test_shots=2).split(images, seed=3)
    train = torch.cat([ids for stage in stream.train for ids in stage])
    test = torch.cat([ids for stage in stream.test for ids in stage]).unique()
    assert images.labels[train].bincount().tolist() == [20] * 10
    assert images.labels[test].bincount().tolist() == [2] * 10


def test_the_seed_decides():
    images = image_set()
    first, again, other = (Tasks(**SMALL).split(images, seed=s) for s in (1, 1, 2))
    for a, b in zip(first.train, again.train, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert any(
        not torch.equal(x, y)
        for a, b in zip(first.train, other.train, strict=True)
        for x, y in zip(a, b, strict=True)
    )


def test_the_papers_settings_need_100_and_200_classes():
    cifar, imagenet_r = image_set(100, train=12, test=1), image_set(200, train=2, test=1)
    stream = Tasks(min_share=0.0).split(cifar)
    assert len(stream.train) == len(stream.train[0]) == 5
    stream = Tasks(private_classes=40).split(imagenet_r)
    seen = [set.union(*classes_of(imagenet_r, stream, client)) for client in range(5)]
    assert [len(s) for s in seen] == [40] * 5
    assert len(set.union(*seen)) == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"private_classes": 7}, "has 6 classes"),
        ({"private_classes": 3}, "need 12"),
        ({"min_share": 0.34}, "min_share"),
        ({"concentration": 0}, "concentration"),
    ],
)
def test_what_is_impossible_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Tasks(**{**SMALL, **settings}).split(image_set())


def test_too_few_images_for_the_clients_are_refused():
    with pytest.raises(InputError, match=r"2 training .*c"):
        Tasks(**SMALL, min_share=0).split(image_set(train=2))


def test_a_class_without_test_images_is_refused():
    images = image_set()
    images = images.take(~(images.is_test & (images.labels == 3)))
    with pytest.raises(InputError, match=r"c3 .*counted .*test"):
        Tasks(**SMALL).split(images, 1)
