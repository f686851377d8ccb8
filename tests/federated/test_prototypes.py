import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from stforecast.federated.core import prototypes as module
from stforecast.federated.core.prototypes import (
    PrototypeMeans,
    attract_repel_loss,
    batch_distance,
    by_key,
    instance_distance,
    jensen_shannon,
    nearest_prototype,
    weighted_prototypes,
)

CLIENTS, KEYS, WIDTH = 3, 4, 5


def randn(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def test_means_by_key():
    g = torch.Generator().manual_seed(0)
    means = PrototypeMeans(KEYS)
    seen = {}
    for batch in range(3):
        features = randn(CLIENTS, 6, WIDTH, seed=batch)
        keys = torch.randint(KEYS - 1, (CLIENTS, 6), generator=g)  # The last key is never seen.
        means.add(features, keys)
        for i in range(CLIENTS):
            for feature, key in zip(features[i], keys[i].tolist(), strict=True):
                seen.setdefault((i, key), []).append(feature)
    prototypes = means.means()
    assert prototypes.shape == (CLIENTS, KEYS, WIDTH)
    for i in range(CLIENTS):
        for key in range(KEYS):
            expected = seen.get((i, key), [torch.zeros(WIDTH, dtype=torch.float64)])
            torch.testing.assert_close(prototypes[i, key], torch.stack(expected).mean(0))
    assert not prototypes[:, -1].any()


def test_no_gradient_flows_into_means():
    means = PrototypeMeans(1)
    means.add(torch.ones(1, 2, 3, requires_grad=True), torch.zeros(1, 2, dtype=torch.long))
    assert not means.means().requires_grad


def test_means_of_nothing_are_an_error():
    with pytest.raises(ValueError, match="no features"):
        PrototypeMeans(1).means()


def test_a_key_out_of_range_is_refused():
    with pytest.raises(RuntimeError):
        PrototypeMeans(2).add(torch.ones(2, 1, 1), torch.tensor([[2], [0]]))


def scipys(p, q):
    """SciPy's distance, squared, of softmax distributions."""
    p, q = p.double().softmax(-1).numpy(), q.double().softmax(-1).numpy()
    return [[jensenshannon(a, b) ** 2 for b in q] for a in p]


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 3.0, 30.0, 60.0])
@pytest.mark.parametrize("width", [6, 5000])
def test_divergence_is_that_of_scipy(scale, width):
    """By the series, and by the plain sum where logits are too far apart for it."""
    p, q = scale * randn(3, width), scale * randn(4, width, seed=1)
    np.testing.assert_allclose(jensen_shannon(p, q), scipys(p, q), rtol=1e-9, atol=2e-10)


def test_divergence_in_blocks(monkeypatch):
    p, q = randn(3, 100), randn(4, 100, seed=1)
    monkeypatch.setattr(module._Separation, "in_cache", 500)
    monkeypatch.setattr(module._Separation, "in_memory", 2000)
    monkeypatch.setattr(module._Separation, "block", 2)
    np.testing.assert_allclose(jensen_shannon(p, q), scipys(p, q), rtol=1e-9, atol=2e-10)
    np.testing.assert_allclose(jensen_shannon(p), scipys(p, p), rtol=1e-9, atol=2e-10)


@pytest.mark.parametrize("scale", [0.0, 1.0, 60.0])
def test_divergence_among_one_group(scale):
    p = scale * randn(5, 500)
    found = jensen_shannon(p)
    np.testing.assert_allclose(found, jensen_shannon(p, p), rtol=1e-9, atol=2e-10)
    assert torch.equal(found, found.mT)


