"""The dual LSTM against torch's own LSTM and linear layer."""

import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models import MODELS
from stforecast.models.dual import DualLSTM, DualLSTMOptions

CLOSENESS, PERIODS, N = 3, 2, 3


def population(hidden=4, layers=2, dropout=0.0, horizon=1, closeness=CLOSENESS, periods=PERIODS):
    window = WindowSpec(closeness, periods, horizon=horizon)
    return Population(lambda: DualLSTM(window, DualLSTMOptions(hidden, layers, dropout)), seed=3)


def different_clients(model):
    """Parameters that differ from client to client, of a size that bends the gates."""
    g = torch.Generator().manual_seed(5)
    return {name: torch.randn(p.shape, generator=g) for name, p in model.parameters(N).items()}


def inputs(size=CLOSENESS + PERIODS):
    return torch.randn(N, 5, size, generator=torch.Generator().manual_seed(6))


def torch_lstm(params, part, client, layers=2):
    prefix = f"encoder.{part}."
    own = {n.removeprefix(prefix): t[client] for n, t in params.items() if n.startswith(prefix)}
    lstm = nn.LSTM(1, len(own["weight_hh_l0"]), layers, batch_first=True)
    lstm.load_state_dict({n: t.T if n.startswith("weight") else t for n, t in own.items()})
    return lstm


@pytest.mark.parametrize("layers", [1, 2])
def test_forecasts_are_those_of_torch(layers):
    """Last outputs of both LSTMs side by side; the head reads their sum."""
    model, x = population(layers=layers, horizon=2), inputs()
    params = different_clients(model)
    features = model.encode(params, x)
    forecast = model.decode(params, features)
    for client in range(N):
        parts = x[client, ..., None].split([CLOSENESS, PERIODS], dim=1)
        hidden = [
            torch_lstm(params, name, client, layers)(part)[0][:, -1]
            for name, part in zip(("closeness", "periodic"), parts, strict=True)
        ]
        torch.testing.assert_close(features[client], torch.cat(hidden, dim=1))
        weight, bias = (params[f"head.linear.{n}"][client] for n in ("weight", "bias"))
        torch.testing.assert_close(forecast[client], (hidden[0] + hidden[1]) @ weight + bias)


def test_its_size_is_that_of_the_released_code():
    """Two nn.LSTM(1, 64, 2) and nn.Linear(64, 1)."""
    initial = Population(lambda: DualLSTM(WindowSpec())).initial()
    lstm, head = nn.LSTM(1, 64, 2), nn.Linear(64, 1)
    expected = 2 * sum(p.numel() for p in lstm.parameters())
    expected += sum(p.numel() for p in head.parameters())
    assert sum(t.numel() for t in initial.values()) == expected == 100_929


@pytest.mark.parametrize(("part", "other"), [("closeness", "periods"), ("periodic", "closeness")])
def test_without_one_window_there_is_one_lstm(part, other):
    model = population(**{other: 0})
    params = different_clients(model)
    assert {n.split(".")[1] for n in params if n.startswith("encoder.")} == {part}
    x = inputs(CLOSENESS if part == "closeness" else PERIODS)
    features = model.encode(params, x)
    torch.testing.assert_close(features[1], torch_lstm(params, part, 1)(x[1, ..., None])[0][:, -1])
    assert model.decode(params, features).shape == (N, 5, 1)


def test_dropout_is_for_training():
    model, x = population(dropout=0.5), inputs()
    params = different_clients(model)
    model.train()
    torch.manual_seed(0)
    first, second = model.encode(params, x), model.encode(params, x)
    assert not torch.allclose(first, second)
    model.train(False)
    still = model.encode(params, x)
    assert torch.equal(still, model.encode(params, x))
    torch.testing.assert_close(still, population().encode(params, x))


def test_it_is_found_by_its_name():
    assert MODELS["dual_lstm"] is DualLSTM
    assert DualLSTMOptions() == DualLSTMOptions(hidden_size=64, num_layers=2, dropout=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"dropout": 1.0}, r"dropout is 1.0; .*\[0, 1\)"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        DualLSTMOptions(**options)


@pytest.mark.parametrize("further", [{"extra_lags": "168"}, {"calendar": "day"}])
def test_inputs_that_it_does_not_read_are_refused(further):
    with pytest.raises(InputError, match=r"closeness.*model='mlp'"):
        DualLSTM(WindowSpec(**further))
