"""Partitions of a counted set: who gets what, and what is impossible."""

import re
from dataclasses import fields

import numpy as np
import pytest
import torch

from data_prep.base.errors import InputError
from vision.datasets import load
from vision.datasets.image_set import join
from vision.partition import PARTITIONS
from vision.partition.base import Partitioner, make_pools

KINDS = [
    PARTITIONS["iid"](clients=4),
    PARTITIONS["shards"](clients=4),
    PARTITIONS["dirichlet"](clients=4, concentration=1, min_samples=2),
    PARTITIONS["n-way"](clients=4, ways=2, spread=0),
]
WAYS, IID = PARTITIONS["n-way"], PARTITIONS["iid"]


def of(images, ids, domain=None):
    """Classes among some images, of one domain or of all."""
    chosen = ids if domain is None else ids[images.domains[ids] == domain]
    return images.labels[chosen].unique().tolist()


def each(kind, **options):
    return type(kind)(**{f.name: getattr(kind, f.name) for f in fields(kind)} | options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("domains", ["mixed", "random", "ink:1,oil:3"])
def test_what_holds_for_every_partition(grid, kind, domains):
    images = grid(train=20, test=5)
    kind = each(kind, domains=domains)
    found = kind.split(images, seed=3)
    assert len(found.train) == len(found.test) == 4
    train = torch.cat(found.train)
    assert len(train.unique()) == len(train)
    assert not images.is_test[train].any()
    assert images.is_test[torch.cat(found.test)].all()
    for own, tested in zip(found.train, found.test, strict=True):
        assert torch.equal(own, own.sort().values)
        assert of(images, tested) == of(images, own)
        assert len(tested) == len(of(images, own)) * (10 if domains == "mixed" else 5)
        if domains != "mixed":
            assert len(images.domains[torch.cat([own, tested])].unique()) == 1
    again, other = kind.split(images, seed=3), kind.split(images, seed=4)
    assert all(map(torch.equal, found.train + found.test, again.train + again.test))
    assert not all(map(torch.equal, found.train, other.train))


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda k: k.name)
def test_all_training_images_are_given_out(grid, kind):
    images = grid(train=20)
    found = kind.split(images)
    assert torch.equal(torch.cat(found.train).sort().values, (~images.is_test).nonzero()[:, 0])


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_a_share_of_each_class_and_domain(grid, kind):
    images = grid(train=20)
    train = torch.cat(each(kind, share=0.5).split(images).train)
    cells = (images.domains[train] * 3 + images.labels[train]).bincount()
    assert set(cells.tolist()) <= {0, 10}
    if kind.name != "n-way":
        assert cells.tolist() == [10] * 6


def test_domains_in_counts_are_in_order(grid):
    images = grid(domains=("ink", "oil", "chalk"))
    found = IID(clients=5, domains="chalk:2, ink:1,oil:2").split(images)
    assert [images.domains[ids].unique().tolist() for ids in found.train] == [
        [2], [2], [0], [1], [1],
    ]  # fmt: skip


def test_random_domains_are_drawn_evenly(grid):
    images = grid(train=200, domains=("ink", "oil"))
    found = IID(clients=100, domains="random").split(images)
    oil = sum(images.domains[ids[0]].item() for ids in found.train)
    assert 30 < oil < 70


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ("ink:3,oil:2", "5 clients .*4; .*clients=5"),
        (f"ink:{10**15}", "clients=1000000000000000,"),  # They are not listed one by one.
        ("ink:3,wax:1", "domain 'wax'; .*ink, oil"),
        ("ink", "mixed, random .*ink:5,oil:5"),
        ("ink:x,oil:2", "expected mixed"),
        ("ink:-1,oil:5", "expected mixed"),
        ("", "expected mixed"),
    ],
)
def test_counts_of_domains_are_checked(grid, domains, message):
    with pytest.raises(InputError, match=message):
        IID(clients=4, domains=domains).split(grid())


def test_a_domain_without_test_images_is_refused(grid):
    images = grid().take(torch.arange(42 + 10))
    with pytest.raises(InputError, match=r"oil .*grid .*10 .* 0 "):
        IID(clients=2, domains="ink:1,oil:1").split(images)


def test_n_way_classes_and_shots(grid):
    images = grid(train=60, test=6, classes=10)
    found = WAYS(
        clients=8, ways=4, spread=2, shots=5, shot_spread=2, domains="ink:4,oil:4", test_shots=3
    ).split(images, seed=1)
    ways = []
    for own, tested in zip(found.train, found.test, strict=True):
        counts = images.labels[own].bincount()
        k = counts[counts > 0].unique()
        assert len(k) == 1
        assert 3 <= k.item() <= 7
        ways.append(int((counts > 0).sum()))
        assert images.labels[tested].bincount().unique().tolist() in ([0, 3], [3])
    assert all(2 <= n <= 6 for n in ways)
    assert len(set(ways)) > 1


