"""The compiled GRU against torch's, for values and gradients."""

import pytest
import torch

from stforecast.federated.core.layers import ClientGRU, side_by_side
from stforecast.federated.kernels import compiler
from stforecast.federated.kernels.compiler import library, supported, usable
from stforecast.federated.kernels.functions import stacked_grus

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

CLIENTS, BATCH, STEPS, INPUT, HIDDEN = 3, 4, 5, 2, 16

SHAPES = [
    {},
    {"input_size": 1, "hidden": 128, "steps": 3},
    {"steps": 1},
    {"batch": 27, "hidden": 48, "steps": 2},
]


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


def stacked_gru(x, *weights):
    return stacked_grus([x], [weights])


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
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_torchs(dtype, tolerance, shape):
    ours, theirs = tensors(dtype, **shape), tensors(dtype, **shape)
    weight = torch.randn(CLIENTS, ours[0].shape[1], theirs[2].shape[1], dtype=dtype)
    outputs = stacked_gru(*ours), torchs(*theirs)
    torch.testing.assert_close(*outputs, rtol=10 * tolerance, atol=tolerance)
    for output in outputs:
        (output * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        if b.grad is None:  # One step: the hidden weights meet zeros.
            assert not a.grad.any()
            continue
        torch.testing.assert_close(a.grad, b.grad, rtol=100 * tolerance, atol=10 * tolerance)


@pytest.mark.repeats
def test_gradients_are_those_of_finite_differences():
    small = tensors(torch.float64, steps=3, batch=1)
    assert torch.autograd.gradcheck(stacked_gru, small)


def test_its_inputs_are_left_alone():
    values = [t.detach()[:, :1] if t.ndim == 4 else t.detach() for t in tensors(torch.float32)]
    before = [t.clone() for t in values]
    stacked_gru(*values)
    assert all(torch.equal(t, b) for t, b in zip(values, before, strict=True))


def test_several_lie_side_by_side():
    """Of other widths, steps and inputs; each gradient is a part of a wider tensor."""
    shapes = {"hidden": 32, "steps": 2, "input_size": 1}, {"hidden": 16, "steps": 3}
    ours = [tensors(torch.float64, **shape) for shape in shapes]
    theirs = [tensors(torch.float64, **shape) for shape in shapes]
    together = stacked_grus([x for x, *_ in ours], [tuple(ws) for _, *ws in ours])
    apart = torch.cat([torchs(*each) for each in theirs], dim=-1)
    torch.testing.assert_close(together, apart)
    weight = torch.randn(CLIENTS, BATCH, 48, dtype=torch.float64)
    for output in (together, apart):
        (output * weight).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_networks_side_by_side_are_as_alone():
    torch.manual_seed(0)
    networks = ClientGRU(1, 16), ClientGRU(2, 32)
    xs = torch.randn(1, 4, 3, 1), torch.randn(1, 4, 2, 2)
    expected = torch.cat([n(x) for n, x in zip(networks, xs, strict=True)], dim=-1)
    assert torch.equal(side_by_side(networks, xs), expected)
    mixed = networks[0], torch.nn.Flatten(2)
    assert side_by_side(mixed, xs).shape == (1, 4, 16 + 4)


def test_where_no_gradient_is_asked_for_none_is_made():
    x, *weights = tensors(torch.float64)
    x, weights[0] = x.detach(), weights[0].detach()
    stacked_gru(x, *weights).sum().backward()
    assert x.grad is None
    assert weights[0].grad is None
    assert weights[1].grad.any()


class RoundedProduct(torch.autograd.Function):
    """A product, on both ways, of factors that are rounded to bfloat16."""

    @staticmethod
    def forward(ctx, a, b):
        a, b = a.bfloat16().float(), b.bfloat16().float()
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad = grad.bfloat16().float()
        return grad @ b.mT, a.mT @ grad


def gru(product, x, w_ih, w_hh, b_ih, b_hh):
    """A GRU as its equations have it, with this product of its hidden state and weights."""
    hidden = x.new_zeros(*x.shape[:2], w_hh.shape[1])
    for step in x.unbind(2):
        given = (step @ w_ih + b_ih[:, None]).chunk(3, dim=-1)
        recurrent = (product(hidden, w_hh) + b_hh[:, None]).chunk(3, dim=-1)
        reset, update = ((a + b).sigmoid() for a, b in zip(given[:2], recurrent[:2], strict=True))
        new = (given[2] + reset * recurrent[2]).tanh()
        hidden = new + update * (hidden - new)
    return hidden


@pytest.mark.parametrize("shape", [*SHAPES, {"batch": 24, "hidden": 64, "steps": 3}])
def test_autocast_rounds_the_factors_of_products(shape):
    """A sum's own rounding may tip a factor over, so single values may be off by bfloat16's 2⁻⁸."""
    if torch.bfloat16 not in supported():
        pytest.skip("this processor has no bfloat16")
    ours, theirs, exact = (tensors(torch.float32, **shape) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = stacked_gru(*ours)
        weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        (found * weight).sum().backward()
    expected, full = gru(RoundedProduct.apply, *theirs), gru(torch.matmul, *exact)
    for output in (expected, full):
        (output * weight).sum().backward()
    pairs = [(found, expected, full)]
    pairs += [(a.grad, b.grad, c.grad) for a, b, c in zip(ours, theirs, exact, strict=True)]
    for a, b, c in pairs:
        error, rounding = (a - b).abs(), (c - b).abs()
        assert error.max() <= 2**-8 * b.abs().max()
        assert error.mean() <= 0.1 * rounding.mean() + 1e-6 * b.abs().mean()


def test_autocast_is_torchs_where_the_processor_cannot(monkeypatch):
    values, others = tensors(torch.float32), torch.zeros(1)
    with torch.autocast("cpu", torch.bfloat16):
        able = torch.bfloat16 in supported()
        assert usable(HIDDEN, *values, products=True) is able
        assert not usable(HIDDEN, others)
        monkeypatch.setattr(compiler, "supported", lambda: {torch.float32, torch.float64})
        assert not usable(HIDDEN, *values, products=True)
    with torch.autocast("cpu", torch.float16):
        assert not usable(HIDDEN, *values, products=True)


def test_nan_is_not_hidden():
    values = tensors(torch.float32)
    values[0].data[1, 2] = torch.nan
    output = stacked_gru(*values)
    assert output[1, 2].isnan().all()
    assert output[0].isfinite().all()


def test_denormals_are_kept():
    tiny = torch.tensor([1e-40])
    assert (tiny * 0.5).item() > 0, "loading the library must not change the processor's mode"


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("STFORECAST_KERNELS", "off")
    library.cache_clear()
    assert not usable(HIDDEN, torch.zeros(1))
    library.cache_clear()


def test_without_a_compiler_it_says_so_and_goes_on(monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler")
    library.cache_clear()
    assert not usable(HIDDEN, torch.zeros(1))
    assert not usable(HIDDEN, torch.zeros(1))
    library.cache_clear()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "no-such-compiler" in caplog.text


def test_other_widths_are_left_to_torch():
    assert usable(48, torch.zeros(1))
    assert not usable(40, torch.zeros(1))


def test_other_types_are_left_to_torch():
    assert not usable(HIDDEN, torch.zeros(1, dtype=torch.bfloat16))
    assert not usable(HIDDEN, torch.zeros(1), torch.zeros(1, dtype=torch.float64))
    assert not usable(HIDDEN, torch.zeros(1, device="meta"))
