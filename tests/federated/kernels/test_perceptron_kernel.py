"""An epoch of the perceptron, in C, against the same in torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stforecast.federated.kernels.compiler import library
from stforecast.federated.kernels.perceptron import EpochKernel

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

CLIENTS, INPUTS, USED, READINGS, NEWEST, HIDDEN, FEATURES = 2, 9, 8, 6, 2, 32, 16
ADAM = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
WRAP = 2**32


def mixed(x):
    x = (x ^ x >> 16) * 0x21F0AAAD % WRAP
    x = (x ^ x >> 15) * 0xD35A2D97 % WRAP
    return x ^ x >> 15


def kept(seeds, n, p):
    """Factors of the units of all samples, in the order of an epoch."""
    at = np.arange(n * (HIDDEN + FEATURES), dtype=np.uint64)
    draws = mixed((mixed(at ^ seeds[0]) + seeds[1]) % WRAP)
    return torch.from_numpy((draws >= int(p * WRAP)) / (1 - p)).view(n, HIDDEN + FEATURES)


def samples_of(n, outputs, dtype):
    made = torch.Generator().manual_seed(3)
    x, known, y = (
        torch.randn(CLIENTS, n, size, generator=made, dtype=dtype)
        for size in (INPUTS, outputs, outputs)
    )
    mask = torch.rand(CLIENTS, n, outputs, generator=made) > 0.2
    mask[0, :3] = False
    return {"x": x, "known": known, "y": 2 * y, "mask": mask}


def layers_of(outputs, dtype):
    made = torch.Generator().manual_seed(4)
    sizes = (INPUTS, HIDDEN), (HIDDEN, FEATURES), (FEATURES, outputs)
    return [
        torch.randn(CLIENTS, *shape, generator=made, dtype=dtype) / 3
        for size in sizes
        for shape in (size, size[1:])
    ]


def in_torch(kernel, samples, order, seeds, layers):
    """Return the losses and the layers of each client after an epoch."""
    losses, trained = [], []
    for c in range(CLIENTS):
        x, known, y, mask = (samples[name][c] for name in ("x", "known", "y", "mask"))
        x = x.clone()
        base = x[:, NEWEST].clone()
        x[:, :READINGS] -= base[:, None]
        x[:, NEWEST], x[:, USED:] = base, 0
        own = [layer[c].clone().requires_grad_() for layer in layers]
        factors = kept(seeds[c].tolist(), len(x), kernel.dropout).to(x.dtype)
        adam = torch.optim.Adam(own, **ADAM)
        losses.append([])
        for b in range(kernel.batches(len(x))):
            place = slice(b * kernel.batch, (b + 1) * kernel.batch)
            rows, k = order[c][place], factors[place]
            h = F.silu(x[rows] @ own[0] + own[1]) * k[:, :HIDDEN]
            f = F.silu(h @ own[2] + own[3]) * k[:, HIDDEN:]
            y_hat = known[rows] + f @ own[4] + own[5]
            error = F.huber_loss(y_hat, y[rows], reduction="none", delta=kernel.delta)
            loss = error[mask[rows]].sum() / mask[rows].sum().clamp(min=1)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses[-1].append(loss.detach())
        trained.append([t.detach() for t in own])
    return torch.tensor(losses), [torch.stack(of) for of in zip(*trained, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("n", "outputs", "full", "dropout"),
    [(10, 1, False, 0.0), (11, 3, False, 0.3), (11, 24, True, 0.1), (4, 16, False, 0.1)],
)
def test_an_epoch_equals_torch(dtype, n, outputs, full, dropout):
    kernel = EpochKernel(4, full, USED, READINGS, NEWEST, 0.5, dropout)
    samples, layers = samples_of(n, outputs, dtype), layers_of(outputs, dtype)
    order = torch.stack([torch.arange(n).flip(0), torch.arange(n).roll(3)])
    seeds = torch.tensor([[1, WRAP - 1], [3_000_000_000, 4]])
    expected, trained = in_torch(kernel, samples, order, seeds, layers)
    moments = {m: [torch.zeros_like(t) for t in layers] for m in ("exp_avg", "exp_avg_sq")}
    moments["steps"] = [t.new_zeros(CLIENTS) for t in layers]
    padded = {name: F.pad(t, (0, 0, 0, 2)) for name, t in samples.items()}
    losses = kernel.run(padded, order, seeds, layers, moments, **ADAM)
    close = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 0, "atol": 2e-4}
    torch.testing.assert_close(losses, expected.to(dtype), check_dtype=False, **close)
    for own, other in zip(layers, trained, strict=True):
        torch.testing.assert_close(own, other, **close)
    assert [int(n) for n in moments["steps"][0]] == [kernel.batches(n)] * CLIENTS


def test_units_are_dropped_as_often_as_asked():
    drawn = kept([5, 6], 2000, 0.1)
    share = float((drawn == 0).double().mean())
    assert abs(share - 0.1) < 6 * np.sqrt(0.09 / drawn.numel())