@pytest.mark.repeats
def test_the_mean_of_ways_is_ways(grid):
    images = grid(train=400, classes=10)
    found = WAYS(clients=400, ways=4, spread=1, shots=1).split(images)
    ways = np.array([len(of(images, ids)) for ids in found.train])
    assert set(ways) == {3, 4, 5}
    assert abs(ways.mean() - 4) < 0.15


def test_clients_know_two_classes_unless_one_is_asked_for(grid):
    images = grid(train=100)
    few = WAYS(clients=50, ways=2, spread=5, shots=1).split(images)
    assert {len(of(images, ids)) for ids in few.train} == {2, 3}
    one = WAYS(clients=50, ways=1, spread=0, shots=1).split(images)
    assert {len(of(images, ids)) for ids in one.train} == {1}


def test_without_shots_classes_are_divided_evenly(grid):
    images = grid(train=10, domains=("ink",))
    found = WAYS(clients=4, ways=3, spread=0).split(images)
    for label in range(3):
        sizes = [int((images.labels[ids] == label).sum()) for ids in found.train]
        assert sorted(sizes) == [2, 2, 3, 3]


def test_which_images_of_a_class_is_random(grid):
    images = grid(train=40, domains=("ink",))
    kind = WAYS(clients=1, ways=3, spread=0, shots=10)
    one, other = (kind.split(images, seed).train[0] for seed in (1, 2))
    assert len(one) == len(other) == 30
    assert not torch.equal(one, other)


def test_too_many_shots_are_told_in_numbers(grid):
    kind = WAYS(clients=4, ways=3, spread=0, shots=4, domains="ink:1,oil:3")
    message = (
        r"class a of domain oil has 10 training images and 3 clients ask for 4 each; "
        "use fewer shots"
    )
    with pytest.raises(InputError, match=message):
        kind.split(grid())


def test_too_many_ways_and_clients(grid):
    with pytest.raises(InputError, match=r"ways is 4; .* 3 "):
        WAYS(ways=4).split(grid())
    with pytest.raises(InputError, match=r"20 .* 21 clients .* 1 each"):
        WAYS(clients=21, ways=3, spread=0).split(grid())


@pytest.mark.repeats
def test_dirichlet_alpha_says_how_alike_clients_are(grid):
    images = grid(train=1000, classes=10, domains=("ink",))

    def variance(alpha):
        kind = PARTITIONS["dirichlet"](clients=5, concentration=alpha, min_samples=1)
        shares = [
            images.labels[ids].bincount(minlength=10) / 1000
            for seed in range(20)
            for ids in kind.split(images, seed).train
        ]
        return (torch.stack(shares) - 1 / 5).square().mean().item()

    # The share of a client has mean 1/5 and variance (1/5)(4/5)/(5 alpha + 1).
    for alpha in (0.1, 1.0, 100.0):
        assert variance(alpha) == pytest.approx(0.16 / (5 * alpha + 1), rel=0.15)


def test_dirichlets_help_says_what_is_drawn(grid):
    """Its numbers, read from the help, against ten draws of each concentration."""
    text = " ".join(PARTITIONS["dirichlet"].__doc__.split())
    stated = re.search(
        r"For 20 clients and 10 classes of 6,000 images, a client has on average images of (\S+) "
        r"classes at 0.1, of (\S+) at 0.5 and of (\S+) at 1; but only (\S+), (\S+) and (\S+) "
        r"classes have a share of 5 % or more, and the two largest clients of a class hold (\S+), "
        r"(\S+) and (\S+) % of it.",
        text,
    )
    images = grid(train=6000, test=1, classes=10, domains=("ink",))
    (pool,) = make_pools(images, "mixed", 20, seed=0)
    found = []
    for alpha in (0.1, 0.5, 1.0):
        kind, draws = PARTITIONS["dirichlet"](concentration=alpha), []
        for seed in range(10):
            dealt = kind.deal(pool, torch.Generator().manual_seed(seed))
            counts = torch.stack([pool.counts(ids) for ids in dealt]).double()
            some = (counts > 0).sum(1).double().mean()
            many = (counts >= 0.05 * counts.sum(1, keepdim=True)).sum(1).double().mean()
            two = counts.sort(0).values[-2:].sum(0).mean() / 60
            draws.append([float(some), float(many), float(two)])
        found.append(np.mean(draws, axis=0))
    numbers = np.array([float(n) for n in stated.groups()]).reshape(3, 3)
    assert (np.abs(numbers - np.transpose(found)) < [[0.35], [0.35], [3.5]]).all()


