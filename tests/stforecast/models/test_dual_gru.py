"""The dual GRU against loops over its equations, and against torch's own GRU and linear layer."""

import numpy as np
import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.dual import DualGRU, DualGRUOptions

CLOSENESS, PERIODS = 3, 2


def population(hidden=4, fusion="sum", horizon=1, closeness=CLOSENESS, periods=PERIODS):
    window, options = (
        WindowSpec(closeness, periods, horizon=horizon),
        DualGRUOptions(hidden, fusion),
    )
    return Population(lambda: DualGRU(window, options), seed=3)


def different_clients(model, n=3):
    """Parameters that differ from client to client, of a size that bends the gates."""
    g = torch.Generator().manual_seed(5)
    zeros = model.parameters(n)
    return {name: torch.randn(p.shape, generator=g) for name, p in zeros.items()}


def inputs(n=3, batch=5, size=CLOSENESS + PERIODS):
    return torch.randn(n, batch, size, generator=torch.Generator().manual_seed(6))


def gru_by_hand(values, p):
    """Last hidden state after scalar `values`; gates in the order reset, update, new."""
    size = len(p["weight_hh"])
    w_ih, w_hh = p["weight_ih"][0].reshape(3, size), p["weight_hh"].reshape(size, 3, size)
    b_ih, b_hh = p["bias_ih"].reshape(3, size), p["bias_hh"].reshape(3, size)
    h = np.zeros(size)
    for value in values:
        i = [value * w_ih[gate] + b_ih[gate] for gate in range(3)]
        r = [h @ w_hh[:, gate] + b_hh[gate] for gate in range(3)]
        reset, update = (1 / (1 + np.exp(-(i[gate] + r[gate]))) for gate in (0, 1))
        h = (1 - update) * np.tanh(i[2] + reset * r[2]) + update * h
    return h


def gru_parameters(params, name, client):
    prefix = f"encoder.{name}."
    chosen = {k.removeprefix(prefix): p for k, p in params.items() if k.startswith(prefix)}
    return {k: p[client].detach().double().numpy() for k, p in chosen.items()}


def torch_gru(params, name, client):
    p = {k: torch.from_numpy(a) for k, a in gru_parameters(params, name, client).items()}
    gru = nn.GRU(1, len(p["weight_hh"]), batch_first=True).double()
    state = {f"{k}_l0": a.T if k.startswith("weight") else a for k, a in p.items()}
    gru.load_state_dict(state)
    return gru


def test_a_representation_is_the_last_states_of_two_grus_side_by_side():
    """Eq. 2: GRU_c reads the first c values, GRU_p the other q, both from old to new."""
    model, x = population(), inputs()
    params = different_clients(model)
    features = model.encode(params, x)
    for client in range(3):
        recent, periodic = (gru_parameters(params, k, client) for k in ("closeness", "periodic"))
        for b in range(5):
            values = x[client, b].double().numpy()
            expected = np.concatenate(
                [
                    gru_by_hand(values[:CLOSENESS], recent),
                    gru_by_hand(values[CLOSENESS:], periodic),
                ]
            )
            np.testing.assert_allclose(features[client, b], expected, atol=1e-5)


@pytest.mark.parametrize("fusion", ["sum", "concat"])
def test_forecasts_and_gradients_are_those_of_torch(fusion):
    model, x = population(fusion=fusion, horizon=2), inputs()
    params = {n: p.requires_grad_() for n, p in different_clients(model).items()}
    forecast = model.decode(params, model.encode(params, x))
    forecast.square().sum().backward()
    for client in range(3):
        grus = [torch_gru(params, k, client) for k in ("closeness", "periodic")]
        weight = params["head.linear.weight"][client].detach().double().requires_grad_()
        bias = params["head.linear.bias"][client].detach().double()
        parts = x[client].double()[..., None].split([CLOSENESS, PERIODS], dim=1)
        hidden = [gru(part)[1][0] for gru, part in zip(grus, parts, strict=True)]
        fused = hidden[0] + hidden[1] if fusion == "sum" else torch.cat(hidden, dim=1)
        expected = fused @ weight + bias
        torch.testing.assert_close(forecast[client].double(), expected, atol=1e-4, rtol=1e-4)
        expected.square().sum().backward()
        pairs = {"head.linear.weight": weight.grad}
        for name, gru in zip(("closeness", "periodic"), grus, strict=True):
            pairs[f"encoder.{name}.weight_hh"] = gru.weight_hh_l0.grad.T
            pairs[f"encoder.{name}.weight_ih"] = gru.weight_ih_l0.grad.T
            pairs[f"encoder.{name}.bias_hh"] = gru.bias_hh_l0.grad
            pairs[f"encoder.{name}.bias_ih"] = gru.bias_ih_l0.grad
        for name, gradient in pairs.items():
            got = params[name].grad[client].double()
            torch.testing.assert_close(got, gradient, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("fusion", "expected"), [("sum", 100_737), ("concat", 100_865)])
