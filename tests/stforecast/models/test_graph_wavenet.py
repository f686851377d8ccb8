"""Graph WaveNet against its released code's layout: 2-d convolutions over (cells, steps)."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.graph_wavenet import GraphWaveNet, GraphWaveNetOptions

WINDOW = WindowSpec(closeness=5, periods=0, horizon=2, calendar="day")
SMALL = {"channels": 3, "skip_channels": 4, "end_channels": 6, "embed_size": 2}
N_CELLS, BATCH = 4, 3
ROADS = np.array([[1, 0.5, 0, 0], [0, 1, 0.2, 0], [0.3, 0, 1, 0], [0, 0, 0, 0]])


def population(window=WINDOW, graph="both", **options):
    settings = GraphWaveNetOptions(**{**SMALL, "graph": graph, "blocks": 2, **options})
    return Population(lambda: GraphWaveNet(window, settings, Cells(N_CELLS, ROADS)), seed=1)


def state_of(model, spread=0.5):
    """Parameters and buffers in which no layer is idle."""
    g = torch.Generator().manual_seed(2)
    params = {n: spread * torch.randn(p.shape, generator=g) for n, p in model.parameters(1).items()}
    return {**params, **model.buffers(1)}


def rows(window=WINDOW, seed=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(1, BATCH * N_CELLS, window.n_inputs, generator=g)


def forecast(model, state, x):
    return model.decode(state, model.encode(state, x))


def conv(state, name, x, dilation=1):
    """The layer `name` as a convolution over the steps of `(batch, channels, cells, steps)`."""
    prefix = f"encoder.module.{name}"
    weight, bias = state[f"{prefix}.weight"][0], state[f"{prefix}.bias"][0]
    kernel = weight.shape[1] // x.shape[1]
    weight = weight.unflatten(1, (kernel, -1)).permute(0, 2, 1)[:, :, None]
    return F.conv2d(x, weight, bias, dilation=(1, dilation))


def released_code(state, x, dilations):
    """gwnet.forward with `P X` for `Pᵀ X`, in evaluation mode without dropout."""
    walk = [torch.tensor(a / np.maximum(a.sum(1, keepdims=True), 1e-9)) for a in (ROADS, ROADS.T)]
    source, target = (state[f"encoder.module.{n}"][0] for n in ("source", "target"))
    graphs = [w.float() for w in walk] + [torch.softmax(torch.relu(source @ target), dim=1)]
    x = x[0].unflatten(0, (BATCH, N_CELLS))
    values, calendar = x[..., None, :5], x[..., 5:, None].expand(-1, -1, -1, 5)
    x = torch.cat([values, calendar], dim=2).permute(0, 2, 1, 3)
    x = F.pad(x, (1 + sum(dilations) - 5, 0))
    x, skip = conv(state, "start", x), 0
    for i, dilation in enumerate(dilations):
        residual = x
        filtered = torch.tanh(conv(state, f"gates.{i}.filter", x, dilation))
        x = filtered * torch.sigmoid(conv(state, f"gates.{i}.gate", x, dilation))
        s = conv(state, f"gates.{i}.skip", x)
        skip = s + (skip[..., -s.shape[-1] :] if i else 0)
        if i == len(dilations) - 1:
            break
        out = [x]
        for graph in graphs:
            x1 = torch.einsum("wv,ncvl->ncwl", graph, x)
            out += [x1, torch.einsum("wv,ncvl->ncwl", graph, x1)]
        x = conv(state, f"diffusions.{i}.mix", torch.cat(out, dim=1))
        x = x + residual[..., -x.shape[-1] :]
        norm = {k: state[f"encoder.module.diffusions.{i}.norm.{k}"][0] for k in
                ("running_mean", "running_var", "weight", "bias")}  # fmt: skip
        x = F.batch_norm(x, **norm)
    skip = torch.relu(skip[..., 0].permute(0, 2, 1)).flatten(0, 1)
    hidden = torch.relu(skip @ state["head.0.weight"][0] + state["head.0.bias"][0])
    return hidden @ state["head.2.weight"][0] + state["head.2.bias"][0]


def test_it_is_the_released_codes_network():
    model, x = population(), rows()
    model.train(False)
    state = state_of(model)
    expected = released_code(state, x, (1, 2, 1, 2))
    torch.testing.assert_close(forecast(model, state, x)[0], expected, rtol=1e-4, atol=1e-4)


def test_its_size_is_the_published_one_but_for_what_reaches_no_output():
    """309,400 with 207 cells, two channels, three graphs; here five channels."""
    cells = Cells(207, np.ones((207, 207)))
    window = WindowSpec(12, 0, 288, 12, calendar="day")
    model = Population(
        lambda: GraphWaveNet(window, GraphWaveNetOptions(graph="both"), cells)
    ).parameters(1)
    residual, last_mix, last_norm = 8 * (32 * 32 + 32), 7 * 32 * 32 + 32, 2 * 32
    assert residual + last_mix + last_norm == 15_712
    further_channels = (5 - 2) * 32
    assert sum(p.numel() for p in model.values()) == 309_400 - 15_712 + further_channels


def test_cells_see_each_other_along_the_roads_and_times_do_not():
    model, x = population(graph="both"), rows()
    model.train(False)
    state = state_of(model)
    changed = x.clone()
    changed[0, 1] += 1  # cell 1 at the first of the three times
    moved = (forecast(model, state, x) - forecast(model, state, changed)).abs().sum(-1)[0]
    assert (moved[:N_CELLS] > 1e-6).all()
    assert (moved[N_CELLS:] < 1e-6).all()


def test_gradients_reach_every_parameter():
    model, x = population(), rows()
    state = state_of(model)
    params = {n: state[n].requires_grad_() for n in model.parameters(1)}
    forecast(model, {**state, **params}, x).square().sum().backward()
    assert [n for n, p in params.items() if not p.grad.abs().sum() > 0] == []


def test_the_order_of_the_window_is_that_of_time():
    newest = WindowSpec(closeness=5, periods=0, horizon=2, calendar="day", newest_first=True)
    model, x = population(), rows()
    model.train(False)
    other = population(newest)
    other.train(False)
    state = state_of(model)
    turned = torch.cat([x[..., :5].flip(-1), x[..., 5:]], dim=-1)
    torch.testing.assert_close(forecast(model, state, x), forecast(other, state, turned))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphWaveNet(WINDOW), "clients.*method='central'"),
        (lambda: population(blocks=1, layers=2), "1 to 4 .*5"),
        (lambda: population(WindowSpec(0, 3)), "closeness is 0"),
        (
            lambda: GraphWaveNet(WINDOW, GraphWaveNetOptions(graph="both"), Cells(3)),
            "adjacency.*graph='adaptive'",
        ),
        (lambda: GraphWaveNetOptions(graph="roads"), "adaptive or both"),
        (lambda: GraphWaveNetOptions(dropout=-0.1), "dropout is -0.1"),
    ],
)
def test_what_it_cannot_do_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_federated_method_cannot_train_it(table, tiny):
    settings = {name: v for name, v in tiny.items() if name != "hidden_size"}
    with pytest.raises(InputError, match="method='central'"):
        Forecaster("fedavg", model="graph_wavenet", **settings).fit(table)
