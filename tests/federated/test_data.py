import pytest
import torch

from stforecast.federated.core.data import ClientData, batches
from stforecast.federated.core.tensors import is_range, take


def numbered(n_clients, samples):
    """Sample s of client i has the value 100 i + s, twice."""
    value = 100 * torch.arange(n_clients)[:, None] + torch.arange(samples)
    data = {"x": value.float()[..., None].repeat(1, 1, 2), "y": value}
    return ClientData(data, torch.full((n_clients,), samples))


def generators(ids, seed=0):
    return [torch.Generator().manual_seed(100 * seed + i) for i in ids]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([2, 3, 4], True),
        ([7], True),
        ([2, 4], False),
        ([3, 2], False),
        ([1, 1], False),
        ([], False),
    ],
)
def test_ranges(ids, expected):
    assert is_range(torch.tensor(ids, dtype=torch.long)) is expected


def test_taking_a_range_shares_memory():
    tensors = {"x": torch.arange(10.0).view(5, 2)}
    part = take(tensors, torch.tensor([1, 2]))["x"]
    part.zero_()
    assert tensors["x"].tolist() == [[0, 1], [0, 0], [0, 0], [6, 7], [8, 9]]


@pytest.mark.parametrize("ids", [[0, 3], [4, 1, 1], []])
def test_taking_others_copies(ids):
    tensors = {"x": torch.arange(10.0).view(5, 2)}
    part = take(tensors, torch.tensor(ids, dtype=torch.long))["x"]
    assert part.tolist() == [[2 * i, 2 * i + 1] for i in ids]
    part.zero_()
    assert tensors["x"].flatten().tolist() == list(range(10))


def test_data_of_some_clients():
    data = ClientData(numbered(4, 3).tensors, torch.tensor([3, 2, 1, 3]))
    some = data.take(torch.tensor([1, 3]))
    assert len(some) == 2
    assert some.sizes.tolist() == [2, 3]
    assert some.tensors["y"][:, 0].tolist() == [100, 300]


def test_chunks_are_all_samples_in_order():
    data = numbered(2, 5)
    parts = list(data.chunks(2))
    assert [part["y"].shape[1] for part in parts] == [2, 2, 1]
    assert torch.cat([part["y"] for part in parts], dim=1).equal(data.tensors["y"])


def test_chunks_stop_at_the_longest_client():
    data = ClientData(numbered(2, 5).tensors, torch.tensor([2, 3]))
    assert [part["y"].shape[1] for part in data.chunks(2)] == [2, 1]
    valid = torch.cat([part["valid"] for part in data.chunks(2)], dim=1)
    assert valid.tolist() == [[True, True, False], [True, True, True]]
    nobody = ClientData({"x": torch.zeros(0, 5)}, torch.zeros(0, dtype=torch.long))
    assert list(nobody.chunks(2)) == []


def test_batches_are_in_order_and_the_last_short_one_is_dropped():
    parts = list(batches(numbered(2, 7), 3))
    assert [part["y"].tolist() for part in parts] == [
        [[0, 1, 2], [100, 101, 102]],
        [[3, 4, 5], [103, 104, 105]],
    ]
    assert [part["y"].shape[1] for part in batches(numbered(1, 6), 3)] == [3, 3]


def test_shuffled_batches_hold_every_sample_once():
    data = numbered(2, 6)
    parts = list(batches(data, 2, generators([0, 1])))
    y = torch.cat([part["y"] for part in parts], dim=1)
    assert torch.equal(y.sort(dim=1).values, data.tensors["y"])
    assert not torch.equal(y, data.tensors["y"])
    assert not torch.equal(y[0], y[1] - 100)
    for part in parts:
        assert torch.equal(part["x"], part["y"].float()[..., None].expand(-1, -1, 2))


def test_a_client_is_shuffled_alike_in_every_cohort():
    data = numbered(4, 8)
    together = list(batches(data, 3, generators(range(4))))
    for i in range(4):
        alone = list(batches(data.take(torch.tensor([i])), 3, generators([i])))
        for whole, own in zip(together, alone, strict=True):
            assert torch.equal(whole["y"][i], own["y"][0])


def test_epochs_are_shuffled_differently():
    generator = generators([0])
    first, second = (next(batches(numbered(1, 8), 8, generator))["y"] for _ in range(2))
    assert not torch.equal(first, second)


def test_padding_is_no_sample():
    data = ClientData(numbered(2, 6).tensors, torch.tensor([4, 4]))
    for shuffled in (None, generators([0, 1])):
        y = torch.cat([part["y"] for part in batches(data, 2, shuffled)], dim=1)
        assert y.sort(dim=1).values.tolist() == [[0, 1, 2, 3], [100, 101, 102, 103]]


def test_moving_keeps_sizes_on_the_cpu():
    moved = numbered(2, 3).to("meta")
    assert {t.device.type for t in moved.tensors.values()} == {"meta"}
    assert moved.sizes.tolist() == [3, 3]


def grouped(n_groups, group_sizes):
    """Sample s of client i has the value 100 i + s; clients differ in the size of their groups."""
    data = numbered(len(group_sizes), n_groups * max(group_sizes))
    sizes = n_groups * torch.tensor(group_sizes)
    return ClientData(data.tensors, sizes, group_sizes=torch.tensor(group_sizes))


def test_batches_hold_whole_groups_in_their_order():
    data = grouped(5, [3, 3])
    ordered = [b["y"][0].tolist() for b in batches(data, 2, drop_last=False)]
    assert ordered == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14]]
    assert len(list(batches(data, 2))) == 2
    drawn = torch.cat([b["y"] for b in batches(data, 2, generators([0, 1]), drop_last=False)], 1)
    for i, row in enumerate(drawn):
        groups = row.unflatten(0, (-1, 3)) - 100 * i
        assert (groups - groups[:, :1] == torch.arange(3)).all()
        assert sorted(groups[:, 0].tolist()) == [0, 3, 6, 9, 12]


def test_groups_are_drawn_as_samples_are():
    single = [b["y"] for b in batches(numbered(2, 5), 2, generators([0, 1]))]
    groups = [b["y"] for b in batches(grouped(5, [2, 2]), 2, generators([0, 1]))]
    for one, several in zip(single, groups, strict=True):
        assert torch.equal(one % 100, several[:, ::2] % 100 // 2)


def test_chunks_hold_whole_groups():
    data = grouped(4, [3])
    assert [c["y"].shape[1] for c in data.chunks(7)] == [6, 6]
    assert [c["y"].shape[1] for c in data.chunks(1)] == [3, 3, 3, 3]


def test_cohorts_have_groups_of_one_size():
    data = grouped(4, [2, 2, 2, 1, 2])
    assert [ids.tolist() for ids in data.cohorts(2)] == [[0, 1], [2], [3], [4]]
    assert [ids.tolist() for ids in numbered(3, 2).cohorts(2)] == [[0, 1], [2]]
    assert data.n_groups.tolist() == [4] * 5
    assert data.take(torch.tensor([0, 4])).group == 2
    with pytest.raises(ValueError, match="groups of 1 to 2 "):
        _ = data.group
