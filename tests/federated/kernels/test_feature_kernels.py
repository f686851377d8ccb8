"""What methods make of features, in C, against the same in torch, for values and gradients."""

import pytest
import torch

from stforecast.federated import prototypes
from stforecast.federated.kernels.compiler import library
from stforecast.federated.kernels.features import add_by_key, attract_repel, filtered_contrast
from stforecast.federated.prototypes import PrototypeMeans, attract_repel_loss, by_key
from stforecast.methods import fuels

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

CLIENTS, BATCH, WIDTH, KEYS = 3, 5, 16, 7
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.fixture
def torch_only(monkeypatch):
    """The methods' own functions, without the kernels."""
    for module in (fuels, prototypes):
        monkeypatch.setattr(module, "usable", lambda *_: False)


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def halves(dtype, width=WIDTH, batch=BATCH):
    """Features and others, parts of one tensor: those of two clients lie apart."""
    both = randn(CLIENTS, 2 * batch, width, dtype=dtype).requires_grad_()
    return both, *both.chunk(2, dim=1)


def filters_of(dtype, batch=BATCH):
    """Positive, zero and negative ones, on and off the diagonal."""
    filters = randn(CLIENTS, batch, batch, dtype=dtype, seed=1)
    filters[0, 0], filters[1, :, 0] = -1, 0
    return filters.requires_grad_()


def gradients(loss, *inputs):
    weights = torch.arange(1, len(loss) + 1, dtype=loss.dtype)
    return torch.autograd.grad((loss * weights).sum(), inputs)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("temperature", [1.0, 0.02, 0.002])
@pytest.mark.parametrize("shape", [{}, {"width": 256, "batch": 24}])
def test_filtered_contrast_is_fuels_intra_loss(torch_only, dtype, temperature, shape):
    both, features, others = halves(dtype, **shape)
    filters = filters_of(dtype, batch=features.shape[1])
    losses = [
        loss(features, others, filters, temperature)
        for loss in (filtered_contrast, fuels.intra_loss)
    ]
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    found, expected = (gradients(loss, both, filters) for loss in losses)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def prototypes_of(dtype, width=WIDTH):
    """Attracting and repelling ones; some are absent."""
    attract, repel = randn(2, CLIENTS, KEYS, width, dtype=dtype, seed=2)
    attract[0, 0], repel[1, 3] = 0, 0
    return attract, repel


def keys_of(batch=BATCH):
    return torch.arange(CLIENTS * batch).view(CLIENTS, batch) % KEYS


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("shape", [{}, {"width": 256, "batch": 24}])
def test_attraction_is_that_of_torch(dtype, temperature, shape):
    both, features, _ = halves(dtype, **shape)
    attract, repel = prototypes_of(dtype, features.shape[2])
    keys = keys_of(features.shape[1])
    named = by_key(attract, keys), by_key(repel, keys)
    losses = [
        attract_repel(features, attract, repel, keys, temperature),
        attract_repel_loss(features, *named, temperature).mean(1),
    ]
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    ((found,), (expected,)) = (gradients(loss, both) for loss in losses)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_gradients_are_those_of_finite_differences():
    _, features, others = halves(torch.float64, batch=2)
    filters = (randn(CLIENTS, 2, 2).abs() + 0.1).requires_grad_()
    inputs = features.detach().requires_grad_(), others.detach().requires_grad_(), filters
    assert torch.autograd.gradcheck(lambda *a: filtered_contrast(*a, 0.5), inputs)
    attract, repel = prototypes_of(torch.float64)
    keys = keys_of(2)
    assert torch.autograd.gradcheck(
        lambda f: attract_repel(f, attract, repel, keys, 0.5), inputs[:1]
    )


def test_losses_stay_finite_between_opposite_vectors():
    """As in float32 with τ = 0.002, which makes exponents of ±500."""
    features = torch.eye(16)[None].requires_grad_()
    opposite = -features.detach()
    intra = filtered_contrast(features, opposite, torch.ones(1, 16, 16), 0.002)
    inter = attract_repel(features, opposite, -opposite, torch.arange(16)[None], 0.002)
    assert intra.item() == pytest.approx(500 + torch.tensor(15.0).log().item(), rel=1e-5)
    assert inter.item() == pytest.approx(1000)
    (intra + inter).sum().backward()
    assert features.grad.isfinite().all()


def test_features_of_zeros_and_absent_prototypes_give_no_gradient():
    features = torch.zeros(1, 2, 16, requires_grad=True)
    filtered_contrast(features, features.detach(), torch.ones(1, 2, 2), 1.0).sum().backward()
    assert torch.equal(features.grad, torch.zeros_like(features))
    absent, there = torch.zeros(1, 3, 16), torch.ones(1, 3, 16)
    keys = torch.tensor([[0, 2]])
    for attract, repel in ((absent, there), (there, absent)):
        some = torch.ones(1, 2, 16, requires_grad=True)
        loss = attract_repel(some, attract, repel, keys, 0.02)
        loss.sum().backward()
        assert loss.item() == 0
        assert torch.equal(some.grad, torch.zeros_like(some))


def test_nan_is_not_hidden():
    features, others = randn(2, 2, 3, 16)
    features[1, 2, 5] = torch.nan
    intra = filtered_contrast(features, others, torch.ones(2, 3, 3, dtype=torch.float64), 1.0)
    attract, repel = randn(2, 2, 4, 16)
    inter = attract_repel(features, attract, repel, torch.zeros(2, 3, dtype=torch.long), 1.0)
    for loss in (intra, inter):
        assert loss.isnan().tolist() == [False, True]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_sums_by_key_are_those_of_torch(torch_only, dtype):
    _, features, _ = halves(dtype)
    keys = keys_of() % 4
    sums, counts = (
        torch.zeros(CLIENTS, KEYS, WIDTH, dtype=dtype),
        torch.zeros(CLIENTS, KEYS, dtype=dtype),
    )
    means = PrototypeMeans(KEYS)
    for _ in range(2):
        add_by_key(features, keys, sums, counts)
        means.add(features, keys)
    assert torch.equal(counts.int(), means.counts)
    assert torch.equal(counts[:, 4:], torch.zeros(CLIENTS, KEYS - 4, dtype=dtype))
    torch.testing.assert_close(sums / counts.clamp(min=1)[..., None], means.means())


@pytest.mark.parametrize("key", [-1, KEYS])
def test_keys_out_of_range_are_refused(key):
    _, features, _ = halves(torch.float32)
    attract, repel = prototypes_of(torch.float32)
    keys = torch.full((CLIENTS, BATCH), key)
    with pytest.raises(IndexError):
        attract_repel(features, attract, repel, keys, 1.0)
    with pytest.raises(IndexError):
        PrototypeMeans(KEYS).add(features, keys)
