"""Histogram-based regression trees with vector-valued leaves, from sums over clients.

Everything that a tree needs are sums: counts of values on a grid for the bins, and sums of
residuals over the samples in each bin of a node. So the tree of the clients' summed histograms is
the tree of their pooled samples with the same bins.

A tree has a fixed depth: node i has the children 2i + 1 and 2i + 2. A sample goes right if its bin
of the node's feature is above the node's `split`. A node that is not split sends all samples left.

Ke, Meng, Finley, Wang, Chen, Ma, Ye, Liu: LightGBM, NeurIPS 2017, Algorithm 1 (histograms). Chen,
Guestrin: XGBoost, KDD 2016, arXiv 1603.02754, Eqs. 5 and 7 (leaf values and gain).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

GRID = 1024
"""Cells of the grid on which the values of an input are counted."""

LARGEST = 100.0
"""Values beyond ± this count as those of the grid's outermost cells."""


def grid_ends(dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the upper ends of all grid cells but the last, `(GRID - 1,)`.

    They are evenly spaced after asinh, so cells are 0.01 wide at 0 and 1 wide at ± 100.
    """
    even = torch.linspace(-1, 1, GRID + 1, dtype=torch.float64)[1:-1]
    return (even * math.asinh(LARGEST)).sinh().to(dtype)


def grid_counts(x: Tensor) -> Tensor:
    """Count the values of each input `(clients, samples, inputs)` in the cells of the grid.

    The counts are `(clients, inputs, GRID)`, in the type of `x`.
    """
    cells = torch.bucketize(x.contiguous(), grid_ends(x.dtype).to(x.device)).transpose(1, 2)
    counts = x.new_zeros(*cells.shape[:2], GRID)
    return counts.scatter_add_(2, cells, torch.ones_like(counts[..., :1]).expand(cells.shape))


def bin_ends(counts: Tensor, bins: int) -> Tensor:
    """Return the upper ends `(inputs, bins)` of bins of about equally many values.

    If at most `bins` grid cells have values, each of them is a bin; `LARGEST` ends all that are not
    needed. Counts `(inputs, GRID)` below 0, from noise, count as 0.
    """
    ends = counts.new_full((len(counts), bins), LARGEST)
    upper = grid_ends(counts.dtype).to(counts.device)
    shares = torch.arange(1, bins, device=counts.device) / bins
    for row, of_input in zip(ends, counts.clamp(min=0), strict=True):
        last = of_input.nonzero().flatten()[:-1]
        if len(last) >= bins:
            filled = of_input.cumsum(0)
            last = torch.searchsorted(filled, shares.to(filled) * filled[-1]).unique()
            last = last[last < GRID - 1]
        row[: len(last)] = upper[last]
    return ends


def to_bins(x: Tensor, ends: Tensor) -> Tensor:
    """Return each value's bin, `(clients, inputs, samples)` uint8: the number of ends below it."""
    columns = x.flatten(0, 1).T.contiguous()
    if torch.jit.is_tracing():  # ONNX has no search.
        bins = (columns[..., None] > ends[:, None, :-1]).sum(-1).to(torch.uint8)
    else:
        bins = torch.searchsorted(ends[:, :-1].contiguous(), columns).to(torch.uint8)
    result: Tensor = bins.unflatten(1, x.shape[:2]).transpose(0, 1).contiguous()
    return result


def node_sums(node: Tensor, values: Tensor, n_nodes: int) -> Tensor:
    """Sum values `(clients, channels, samples)` over the samples of each of n nodes."""
    sums = values.new_zeros(*values.shape[:2], n_nodes)
    return sums.scatter_add_(2, node[:, None].expand(values.shape), values)


def histograms(bins: Tensor, node: Tensor, values: Tensor, n_nodes: int, n_bins: int) -> Tensor:
    """Sum values over the samples in each bin of each node.

    Args:
        bins: `(clients, inputs, samples)` uint8.
        node: `(clients, samples)` node of each sample; below 0 for samples to leave out.
        values: `(clients, channels, samples)`.
        n_nodes: number of nodes.
        n_bins: number of bins.

    Returns:
        `(clients, n_nodes, inputs, channels, n_bins)`.
    """
    clients, inputs, _ = bins.shape
    rows = (node >= 0).flatten().nonzero().squeeze(1)
    client = torch.arange(clients, device=node.device)[:, None]
    first = ((client * n_nodes + node) * n_bins).flatten()[rows]
    channels = values.transpose(0, 1).flatten(1)[:, rows]
    columns = bins.transpose(0, 1).flatten(1)[:, rows]
    sums = values.new_zeros(inputs, len(channels), clients * n_nodes * n_bins)
    for of_input, column in zip(sums, columns, strict=True):
        place = first + column
        for total, channel in zip(of_input, channels, strict=True):
            total.scatter_add_(0, place, channel)
    parts = sums.view(inputs, len(channels), clients, n_nodes, n_bins)
    return parts.permute(2, 3, 0, 1, 4).contiguous()


def best_splits(histogram: Tensor, min_samples: float, l2: float) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the split of each node that lowers the squared error most.

    The gain is that of Chen and Guestrin's Eq. 7, without its factor ½ and γ, summed over channels:
    ‖G_left‖² / (n_left + λ) + ‖G_right‖² / (n_right + λ) - ‖G‖² / (n + λ).

    Args:
        histogram: `(nodes, inputs, channels, bins)`; the last channel is the weight n.
        min_samples: least weight of a child.
        l2: penalty λ.

    Returns:
        Input and last bin of the left child of each node, and the gain, each `(nodes,)`; the gain
        of a node without a split is 0.

    >>> r, n = [-1.0, -1.0, 4.0], [1.0, 1.0, 2.0]
    >>> best_splits(torch.tensor([[[r, n]]]), min_samples=1, l2=0)
    (tensor([0]), tensor([1]), tensor([9.]))
    """
    up_to = histogram.cumsum(3)
    left, whole = up_to[..., :-1], up_to[..., -1:]
    right = whole - left
    of_left, of_right, of_whole = (
        sums[:, :, :-1].square().sum(2) / _penalised(sums[:, :, -1], l2)
        for sums in (left, right, whole)
    )
    gain = of_left + of_right - of_whole
    heavy = (left[:, :, -1] >= min_samples) & (right[:, :, -1] >= min_samples)
    best, place = torch.where(heavy, gain, 0).flatten(1).max(1)
    ends = histogram.shape[3] - 1
    return place // ends, place % ends, best.clamp(min=0)


def leaf_values(sums: Tensor, l2: float) -> Tensor:
    """Return G / (n + λ) of each node (Chen and Guestrin, Eq. 5), `(nodes, channels - 1)`.

    The last of the channels of `sums` `(channels, nodes)` is the weight n.
    """
    return (sums[:-1] / _penalised(sums[-1], l2)).T


def _penalised(weight: Tensor, l2: float) -> Tensor:
    """Return n + λ, positive even if n is 0, or below 0 from noise."""
    return (weight.clamp(min=0) + l2).clamp(min=1e-9)


def nodes_at(bins: Tensor, feature: Tensor, split: Tensor, depth: int) -> Tensor:
    """Return the node of each sample at a depth of one tree, counted within that level.

    All nodes' comparisons are made at once on the CPU, by NumPy's operations on bytes, which takes
    a fifth of the time of following each sample down the tree.

    Args:
        bins: `(clients, inputs, samples)` uint8.
        feature: `(nodes,)` input of each node of the tree.
        split: `(nodes,)` uint8, largest bin that goes left.
        depth: number of splits that a sample passes, at most 8.
    """
    if torch.jit.is_tracing():  # NumPy's results would be constants of the exported graph.
        nodes = torch.zeros_like(bins[:, 0], dtype=torch.long)
        for level in range(depth):
            at = 2**level - 1 + nodes
            value = bins.gather(1, feature.long()[at][:, None]).squeeze(1)
            nodes = 2 * nodes + (value > split[at])
        return nodes
    columns = bins.transpose(0, 1).flatten(1).cpu().numpy()
    above = 2**depth - 1
    right = columns[feature[:above].cpu().numpy()] > split[:above, None].cpu().numpy()
    node = np.zeros(columns.shape[1], np.uint8)
    turns: list[np.ndarray] = []
    for level in range(depth):
        turn = right[2**level - 1 : 2 ** (level + 1) - 1]
        for earlier in turns:  # Each keeps the half of the nodes that a sample can be in.
            half = len(turn) // 2
            turn = turn[:half] ^ (earlier & (turn[:half] ^ turn[half:]))
        turns.append(turn[0])
        node = 2 * node + turn[0]
    return torch.from_numpy(node).to(bins.device, torch.long).view(len(bins), -1)
