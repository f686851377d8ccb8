"""Trees by hand, of pooled samples, and as scikit-learn grows them."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from stforecast.federated.core.trees import (
    GRID,
    best_splits,
    bin_ends,
    grid_counts,
    histograms,
    leaf_values,
    node_sums,
    nodes_at,
    to_bins,
)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def test_counts_are_those_of_a_grid_that_is_fine_near_0():
    x = torch.tensor(
        [[[0.0, 5.0], [0.0, -7.0], [0.02, 5.0]], [[1e9, 0.0], [-1e9, 0.0], [50.0, 0.0]]]
    )
    counts = grid_counts(x)
    assert counts.shape == (2, 2, GRID)
    assert counts.sum(2).tolist() == [[3, 3], [3, 3]]
    assert sorted(counts[0, 0][counts[0, 0] > 0].tolist()) == [1, 2]
    assert counts[1, 0, [0, -1]].tolist() == [1, 1]


def test_values_that_are_fewer_than_the_bins_have_a_bin_each():
    x = torch.tensor([[[0.0], [3.0], [3.0], [-1.0], [0.5]]])
    ends = bin_ends(grid_counts(x).sum(0), bins=4)
    assert to_bins(x, ends).flatten().tolist() == [1, 3, 3, 0, 2]
    assert to_bins(torch.tensor([[[-9.0], [9.0]]]), ends).flatten().tolist() == [0, 3]
    one = torch.zeros(1, 5, 1)
    assert to_bins(one, bin_ends(grid_counts(one).sum(0), bins=4)).unique().tolist() == [0]


def test_bins_hold_about_equally_many_values(rng):
    x = torch.randn(3, 4000, 2, generator=rng)
    bins = to_bins(x, bin_ends(grid_counts(x).sum(0), bins=8))
    for column in bins.transpose(0, 1).flatten(1):
        counts = column.bincount(minlength=8)
        assert counts.sum() == 12_000
        # No cell near 0 holds more than 0.5 % of a normal distribution.
        assert (counts / 12_000 - 1 / 8).abs().max() < 0.006


def test_noise_on_the_counts_does_no_harm(rng):
    counts = grid_counts(torch.randn(1, 100, 2, generator=rng))[0]
    ends = bin_ends(counts + torch.randn(counts.shape, generator=rng), bins=16)
    assert (ends[:, 1:] >= ends[:, :-1]).all()


def test_sums_are_those_of_a_loop(rng):
    bins = torch.randint(0, 4, (2, 3, 9), generator=rng).to(torch.uint8)
    node = torch.randint(-1, 2, (2, 9), generator=rng)
    values = torch.randint(-5, 5, (2, 2, 9), generator=rng).double()
    expected = torch.zeros(2, 2, 3, 2, 4, dtype=torch.float64)
    sums = torch.zeros(2, 2, 2, dtype=torch.float64)
    for c in range(2):
        for s in range(9):
            if (k := int(node[c, s])) >= 0:
                sums[c, :, k] += values[c, :, s]
                for f in range(3):
                    expected[c, k, f, :, int(bins[c, f, s])] += values[c, :, s]
    assert torch.equal(histograms(bins, node, values, 2, 4), expected)
    seen = torch.where(node[:, None] >= 0, values, 0)
    assert torch.equal(node_sums(node.clamp(min=0), seen, 2), sums)


def test_the_gain_by_hand():
    # Input 0: residuals -2, 6 | 2 of weights 1, 2, 1; input 1: 4 | 0, 2 of weights 2, 1, 1.
    residual, weight = [[-2.0, 6.0, 2.0], [4.0, 0.0, 2.0]], [[1.0, 2.0, 1.0], [2.0, 1.0, 1.0]]
    node = torch.tensor([[[r, w] for r, w in zip(residual, weight, strict=True)]])
    feature, split, gain = best_splits(node, min_samples=1, l2=1.0)
    # -2 | 8: 4 / 2 + 64 / 4 - 36 / 5 = 10.8; 4 | 2: 16 / 4 + 4 / 2 - 36 / 5 = -1.2 on input 0.
    assert (feature.tolist(), split.tolist()) == ([0], [0])
    assert gain.tolist() == pytest.approx([10.8])
    # With two samples in each child, input 1's 4 | 2 is left: 16 / 3 + 4 / 3 - 36 / 5 < 0.
    assert best_splits(node, min_samples=2, l2=1.0)[2].tolist() == [0]
    assert best_splits(node, min_samples=2, l2=0.0)[2].tolist() == pytest.approx([8 + 2 - 9])


def test_a_gain_adds_up_over_outputs():
    one = torch.tensor([[[[1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]]])
    two = torch.tensor([[[[1.0, -1.0, 0.0], [0.0, 3.0, -3.0], [1.0, 1.0, 1.0]]]])
    assert best_splits(one, 1, 0.0)[1:] == (torch.tensor([0]), torch.tensor([1.5]))
    assert best_splits(two, 1, 0.0)[1:] == (torch.tensor([1]), torch.tensor([4.5 + 9.0]))


def test_values_are_means_drawn_to_zero():
    sums = torch.tensor([[6.0, 0.0, -2.0], [3.0, 1.0, 4.0], [2.0, 0.0, 3.0]])
    assert leaf_values(sums, 1.0).tolist() == [[2.0, 1.0], [0.0, 1.0], [-0.5, 1.0]]
    assert leaf_values(sums[:, :1], 0.0).tolist() == [[3.0, 1.5]]


def test_samples_go_down_a_tree():
    bins = torch.tensor([[[0, 3, 3, 3], [9, 1, 2, 2], [0, 0, 0, 5]]], dtype=torch.uint8)
    feature = torch.tensor([0, 1, 1, 2, 2, 2, 2], dtype=torch.int16)
    split = torch.tensor([2, 9, 1, 4, 4, 4, 4], dtype=torch.uint8)
    nodes = [nodes_at(bins, feature, split, depth)[0].tolist() for depth in range(4)]
    assert nodes == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 2, 3, 3], [0, 4, 6, 7]]


def grown(x, residual, depth, min_samples, bins=64):
    """A tree of pooled samples by `best_splits`; returns its predictions."""
    x, values = x[None], torch.cat([residual, torch.ones_like(residual[:, :1])], dim=1).T[None]
    binned = to_bins(x, bin_ends(grid_counts(x)[0], bins))
    feature = torch.zeros(2**depth - 1, dtype=torch.int16)
    split = torch.full_like(feature, bins - 1, dtype=torch.uint8)
    for level in range(depth):
        node = nodes_at(binned, feature, split, level)
        histogram = histograms(binned, node, values, 2**level, bins)[0]
        f, s, gain = best_splits(histogram, min_samples, 0.0)
        here = slice(2**level - 1, 2 ** (level + 1) - 1)
        feature[here] = f.to(torch.int16)
        split[here] = torch.where(gain > 1e-9, s, bins - 1).to(torch.uint8)
    leaf = nodes_at(binned, feature, split, depth)
    return leaf_values(node_sums(leaf, values, 2**depth)[0], 0.0)[leaf[0]]


@pytest.mark.parametrize(("depth", "min_samples"), [(1, 1), (3, 5), (4, 30)])
def test_a_tree_is_scikit_learns(depth, min_samples):
    rng = np.random.default_rng(depth)
    x = rng.integers(0, 12, size=(800, 4)) / 4
    y = np.sin(x[:, 0]) + (x[:, 1] > 1) * x[:, 2] + 0.3 * rng.normal(size=800)
    tree = HistGradientBoostingRegressor(
        learning_rate=1.0, max_iter=1, max_depth=depth, max_leaf_nodes=None,
        min_samples_leaf=min_samples, early_stopping=False,
    ).fit(x, y)  # fmt: skip
    residual = torch.from_numpy(y - y.mean())[:, None]
    found = y.mean() + grown(torch.from_numpy(x), residual, depth, min_samples)[:, 0].numpy()
    # It adds up single-precision gradients.
    np.testing.assert_allclose(found, tree.predict(x), rtol=1e-5, atol=1e-5)
