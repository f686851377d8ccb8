import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stforecast.federated.core.layers import (
    ClientDropout,
    ClientGRU,
    ClientLayerNorm,
    ClientLinear,
    ClientLSTM,
)

CLIENTS, BATCH, STEPS, INPUTS, WIDTH = 3, 4, 5, 2, 6


def stacked(layer):
    """The layer with different random weights for each client, in double precision."""
    g = torch.Generator().manual_seed(0)
    for name, p in list(layer.named_parameters()):
        values = torch.randn(CLIENTS, *p.shape[1:], generator=g, dtype=torch.float64)
        setattr(layer, name, nn.Parameter(values))
    return layer


def reference(kind, layer, names, client):
    """An ordinary layer with one client's weights; matrices are stored transposed there."""
    alone = kind.double()
    for own, theirs in names.items():
        getattr(alone, theirs).data.copy_(getattr(layer, own)[client].t())
    return alone


def check_gradients(layer, alone, names, client):
    for own, theirs in names.items():
        gradient = getattr(layer, own).grad[client].t()
        torch.testing.assert_close(gradient, getattr(alone, theirs).grad)


@pytest.mark.parametrize("inputs", [INPUTS, 32], ids=["torch", "kernel"])
@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("parts", [1, 2])
def test_linear_is_nn_linear_of_the_sum_of_parts_for_each_client(inputs, width, parts):
    names = {"weight": "weight", "bias": "bias"}
    layer = stacked(ClientLinear(inputs, width, parts))
    x = torch.randn(CLIENTS, 2 * BATCH, parts * inputs, dtype=torch.float64, requires_grad=True)
    y = layer(x[:, :BATCH])
    y.square().sum().backward()
    assert not x.grad[:, BATCH:].any()
    for i in range(CLIENTS):
        alone = reference(nn.Linear(inputs, width), layer, names, i)
        own = x.detach()[i, :BATCH].requires_grad_()
        expected = alone(own.unflatten(1, (parts, inputs)).sum(1))
        expected.square().sum().backward()
        torch.testing.assert_close(y[i], expected)
        torch.testing.assert_close(x.grad[i, :BATCH], own.grad)
        check_gradients(layer, alone, names, i)


def test_dropout_is_nn_dropout_with_a_mask_of_each_clients_own():
    def drop(*seeds):
        layer.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return layer(torch.ones(len(seeds), 1000, 4))

    layer = ClientDropout(0.25)
    together = drop(1, 2, 1)
    assert together.unique().tolist() == [0, pytest.approx(1 / 0.75)]
    assert together[0].equal(together[2])
    assert not together[0].equal(together[1])
    assert together[1].equal(drop(2)[0])
    kept = (together != 0).double().mean(dim=(1, 2))
    assert ((kept - 0.75).abs() < 0.05).all()
    x = torch.rand(3, BATCH, INPUTS)
    assert layer.eval()(x).equal(x)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_gru_is_the_last_state_of_nn_gru_for_each_client(steps):
    names = {n: f"{n}_l0" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    layer = stacked(ClientGRU(INPUTS, WIDTH))
    x = torch.randn(CLIENTS, BATCH, steps, INPUTS, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.square().sum().backward()
    if steps == 1:  # The first step has no hidden product.
        assert layer.weight_hh.grad is None or not layer.weight_hh.grad.any()
        layer.weight_hh.grad = torch.zeros_like(layer.weight_hh)
    for i in range(CLIENTS):
        alone = reference(nn.GRU(INPUTS, WIDTH, batch_first=True), layer, names, i)
        own = x.detach()[i].requires_grad_()
        expected = alone(own)[1][0]
        expected.square().sum().backward()
        torch.testing.assert_close(y[i], expected)
        torch.testing.assert_close(x.grad[i], own.grad)
        check_gradients(layer, alone, names, i)


def test_gru_gradients_agree_with_finite_differences():
    layer = stacked(ClientGRU(1, 2))
    x = torch.randn(CLIENTS, 2, 3, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


LSTM_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("layers", [1, 3])
def test_lstm_is_the_last_state_of_nn_lstm_for_each_client(steps, layers):
    names = {f"{n}_l{k}": f"{n}_l{k}" for n in LSTM_NAMES for k in range(layers)}
    layer = stacked(ClientLSTM(INPUTS, WIDTH, layers))
    assert dict(layer.named_parameters()).keys() == names.keys()
    x = torch.randn(CLIENTS, BATCH, steps, INPUTS, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.square().sum().backward()
    for k in range(layers if steps == 1 else 0):  # The first step has no hidden product.
        weight = getattr(layer, f"weight_hh_l{k}")
        assert weight.grad is None
        weight.grad = torch.zeros_like(weight)
    for i in range(CLIENTS):
        alone = reference(nn.LSTM(INPUTS, WIDTH, layers, batch_first=True), layer, names, i)
        own = x.detach()[i].requires_grad_()
        expected = alone(own)[0][:, -1]
        expected.square().sum().backward()
        torch.testing.assert_close(y[i], expected)
        torch.testing.assert_close(x.grad[i], own.grad)
        check_gradients(layer, alone, names, i)


def test_lstm_gradients_agree_with_finite_differences():
    layer = stacked(ClientLSTM(1, 2, 2))
    x = torch.randn(CLIENTS, 2, 3, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_lstm_drops_values_between_layers_only_and_only_in_training():
    """Of two layers, the output of the lower one is thinned at every step; its states are not."""
    layer = stacked(ClientLSTM(INPUTS, WIDTH, 2, dropout=0.5))
    x = torch.randn(CLIENTS, BATCH, STEPS, INPUTS, dtype=torch.float64)
    torch.manual_seed(3)
    kept = F.dropout(torch.ones(CLIENTS, STEPS, BATCH, WIDTH, dtype=torch.float64), 0.5)
    torch.manual_seed(3)
    thinned = layer(x)
    whole = layer.eval()(x)
    for i in range(CLIENTS):
        lower, upper = (
            reference(
                nn.LSTM(width, WIDTH, batch_first=True),
                layer,
                {f"{n}_l{k}": f"{n}_l0" for n in LSTM_NAMES},
                i,
            )
            for k, width in enumerate((INPUTS, WIDTH))
        )
        between = lower(x[i])[0]
        torch.testing.assert_close(whole[i], upper(between)[0][:, -1])
        torch.testing.assert_close(thinned[i], upper(between * kept[i].transpose(0, 1))[0][:, -1])
    assert not torch.allclose(thinned, whole)
    one_layer = stacked(ClientLSTM(INPUTS, WIDTH, 1, dropout=0.5))
    assert torch.equal(one_layer(x), one_layer.eval()(x))


@pytest.mark.parametrize(
    ("kind", "fan", "width"),
    [(ClientLinear, 9, 200), (ClientGRU, 64, 64), (ClientLSTM, 64, 64)],
    ids=["linear", "gru", "lstm"],
)
def test_initial_weights_fill_the_range_of_torch_with_one_client(kind, fan, width):
    bound = 1 / math.sqrt(fan)
    for p in kind(9, width).parameters():
        assert p.shape[0] == 1
        assert 0.9 * bound < p.max() <= bound
        assert -bound <= p.min() < -0.9 * bound


def test_layer_norm_is_torchs_for_each_client():
    layer = ClientLayerNorm(5)
    weight, bias = torch.randn(3, 5), torch.randn(3, 5)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    x = torch.randn(3, 4, 5)
    for i, y in enumerate(layer(x)):
        torch.testing.assert_close(y, F.layer_norm(x[i], (5,), weight[i], bias[i]))