def test_dirichlet_keeps_its_minimum_or_says_why_not(grid):
    images = grid(train=20)
    found = PARTITIONS["dirichlet"](clients=4, concentration=0.3, min_samples=15).split(images)
    assert min(map(len, found.train)) >= 15
    with pytest.raises(InputError, match=r"120 .* 4 clients .* 31"):
        PARTITIONS["dirichlet"](clients=4, min_samples=31).split(images)
    with pytest.raises(InputError, match=r"200 draws .* than \d+"):
        PARTITIONS["dirichlet"](clients=4, concentration=0.01, min_samples=30).split(images)


def test_shards_have_few_classes_and_equal_size(grid):
    images = grid(train=40, classes=10, domains=("ink",))
    found = PARTITIONS["shards"](clients=10, shards=2).split(images)
    assert [len(ids) for ids in found.train] == [40] * 10
    assert max(len(of(images, ids)) for ids in found.train) <= 2
    with pytest.raises(InputError, match=r"201 clients .* 402; "):
        PARTITIONS["shards"](clients=201).split(images)


def test_iid_clients_differ_by_one_image(grid):
    images = grid(train=50, domains=("ink",))
    found = IID(clients=4).split(images)
    assert sorted(len(ids) for ids in found.train) == [37, 37, 38, 38]
    assert all(of(images, ids) == [0, 1, 2] for ids in found.train)
    with pytest.raises(InputError, match=r"150 .* 151 clients"):
        IID(clients=151).split(images)


def test_test_images_are_shared_or_divided(grid):
    images = grid(train=10, test=5)
    shared = IID(clients=3, domains="ink:2,oil:1").split(images)
    assert torch.equal(shared.test[0], shared.test[1])
    assert [len(ids) for ids in shared.test] == [15, 15, 15]
    divided = IID(clients=3, domains="ink:2,oil:1", shared_test=False).split(images)
    together = torch.cat(divided.test[:2])
    assert len(together) == len(together.unique()) == 15
    assert len(divided.test[2]) == 15
    with pytest.raises(InputError, match=r"class a .* 5 .* 2 clients .* 3 "):
        IID(clients=2, domains="ink:2", shared_test=False, test_shots=3).split(images)
    lone = images.take((~images.is_test | (images.labels > 0)).nonzero()[:, 0])
    message = "class a of all domains has 0 test images and a client asks for 1; add some or leave"
    with pytest.raises(InputError, match=message):
        IID(clients=2).split(lone)


def counts_of(images, parts):
    n = len(images.class_names)
    return torch.stack([images.labels[ids].bincount(minlength=n) for ids in parts]).double()


OWN_MIX = [
    PARTITIONS["dirichlet"](clients=4, concentration=0.5, min_samples=5, test="own-mix"),
    PARTITIONS["n-way"](clients=4, ways=2, spread=0, test="own-mix"),
    PARTITIONS["shards"](clients=4, shards=3, test="own-mix"),
]