def test_divergence_lies_between_0_and_log_2():
    apart = torch.eye(2).log()
    expected = math.log(2) * (1 - torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(jensen_shannon(apart, apart), expected)
    alike = randn(5, 1000).float()
    same = jensen_shannon(alike, alike)
    assert (same >= 0).all()
    assert not same.diagonal().any()


def test_divergence_of_nobody():
    assert jensen_shannon(torch.zeros(0, 3), torch.ones(2, 3) / 3).shape == (0, 2)


def test_mixtures_of_prototypes():
    prototypes = randn(CLIENTS, KEYS, WIDTH)
    weights = torch.tensor([[1.0, 0, 0], [1, 1, 2], [0, 0, 0]], dtype=torch.float64)
    mixed = weighted_prototypes(prototypes, weights)
    a, b, c = prototypes
    expected = torch.stack([a, (a + b + 2 * c) / 4, torch.zeros_like(a)])
    torch.testing.assert_close(mixed, expected)


def test_more_receivers_than_clients():
    prototypes = randn(1, KEYS, WIDTH)
    mixed = weighted_prototypes(prototypes, torch.ones(2, 1, dtype=torch.float64))
    torch.testing.assert_close(mixed, prototypes.expand(2, -1, -1))


def test_the_prototype_of_each_sample():
    prototypes = randn(2, KEYS, WIDTH)
    keys = torch.tensor([[3, 0, 0], [1, 2, 3]])
    chosen = by_key(prototypes, keys)
    for i in range(2):
        for b in range(3):
            assert torch.equal(chosen[i, b], prototypes[i, keys[i, b]])


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_contrast_is_its_formula(temperature):
    features, attract, repel = (randn(2, 3, WIDTH, seed=seed) for seed in range(3))
    a = torch.cosine_similarity(features, attract, dim=-1) / temperature
    b = torch.cosine_similarity(features, repel, dim=-1) / temperature
    expected = -torch.log(a.exp() / (a.exp() + b.exp()))
    loss = attract_repel_loss(features, attract, repel, temperature)
    torch.testing.assert_close(loss, expected)


def test_contrast_by_hand():
    one, other = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 3.0]]])
    near = attract_repel_loss(one, one, other, 1.0)
    assert near.item() == pytest.approx(math.log(1 + math.exp(-1)))
    far = attract_repel_loss(one, -one, one, 0.02)  # e^{100} overflows single precision.
    assert far.item() == pytest.approx(100)


@pytest.mark.parametrize("missing", ["attract", "repel"])
def test_a_sample_without_a_prototype_has_no_loss_and_no_gradient(missing):
    features = randn(1, 2, WIDTH).requires_grad_()
    sides = {"attract": randn(1, 2, WIDTH, seed=1), "repel": randn(1, 2, WIDTH, seed=2)}
    sides[missing][0, 0] = 0
    loss = attract_repel_loss(features, **sides, temperature=0.02)
    assert loss[0, 0] == 0
    assert loss[0, 1] > 0
    loss.sum().backward()
    assert not features.grad[0, 0].any()
    assert features.grad[0, 1].any()


def test_contrast_survives_features_of_zero():
    features = torch.zeros(1, 1, WIDTH, dtype=torch.float64, requires_grad=True)
    loss = attract_repel_loss(features, randn(1, 1, WIDTH), randn(1, 1, WIDTH, seed=1), 0.02)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert features.grad.isfinite().all()


def test_samples_whose_key_has_no_prototype_count_as_0():
    features = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]], requires_grad=True)
    keys, known = torch.tensor([[0, 1]]), torch.tensor([[True, False]])
    distance = instance_distance(features, keys, torch.zeros(1, 2, 2), known)
    assert distance.tolist() == [(1 + 0) / 2 / 2]
    distance.sum().backward()
    assert not features.grad[0, 1].any()


def test_prototypes_far_from_zero_are_told_apart():
    prototypes = 10_000 + torch.arange(30.0)[None, :, None].expand(1, 30, 4)
    features = prototypes.flip(1).contiguous()
    known = torch.ones(1, 30, dtype=torch.bool)
    scores = nearest_prototype(features, prototypes, known)
    # Whole numbers of this size are exact in single precision, and so are their differences.
    expected = 4 * (features[:, :, None, 0] - prototypes[:, None, :, 0]).double().square()
    torch.testing.assert_close(-scores.double(), expected)
    assert scores.argmax(2).tolist() == [list(range(29, -1, -1))]


@pytest.mark.parametrize(
    ("weight", "shares"), [("keys", (1 / 3, 1 / 3)), ("samples", (1 / 2, 1 / 4))]
)
def test_batch_means_are_compared_with_prototypes(weight, shares):
    features = torch.tensor([[[1.0, 3.0], [3.0, 5.0], [9.0, 9.0], [4.0, 4.0]]])
    keys = torch.tensor([[0, 0, 1, 2]])
    prototypes = torch.tensor([[[0.0, 0.0], [9.0, 8.0], [7.0, 7.0], [1.0, 1.0]]])
    known = torch.tensor([[True, True, False, True]])
    # Key 0: mean (2, 4), error (4 + 16)/2; key 1: 1/2; key 2 has no prototype, key 3 no sample.
    expected = 10 * shares[0] + 0.5 * shares[1]
    found = batch_distance(features, keys, prototypes, known, weight)
    assert found.tolist() == [pytest.approx(expected)]
