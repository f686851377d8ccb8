"""Standardisation by sums that several clients add up."""

import torch

from vision.methods.standardise import standardised, sums_of


def test_sums_of_clients_standardise_their_pooled_features():
    g = torch.Generator().manual_seed(0)
    a, b = (3 + torch.randn(1, n, 4, generator=g, dtype=torch.float64) for n in (5, 8))
    sums, pooled = sums_of(a) + sums_of(b), torch.cat([a, b], dim=1)
    found = standardised(pooled, sums, torch.tensor([13]))
    expected = (pooled - pooled.mean(1)) / pooled.std(1, correction=0)
    torch.testing.assert_close(found, expected)
