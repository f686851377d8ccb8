"""What methods make of features, in C, against the same in torch, for values and gradients."""

import pytest
import torch

from stforecast.federated.core import prototypes
from stforecast.federated.core.prototypes import PrototypeMeans, attract_repel_loss, by_key
from stforecast.federated.kernels.compiler import library
from stforecast.federated.kernels.functions import add_by_key, contrast
from stforecast.methods.fuels import intra_loss

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

CLIENTS, BATCH, WIDTH, KEYS = 3, 5, 16, 7
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def filters_of(dtype, batch=BATCH):
    """Positive, zero and negative ones, on and off the diagonal."""
    filters = randn(CLIENTS, batch, batch, dtype=dtype, seed=1)
    filters[0, 0], filters[1, :, 0] = -1, 0
    return filters.requires_grad_()


def prototypes_of(dtype, width=WIDTH):
    """Attracting and repelling ones; some are absent."""
    attract, repel = randn(2, CLIENTS, KEYS, width, dtype=dtype, seed=2)
    attract[0, 0], repel[1, 3] = 0, 0
    return attract, repel


def keys_of(batch=BATCH):
    return torch.arange(CLIENTS * batch).view(CLIENTS, batch) % KEYS


def within_cells(features, augmented, filters, temperature):
    """The mean of `intra_loss` over cells, whose features lie side by side."""
    slots, cells = filters.shape[1], features.shape[1] // filters.shape[1]
    own, others = (t.unflatten(1, (slots, cells)).unbind(2) for t in (features, augmented))
    losses = [intra_loss(*pair, filters, temperature) for pair in zip(own, others, strict=True)]
    return torch.stack(losses).mean(0)


def plain(encoded, filters, of_keys, temperature, weight):
    """What `contrast` computes, in torch."""
    features, losses = encoded, encoded.new_zeros(CLIENTS)
    if filters is not None:
        features, augmented = encoded.chunk(2, dim=1)
        losses = losses + within_cells(features, augmented, filters, temperature)
    if of_keys is not None:
        attract, repel, keys = of_keys
        named = by_key(attract, keys), by_key(repel, keys)
        losses = losses + weight * attract_repel_loss(features, *named, temperature).mean(1)
    return features, losses


def gradients(features, losses, *inputs):
    """Gradients where the features have another use and clients weigh differently."""
    weights = torch.arange(1, CLIENTS + 1, dtype=losses.dtype)
    further = (features * randn(*features.shape, dtype=losses.dtype, seed=3)).sum()
    return torch.autograd.grad((losses * weights).sum() + further, inputs)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("temperature", [1.0, 0.02, 0.002])
@pytest.mark.parametrize("shape", [{}, {"width": 256, "slots": 24}, {"cells": 3}])
@pytest.mark.parametrize("parts", ["both", "filters", "prototypes"])
def test_contrasts_are_those_of_torch(dtype, temperature, shape, parts):
    shape = {"width": WIDTH, "slots": BATCH, "cells": 1, **shape}
    batch, n_views = shape["slots"] * shape["cells"], 1 if parts == "prototypes" else 2
    encoded = randn(CLIENTS, n_views * batch, shape["width"], dtype=dtype).requires_grad_()
    filters = None if n_views == 1 else filters_of(dtype, shape["slots"])
    of_keys = *prototypes_of(dtype, shape["width"]), keys_of(batch)
    of_keys = None if parts == "filters" else of_keys
    found, expected = (f(encoded, filters, of_keys, temperature, 5.0) for f in (contrast, plain))
    tolerance = TOLERANCES[dtype]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    inputs = [t for t in (encoded, filters) if t is not None]
    for a, b in zip(gradients(*found, *inputs), gradients(*expected, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_gradients_are_those_of_finite_differences():
    encoded = randn(CLIENTS, 4, WIDTH).requires_grad_()
    filters = (randn(CLIENTS, 2, 2).abs() + 0.1).requires_grad_()
    given = (*prototypes_of(torch.float64), keys_of(2)), 0.5, 2.0
    assert torch.autograd.gradcheck(lambda e, w: contrast(e, w, *given), (encoded, filters))


def test_parts_of_larger_tensors_give_the_same():
    """As the batches of an epoch are, and prototypes that several clients share."""
    encoded, (attract, repel) = randn(CLIENTS, 2 * BATCH, WIDTH), prototypes_of(torch.float64)
    keys = keys_of(3 * BATCH)
    shared = attract[:1].expand(CLIENTS, -1, -1), repel[:1].expand(CLIENTS, -1, -1)
    parts = *shared, keys[:, BATCH : 2 * BATCH]
    whole = *(t.clone() for t in shared), keys[:, BATCH : 2 * BATCH].clone()
    wide = torch.cat([encoded, encoded], dim=2)[..., :WIDTH]
    losses = [
        contrast(e, filters_of(torch.float64), of_keys, 0.1)[1]
        for e, of_keys in ((wide, parts), (encoded, whole))
    ]
    assert torch.equal(*losses)


def test_losses_stay_finite_between_opposite_vectors():
    """As in float32 with τ = 0.002, which makes exponents of ±500."""
    units = torch.eye(16)[None]
    encoded = torch.cat([units, -units], dim=1).requires_grad_()
    filters, of_keys = torch.ones(1, 16, 16), (-units, units, torch.arange(16)[None])
    _, intra = contrast(encoded, filters, None, 0.002)
    _, both = contrast(encoded, filters, of_keys, 0.002)
    assert intra.item() == pytest.approx(500 + torch.tensor(15.0).log().item(), rel=1e-5)
    assert (both - intra).item() == pytest.approx(1000)
    both.sum().backward()
    assert encoded.grad.isfinite().all()


def test_features_of_zeros_and_absent_prototypes_give_no_gradient():
    encoded = torch.zeros(1, 4, 16, requires_grad=True)
    contrast(encoded, torch.ones(1, 2, 2), None, 1.0)[1].sum().backward()
    assert torch.equal(encoded.grad, torch.zeros_like(encoded))
    absent, there = torch.zeros(1, 3, 16), torch.ones(1, 3, 16)
    for attract, repel in ((absent, there), (there, absent)):
        some = torch.ones(1, 2, 16, requires_grad=True)
        _, loss = contrast(some, None, (attract, repel, torch.tensor([[0, 2]])), 0.02)
        loss.sum().backward()
        assert loss.item() == 0
        assert torch.equal(some.grad, torch.zeros_like(some))


@pytest.mark.parametrize("part", ["filters", "prototypes"])
def test_nan_is_not_hidden(part):
    encoded = randn(2, 6, 16)
    encoded[1, 2, 5] = torch.nan
    filters = torch.ones(2, 3, 3, dtype=torch.float64) if part == "filters" else None
    of_keys = (*randn(2, 2, 4, 16), torch.zeros(2, 6, dtype=torch.long))
    _, loss = contrast(encoded, filters, None if part == "filters" else of_keys, 1.0)
    assert loss.isnan().tolist() == [False, True]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_sums_by_key_are_those_of_torch(monkeypatch, dtype):
    monkeypatch.setattr(prototypes, "usable", lambda *_: False)
    features, _ = randn(CLIENTS, 2 * BATCH, WIDTH, dtype=dtype).chunk(2, dim=1)
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
    features, of_clients = randn(CLIENTS, BATCH, WIDTH).float(), prototypes_of(torch.float32)
    keys = torch.full((CLIENTS, BATCH), key)
    with pytest.raises(IndexError):
        contrast(features, None, (*of_clients, keys), 1.0)
    with pytest.raises(IndexError):
        PrototypeMeans(KEYS).add(features, keys)
