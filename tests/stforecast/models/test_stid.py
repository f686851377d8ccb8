"""STID against its equations written with torch's own layers, cell by cell."""

import logging

import pandas as pd
import pytest
import torch
from mentions import mentions
from torch import nn

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.clients import Cells
from stforecast.data.clock import calendar_inputs
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.stid import STID, STIDOptions, TimeOfDay

WINDOW = WindowSpec(closeness=4, periods=0, period=24, horizon=3, calendar="weekdays")
OPTIONS = STIDOptions(embed_size=5, identity_size=3, num_layers=2)
TIMES = pd.DatetimeIndex(["2013-11-01 00:00", "2013-11-02 07:00", "2013-11-04 23:00"])


def population(n_cells=None, window=WINDOW):
    cells = None if n_cells is None else Cells(n_cells)
    model = Population(lambda: STID(window, OPTIONS, cells), seed=1)
    model.train(False)
    return model


def different(model, n):
    g = torch.Generator().manual_seed(5)
    return {name: torch.randn(p.shape, generator=g) for name, p in model.parameters(n).items()}


def windows(clients):
    values = torch.randn(clients, 3, 4, generator=torch.Generator().manual_seed(6))
    known = torch.from_numpy(calendar_inputs(TIMES, "weekdays"))
    return torch.cat([values, known.expand(clients, -1, -1)], dim=-1)


def layer(params, name, client):
    linear = nn.Linear(*params[f"{name}.weight"].shape[1:])
    linear.load_state_dict(
        {"weight": params[f"{name}.weight"][client].T, "bias": params[f"{name}.bias"][client]}
    )
    return linear


def expected(params, x, client, cell=0):
    """What the paper's network says of the three windows of one cell."""
    table = {n: params[f"encoder.{n}.weight"][client] for n in ("cell", "time", "day")}
    hour, weekday = list(TIMES.hour), list(TIMES.day_of_week)
    hidden = torch.cat(
        [
            layer(params, "encoder.series", client)(x),
            table["cell"][[cell] * 3],
            table["time"][hour],
            table["day"][weekday],
        ],
        dim=-1,
    )
    for i in range(2):
        first, second = (
            layer(params, f"encoder.layers.{i}.{n}", client) for n in ("first", "second")
        )
        hidden = hidden + second(torch.relu(first(hidden)))
    return layer(params, "head", client)(hidden)


def test_every_client_is_the_papers_network():
    model, x = population(), windows(3)
    params = different(model, 3)
    y_hat = model.decode(params, model.encode(params, x))
    assert y_hat.shape == (3, 3, 3)
    for i in range(3):
        torch.testing.assert_close(y_hat[i], expected(params, x[i], i), rtol=1e-4, atol=1e-4)


def test_pooled_rows_find_the_identity_of_their_cell():
    model, x = population(n_cells=2), windows(2)
    params = {**different(model, 1), **model.buffers(1)}
    rows = x.transpose(0, 1).flatten(0, 1)[None]
    y_hat = model.decode(params, model.encode(params, rows))[0]
    for cell in range(2):
        by_hand = expected(params, x[cell], 0, cell)
        torch.testing.assert_close(y_hat[cell::2], by_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slots", [24, 288])
def test_every_time_of_the_day_finds_its_slot(slots):
    times = pd.date_range("2012-03-01", periods=288, freq="5min")
    calendar = torch.from_numpy(calendar_inputs(times, "day"))[None]
    found = TimeOfDay(slots, 2).slot(calendar)[0].tolist()
    assert found == [i * slots // 288 for i in range(288)]


def test_gradients_reach_every_parameter_of_a_client_and_only_its_own():
    model, x = population(), windows(2)
    params = {n: p.requires_grad_() for n, p in different(model, 2).items()}
    model.decode(params, model.encode(params, x))[0].square().sum().backward()
    for name, p in params.items():
        assert p.grad[0].abs().sum() > 0, name
        assert p.grad[1].abs().sum() == 0, name


def test_a_global_model_leaves_each_client_its_identity(table, tiny):
    settings = {**tiny, "model": "stid", "calendar": "day", "lr": 0.01}
    settings.pop("hidden_size")
    forecaster = Forecaster("fedavg", **settings).fit(table)
    state = forecaster._evaluations["last"].model.predictor.snapshot
    assert "encoder.cell.weight" not in state.server
    assert "encoder.time.weight" in state.server
    identities = state.clients.params["encoder.cell.weight"]
    assert identities.shape == (3, 1, 32)
    assert not torch.allclose(identities[0], identities[1])
    sent = sum(t.numel() for t in state.server.values())
    assert (forecaster.rounds_["bytes_up"] == 3 * 4 * sent).all()


def test_its_size_is_that_of_the_released_code():
    """METR-LA, 12 in and out, 207 cells: input 36 wide there (three channels), 23 here."""
    window = WindowSpec(12, 0, 288, 12, calendar="weekdays")
    params = Population(lambda: STID(window, cells=Cells(207))).parameters(1)
    sizes = {name: t.numel() for name, t in params.items()}
    width = 4 * 32
    published = (
        (36 * 32 + 32) + 32 * (207 + 288 + 7) + 3 * 2 * (width**2 + width) + (width + 1) * 12
    )
    assert published == 117_868
    assert sum(sizes.values()) == published - (36 - 23) * 32


def test_without_a_calendar_it_says_that_time_has_no_identity(caplog):
    with caplog.at_level(logging.WARNING):
        params = population(window=WindowSpec(period=24)).initial()
    assert mentions(caplog.text, "times", "identity")
    assert not any(name.startswith(("encoder.time", "encoder.day")) for name in params)


def test_impossible_options_are_refused():
    with pytest.raises(InputError, match=r"dropout is 1.0; .*\[0, 1\)"):
        STIDOptions(dropout=1.0)
    with pytest.raises(InputError, match="num_layers is 0"):
        STIDOptions(num_layers=0)