@pytest.mark.parametrize("kind", OWN_MIX, ids=lambda k: k.name)
@pytest.mark.parametrize("domains", ["mixed", "ink:1,oil:3"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shots", [None, 3])
def test_own_mix_has_the_shares_of_the_training_images(grid, kind, domains, shared, shots):
    images = grid(train=120, test=40)
    kind = each(kind, domains=domains, shared_test=shared, test_shots=shots)
    found = kind.split(images, seed=3)
    train, test = counts_of(images, found.train), counts_of(images, found.test)
    for ids in found.test:
        assert images.is_test[ids].all()
        assert len(ids.unique()) == len(ids)
    if not shared:
        assert len(torch.cat(found.test).unique()) == sum(map(len, found.test))
    if domains != "mixed":
        for own, tested in zip(found.train, found.test, strict=True):
            assert len(images.domains[torch.cat([own, tested])].unique()) == 1
    if shots:
        ratio = shots * (train > 0).sum(1) / train.sum(1)
    else:
        there = 80 if domains == "mixed" else 40
        groups = [[i] for i in range(4)]
        if not shared:
            groups = [[0, 1, 2, 3]] if domains == "mixed" else [[0], [1, 2, 3]]
        ratio = torch.zeros(4, dtype=torch.float64)
        for group in groups:
            ratio[group] = there / train[group].sum(0).max()
            # The class that is the scarcest is used up.
            assert test[group].sum(0).max() == there
    exact = train * ratio[:, None]
    assert ((test - exact).abs() < (0.501 if shared else 1)).all()
    again, other = kind.split(images, seed=3), kind.split(images, seed=4)
    assert all(map(torch.equal, found.test, again.test))
    assert not all(map(torch.equal, found.test, other.test))


def test_own_mix_by_hand(grid):
    """One client, 4 a's, 2 b's and 1 c; of six test images of a class it has 6, 3 and 2."""
    images = grid(train=4, test=6, domains=("ink",))
    images = images.take(torch.tensor([*range(10), 10, 11, *range(14, 20), 20, *range(24, 30)]))
    (tested,) = IID(clients=1, test="own-mix").split(images).test
    assert images.labels[tested].bincount().tolist() == [6, 3, 2]  # 1.5 is rounded to even.
    (tested,) = IID(clients=1, test="own-mix", test_shots=2).split(images).test
    assert images.labels[tested].bincount().tolist() == [3, 2, 1]  # Of 3.43, 1.71 and 0.86.


def test_own_mix_says_where_test_images_are_too_few(grid):
    images = grid(train=10, test=4, domains=("ink",))
    with pytest.raises(InputError, match=r"class a .* 4 .* 5; use fewer test_shots$"):
        IID(clients=1, test="own-mix", test_shots=5).split(images)
    with pytest.raises(InputError, match=r"class a .* 2 clients .* test_shots or use shared_test$"):
        IID(clients=2, test="own-mix", test_shots=3, shared_test=False).split(images)
    without = images.take((~images.is_test | (images.labels > 0)).nonzero()[:, 0])
    with pytest.raises(InputError, match=r"class a .* no"):
        IID(clients=2, test="own-mix").split(without)
    crowd = PARTITIONS["iid"](clients=30, test="own-mix", shared_test=False)
    with pytest.raises(InputError, match=r"12 test .* client \d"):
        crowd.split(images)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("iid", {"clients": 0}, "clients is 0"),
        ("iid", {"share": 0.0}, "share is 0.0"),
        ("iid", {"share": 1.5}, "share is 1.5"),
        ("iid", {"test_shots": 0}, "test_shots is 0"),
        ("iid", {"test": "mix"}, "by-class or own-mix"),
        ("n-way", {"ways": 0}, "ways is 0"),
        ("n-way", {"spread": -1}, "spread is -1"),
        ("n-way", {"shots": 3, "shot_spread": 3}, "be less"),
        ("n-way", {"shots": 0}, "shot_spread is 0 .*0"),
        ("n-way", {"shot_spread": 2}, "shots .*set"),
        ("dirichlet", {"concentration": 0}, "concentration is 0"),
        ("dirichlet", {"min_samples": 0}, "min_samples is 0"),
        ("shards", {"shards": 0}, "shards is 0"),
    ],
)
def test_options_out_of_range(name, options, message):
    with pytest.raises(InputError, match=message):
        PARTITIONS.find(name)(**options)


def test_every_kind_is_known_and_documents_its_options():
    assert list(PARTITIONS) == ["dirichlet", "iid", "n-way", "shards"]
    with pytest.raises(InputError, match=r"'lda'; .*: dirichlet, iid"):
        PARTITIONS.find("lda")
    for kind in PARTITIONS.values():
        documented = (kind.__doc__ or "") + (Partitioner.__doc__ or "")
        assert all(f"    {f.name}: " in documented for f in fields(kind))


def test_the_table_counts_every_combination(grid):
    images = grid(train=10, test=4)
    found = IID(clients=3, domains="ink:2,oil:1").split(images)
    table = found.table(images)
    assert list(table.columns) == ["client", "part", "domain", "class", "samples"]
    assert table.groupby("part")["samples"].sum().to_dict() == {"train": 60, "test": 36}
    last = table[(table["client"] == 2) & (table["part"] == "train")]
    assert last[["domain", "class", "samples"]].values.tolist() == [
        ["oil", "a", 10], ["oil", "b", 10], ["oil", "c", 10],
    ]  # fmt: skip


@pytest.mark.slow
def test_papers_setting_on_real_digits(images_dir, usps):
    """20 clients, 3 classes on average, domains in counts as FPL's."""
    images = join([load("mnist", images_dir), usps], size=16)
    kind = WAYS(clients=20, ways=3, spread=1, domains="mnist:12,usps:8", share=0.01)
    table = kind.split(images).table(images)
    train = table[table["part"] == "train"]
    assert train.groupby("client")["domain"].nunique().eq(1).all()
    assert train.groupby("client")["class"].nunique().between(2, 4).all()
    # 1 % of a class of MNIST is 54 (fives) to 67 (ones) images.
    assert train[train["domain"] == "mnist"].groupby("class")["samples"].sum().between(54, 67).all()