def test_parameters_are_as_many_as_published(fusion, expected):
    """FUELS, Table 1: 2 GRU(1, 128) of 50,304 and Linear(128, 1), or Linear(256, 1)."""
    params = population(hidden=128, fusion=fusion, periods=3).parameters(1)
    assert sum(p[0].numel() for p in params.values()) == expected
    torch_size = sum(p.numel() for p in nn.GRU(1, 128).parameters())
    encoder = sum(p[0].numel() for n, p in params.items() if n.startswith("encoder."))
    assert encoder == 2 * torch_size == 100_608


@pytest.mark.parametrize(("hidden", "sent"), [(2, 96), (16, 768), (128, 6144), (512, 24_576)])
def test_a_prototype_has_the_size_of_table_5(hidden, sent):
    """FUELS, Table 5, whose d_r is the width of one GRU."""
    model = population(hidden=hidden, periods=3)
    features = model.encode(model.parameters(1), torch.zeros(1, 24, 6))
    assert features.numel() == sent


def test_the_head_adds_the_states_or_reads_both():
    features = torch.tensor([[[1.0, 2.0, 30.0, 40.0]]])
    for fusion, expected in {"sum": 31 * 1 + 42 * 2, "concat": 1 + 2 * 2 + 30 * 3 + 40 * 4}.items():
        model = population(hidden=2, fusion=fusion)
        params = model.parameters(1)
        weight = params["head.linear.weight"]
        weight.copy_(torch.arange(1.0, weight.numel() + 1).view_as(weight))
        params["head.linear.bias"].fill_(0.5)
        assert model.decode(params, features).item() == pytest.approx(expected + 0.5)


def test_without_periods_there_is_one_gru():
    model = population(periods=0)
    params = different_clients(model)
    assert not any("periodic" in name for name in params)
    x = inputs(size=CLOSENESS)
    features = model.encode(params, x)
    hidden = torch_gru(params, "closeness", 2)(x[2].double()[..., None])[1][0]
    torch.testing.assert_close(features[2].double(), hidden, atol=1e-5, rtol=1e-5)
    assert model.decode(params, features).shape == (3, 5, 1)


def test_without_closeness_there_is_one_gru():
    """`WindowSpec` allows a window of periodic values alone."""
    model = population(closeness=0)
    params = different_clients(model)
    assert model.encode(params, inputs(size=PERIODS)).shape == (3, 5, 4)


def test_clients_do_not_see_each_other():
    model, x = population(), inputs()
    params = different_clients(model)
    before = model.decode(params, model.encode(params, x))
    for p in params.values():
        p[1] += 1
    x[1] += 1
    after = model.decode(params, model.encode(params, x))
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


def test_weights_start_as_in_torch():
    """Uniform within 1/√H for the GRUs (and for the head, which reads H values)."""
    params = population(hidden=64, periods=3).parameters(1)
    for name, p in params.items():
        assert p.abs().max() <= 1 / 8, name
        if p.numel() > 100:
            assert p.abs().max() > 0.95 / 8
            assert p.std().item() == pytest.approx(1 / 8 / np.sqrt(3), rel=0.15)


def test_all_clients_start_alike():
    params = population().parameters(3)
    assert all(torch.equal(p[0], p[2]) for p in params.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hidden_size": 0}, "hidden_size is 0"), ({"fusion": "mean"}, "sum or concat")],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        DualGRUOptions(**options)


@pytest.mark.parametrize("further", [{"extra_lags": "168"}, {"calendar": "day"}])
def test_inputs_that_it_does_not_read_are_refused(further):
    with pytest.raises(InputError, match=r"closeness .*model='mlp'"):
        DualGRU(WindowSpec(**further))
