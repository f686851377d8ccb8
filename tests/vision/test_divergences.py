"""Entropies and divergences of logits against scipy."""

import torch
from scipy import stats

from vision.task import entropy, kl_divergence


def test_they_are_those_of_the_probabilities():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 4, 5, generator=g, dtype=torch.float64).unbind()
    p, q = a.softmax(-1).numpy(), b.softmax(-1).numpy()
    torch.testing.assert_close(entropy(a), torch.from_numpy(stats.entropy(p, axis=-1)))
    torch.testing.assert_close(kl_divergence(a, b), torch.from_numpy(stats.entropy(p, q, axis=-1)))
    torch.testing.assert_close(kl_divergence(a, a + 1), torch.zeros(3, 4, dtype=torch.float64))
