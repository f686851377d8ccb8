"""The compiled GRU against torch's, for values and gradients."""

import pytest
import torch

from stforecast.federated.kernels import gru

pytestmark = pytest.mark.skipif(gru.library() is None, reason="no C compiler here")

CLIENTS, BATCH, STEPS, INPUT, HIDDEN = 3, 4, 5, 2, 16


def tensors(dtype, input_size=INPUT, hidden=HIDDEN, steps=STEPS, batch=BATCH):
    g = torch.Generator().manual_seed(0)
    shapes = [
        (CLIENTS, batch, steps, input_size),
        (CLIENTS, input_size, 3 * hidden),
        (CLIENTS, hidden, 3 * hidden),
        (CLIENTS, 3 * hidden),
        (CLIENTS, 3 * hidden),
    ]
    scale = hidden**-0.5
    return [(scale * torch.randn(s, generator=g, dtype=dtype)).requires_grad_() for s in shapes]


def torchs(x, w_ih, w_hh, b_ih, b_hh):
    """`torch.nn.GRU`, client by client."""
    outputs = []
    for own in zip(x, w_ih, w_hh, b_ih, b_hh, strict=True):
        module = torch.nn.GRU(w_ih.shape[1], w_hh.shape[1], batch_first=True, dtype=x.dtype)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = {n: t.mT if t.ndim == 2 else t for n, t in zip(names, own[1:], strict=True)}
        _, last = torch.func.functional_call(module, weights, (own[0],))
        outputs.append(last[0])
    return torch.stack(outputs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "shape",
    [{}, {"input_size": 1, "hidden": 128, "steps": 3}, {"steps": 1}, {"batch": 27, "hidden": 48}],
)
def test_values_and_gradients_are_torchs(dtype, tolerance, shape):
    ours, theirs = tensors(dtype, **shape), tensors(dtype, **shape)
    weight = torch.randn(CLIENTS, ours[0].shape[1], theirs[2].shape[1], dtype=dtype)
    outputs = gru.stacked_gru(*ours), torchs(*theirs)
    torch.testing.assert_close(*outputs, rtol=10 * tolerance, atol=tolerance)
    for output in outputs:
        (output * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        if b.grad is None:  # One step: the hidden weights meet zeros.
            assert not a.grad.any()
            continue
        torch.testing.assert_close(a.grad, b.grad, rtol=100 * tolerance, atol=10 * tolerance)


def test_gradients_are_those_of_finite_differences():
    small = tensors(torch.float64, steps=3, batch=1)
    assert torch.autograd.gradcheck(gru.stacked_gru, small)


def test_its_inputs_are_left_alone():
    values = [t.detach()[:, :1] if t.ndim == 4 else t.detach() for t in tensors(torch.float32)]
    before = [t.clone() for t in values]
    gru.stacked_gru(*values)
    assert all(torch.equal(t, b) for t, b in zip(values, before, strict=True))


def test_nan_is_not_hidden():
    values = tensors(torch.float32)
    values[0].data[1, 2] = torch.nan
    output = gru.stacked_gru(*values)
    assert output[1, 2].isnan().all()
    assert output[0].isfinite().all()


def test_denormals_are_kept():
    tiny = torch.tensor([1e-40])
    assert (tiny * 0.5).item() > 0, "loading the library must not change the processor's mode"


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("STFORECAST_KERNELS", "off")
    gru.library.cache_clear()
    assert not gru.usable(torch.zeros(1), HIDDEN)
    gru.library.cache_clear()


def test_other_widths_are_left_to_torch():
    assert gru.usable(torch.zeros(1), 48)
    assert not gru.usable(torch.zeros(1), 40)
