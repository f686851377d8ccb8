"""Standardisation by moments that several clients pool."""

import torch

from stforecast.federated.uploads.uplink import dequantise, quantise
from vision.methods.anchors import moments_of, pooled_moments, standardised


def test_moments_of_clients_standardise_their_pooled_features():
    g = torch.Generator().manual_seed(0)
    a, b = (3 + torch.randn(1, n, 4, generator=g, dtype=torch.float64) for n in (5, 8))
    moments = pooled_moments(torch.cat([moments_of(a), moments_of(b)]), torch.tensor([5, 8]))
    pooled = torch.cat([a, b], dim=1)
    expected = (pooled - pooled.mean(1)) / pooled.std(1, correction=0)
    torch.testing.assert_close(standardised(pooled, moments[None]), expected)


def test_features_alike_in_all_samples_stay_finite():
    x = torch.full((1, 3, 2), 7.0)
    assert torch.equal(standardised(x, moments_of(x)), torch.zeros_like(x))


def test_four_bits_change_a_deviation_by_a_factor_and_never_to_zero():
    """Deviations from 0.01 to 10, so logarithms up to 4.6, in steps of a seventh of it."""
    deviations = torch.logspace(-2, 1, 30)
    moments = torch.stack([torch.zeros(30), deviations.log()])[None]
    sent = dequantise(*quantise(moments, 4), moments, 4)
    factors = standardised(torch.ones(1, 1, 30), sent)[0, 0] * deviations
    bound = torch.tensor(100.0).pow(1 / 14) * 1.001
    assert factors.max() <= bound
    assert factors.min() >= 1 / bound
