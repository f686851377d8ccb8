"""The linear model against numbers by hand and against torch's own linear layer."""

import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.linear import Linear, LinearOptions


def forecast(window, params, x, normalise):
    model = Population(lambda: Linear(window, LinearOptions(normalise)))
    return model.decode(params, model.encode(params, x))


@pytest.mark.parametrize(
    ("normalise", "newest_first", "expected"),
    [
        # 1 · 4 + 2 · 5 + 3 · 7 = 35, and the last value 7: 1 · -3 + 2 · -2 + 7 = 0; plus 0.5.
        ("none", False, 35.5),
        ("last", False, 0.5),
        # Newest first the last value is 4: 2 · 1 + 3 · 3 + 4 = 15.
        ("last", True, 15.5),
    ],
)
def test_a_forecast_by_hand(normalise, newest_first, expected):
    window = WindowSpec(closeness=3, periods=0, newest_first=newest_first)
    params = {
        "encoder.weight": torch.tensor([[[1.0], [2.0], [3.0]]]),
        "head.bias": torch.tensor([[0.5]]),
    }
    y_hat = forecast(window, params, torch.tensor([[[4.0, 5.0, 7.0]]]), normalise)
    assert y_hat.item() == expected


def test_each_client_has_torchs_own_linear_layer():
    window = WindowSpec(closeness=4, periods=0, horizon=3)
    g = torch.Generator().manual_seed(0)
    params = {
        "encoder.weight": torch.randn(2, 4, 3, generator=g),
        "head.bias": torch.randn(2, 3, generator=g),
    }
    x = torch.randn(2, 5, 4, generator=g)
    y_hat = forecast(window, params, x, "none")
    for i in range(2):
        own = nn.Linear(4, 3)
        own.load_state_dict(
            {"weight": params["encoder.weight"][i].T, "bias": params["head.bias"][i]}
        )
        torch.testing.assert_close(y_hat[i], own(x[i]))


def test_a_higher_level_is_a_higher_forecast_and_the_calendar_is_no_level():
    window = WindowSpec(3, 1, 24, extra_lags="30", calendar="day", horizon=2)
    model = Population(lambda: Linear(window), seed=1)
    params = model.parameters(1)
    x = torch.randn(1, 4, window.n_inputs, generator=torch.Generator().manual_seed(0))
    higher = x.clone()
    higher[..., :5] += 10
    first, second = (model.decode(params, model.encode(params, v)) for v in (x, higher))
    torch.testing.assert_close(second, first + 10)
    assert not torch.allclose(forecast(window, params, higher, "none"), first + 10)


def test_its_size_and_its_refusal():
    params = Population(lambda: Linear(WindowSpec(12, 0, horizon=12))).initial()
    assert {name: t.shape[1:].numel() for name, t in params.items()} == {
        "encoder.weight": 144,
        "head.bias": 12,
    }
    with pytest.raises(InputError, match="none or last"):
        LinearOptions("mean")
