"""Convolutions and pooling in C against torch's, client by client, for values and gradients."""

import math

import pytest
import torch
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import library
from stforecast.federated.kernels.functions import (
    relu_pool,
    stacked_convolution,
)

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

CLIENTS, BATCH = 2, 3


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def channels_first(x):
    return x.movedim(-1, 1)


@pytest.mark.parametrize("kept", [1.0, 0.2], ids=["dense", "sparse"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "height", "width"),
    [(16, 16, 3, 7, 5), (32, 80, 1, 4, 4), (16, 32, 5, 5, 13), (48, 16, 3, 4, 21)],
)
def test_a_convolution_is_torchs_for_each_client(
    inputs, outputs, side, height, width, padding, bias, kept
):
    x = randn(CLIENTS, BATCH, height, width, inputs).requires_grad_()
    w = randn(CLIENTS, outputs, inputs, side, side, seed=1).requires_grad_()
    b = randn(CLIENTS, outputs, seed=2).requires_grad_() if bias else None
    y = stacked_convolution(x, w, b, padding)
    expected = torch.stack(
        [
            F.conv2d(channels_first(x[i]), w[i], None if b is None else b[i], padding=padding)
            for i in range(CLIENTS)
        ]
    ).movedim(2, -1)
    torch.testing.assert_close(y, expected)
    inputs = [t for t in (x, w, b) if t is not None]
    factor = randn(*y.shape, seed=3)
    factor[0] *= randn(*factor[0].shape, seed=4).argsort(-1) < kept * outputs
    for own, torchs in zip(
        torch.autograd.grad(y, inputs, factor),
        torch.autograd.grad(expected, inputs, factor),
        strict=True,
    ):
        torch.testing.assert_close(own, torchs)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 4), (4, 7), (3, 3)])
def test_pooling_is_torchs_also_among_equal_pixels(height, width):
    x = randn(CLIENTS, BATCH, height, width, 16).mul(2).round().requires_grad_()
    y = relu_pool(x)
    flat = channels_first(x.flatten(0, 1))
    expected = F.max_pool2d(F.relu(flat), 2).movedim(1, -1).view(y.shape)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    factor = randn(*y.shape, seed=1)
    (own,), (torchs,) = (torch.autograd.grad(z, x, factor) for z in (y, expected))
    torch.testing.assert_close(own, torchs, rtol=0, atol=0)


def test_pooling_keeps_a_nan_so_that_a_diverged_client_is_seen():
    x = torch.zeros(1, 1, 2, 2, 16, dtype=torch.float64)
    x[..., 1, 0, 3] = math.nan
    assert relu_pool(x).isnan().flatten().nonzero().flatten().tolist() == [3]
