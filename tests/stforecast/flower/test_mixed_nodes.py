"""Nodes with a model each, without Flower: errors equal a run in one process."""

import numpy as np
import pandas as pd
import pytest
from node_link import TOKEN

from data_prep.base.errors import InputError
from data_prep.cube import open_cube, write_cube
from stforecast.flower.node import FlowerNode, NodePlace
from stforecast.flower.server_app import serve
from stforecast.forecasting.forecaster import Forecaster

GRU, MLP = "dual_gru:hidden_size=4", "mlp:hidden_size=8"
SHARES = {"a": ["11"], "b": ["22", "33"]}
MIXED = {"model": "mixed", "models": f"{GRU}, {MLP}", "feature_size": 8}
KEYS = ["client", "horizon", "split", "selection", "metric"]


def values(table):
    return table.astype({"client": str, "horizon": str}).set_index(KEYS)["value"].sort_index()


@pytest.mark.quick(4)
@pytest.mark.parametrize("chosen", [(MLP, GRU), ("", ""), ("", MLP)])
@pytest.mark.parametrize("method", ["fedproto", "fuels"])
def test_nodes_train_their_own_models_as_one_process_does(
    method, chosen, federation, cube, tmp_path
):
    """A node's owner names a model, or its clients take turns by their number in the federation."""
    run, link, _ = federation(method, **MIXED)
    for node, model in enumerate(chosen):
        link.configs[node] |= {"model": model} if model else {}
    about = serve(link, run)
    assert (about["nodes"], about["left_out"]) == (2, {})
    turns = iter([GRU, MLP, GRU])
    models = {
        cell: model or turn
        for cells, model in zip(SHARES.values(), chosen, strict=True)
        for cell, turn in zip(cells, turns, strict=False)
    }
    lines = ["cell,client,model", *(f"{cell},{cell},{model}" for cell, model in models.items())]
    (tmp_path / "owners.csv").write_text("\n".join(lines))
    settings = {**run.config.flat(), "clients": str(tmp_path / "owners.csv")}
    whole = Forecaster.recorded(settings).fit(cube)
    folders = [tmp_path / f"{name}.federation" / f"run-{TOKEN}" for name in SHARES]
    found = pd.concat([values(pd.read_csv(folder / "metrics.csv")) for folder in folders])
    wanted = values(whole.evaluate())
    own = [i for i in found.index if i[0] != "all"]
    assert {i[0] for i in own} == {"11", "22", "33"}
    np.testing.assert_allclose(wanted[own], found[own], rtol=1e-4)
    forecasts = whole.predict(cube)
    for (name, cells), folder in zip(SHARES.items(), folders, strict=True):
        own = Forecaster.load(folder).predict(tmp_path / f"{name}.nc")
        np.testing.assert_allclose(own, forecasts[[int(c) for c in cells]], rtol=1e-4)


READS = {"11": f"{GRU}:inputs=none", "22": f"{MLP}:inputs=call", "33": MLP}
"""The model of each node's cell, and what it reads of the services sms and call."""


@pytest.fixture
def three(federation, cube, tmp_path):
    """Makes a run on three nodes, whose cubes hold no service that their models do not read."""
    noise = np.random.default_rng(1).normal(size=cube["sms"].shape)
    city = cube.assign(call=(("time", "cell"), 3 * cube["internet"].to_numpy() + noise))
    city["call"].attrs = cube["sms"].attrs

    def make(method, **settings):
        models = f"{READS['11']}, {MLP}"
        own = {**MIXED, "models": models, "inputs": "sms,call", **settings}
        run, link, _ = federation(method, **own)
        link.configs = {}
        for i, absent in enumerate((["sms", "call"], ["sms"], [])):
            path = tmp_path / f"{'pqr'[i]}.nc"
            write_cube(city.isel(cell=slice(i, i + 1)).drop_vars(absent), path)
            own = {"data": str(path), "first-client": i, "model": READS[str(city.cell[i].item())]}
            link.configs[i] = own | {"allow-disclosure": True}
        return run, link, city

    return make


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["fedproto", "fuels"])
def test_nodes_with_other_services_train_as_one_process_does(method, three, tmp_path):
    run, link, city = three(method)
    assert serve(link, run)["nodes"] == 3
    lines = ["cell,client,model", *(f"{cell},{cell},{model}" for cell, model in READS.items())]
    (tmp_path / "owners.csv").write_text("\n".join(lines))
    settings = {**run.config.flat(), "clients": str(tmp_path / "owners.csv")}
    settings["models"] += f", {READS['22']}"
    whole = Forecaster.recorded(settings).fit(city)
    wanted, forecasts = values(whole.evaluate()), whole.predict(city)
    for name, cell in zip("pqr", READS, strict=True):
        folder = tmp_path / f"{name}.federation" / f"run-{TOKEN}"
        found = values(pd.read_csv(folder / "metrics.csv"))
        own = [i for i in found.index if i[0] == cell]
        assert own
        np.testing.assert_allclose(wanted[own], found[own], rtol=1e-4)
        forecast = Forecaster.load(folder).predict(tmp_path / f"{name}.nc")
        np.testing.assert_allclose(forecast, forecasts[[int(cell)]], rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", r"p\.nc: .*'sms'"),
        (f"{MLP}:inputs=call", r"p\.nc: .*'call'"),
        (
            f"{MLP}:inputs=weather",
            "'weather'; .*call, none, sms",
        ),
        ("linear:inputs=none", "model 'linear:inputs=none', "),
    ],
)
def test_a_node_without_what_its_model_reads_is_refused(model, message, three):
    run, link, _ = three("fedproto")
    with pytest.raises(InputError, match=message):
        FlowerNode(run, NodePlace.of({**link.configs[0], "model": model}, TOKEN))


def test_inputs_of_another_step_are_refused_before_training(three):
    run, link, _ = three("fedproto")
    coarse = open_cube(link.configs[1]["data"]).load().isel(time=slice(None, None, 2))
    write_cube(coarse, link.configs[1]["data"])
    with pytest.raises(InputError, match=r"120 minutes, .*60 minutes"):
        FlowerNode(run, NodePlace.of(link.configs[1], TOKEN))


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        (MIXED, "linear", "'linear', .*dual_gru"),
        (
            {},
            MLP,
            "'mlp:hidden_size=8', .* dual_gru",
        ),
    ],
)
def test_a_model_that_the_federation_has_not_is_refused(settings, model, message, federation):
    run, link, _ = federation("fedproto", **settings)
    with pytest.raises(InputError, match=message):
        FlowerNode(run, NodePlace.of({**link.configs[0], "model": model}, TOKEN))


def test_a_method_that_sends_encoders_is_refused_before_the_app_is_written(federation):
    run, *_ = federation("fedavg", **{**MIXED, "models": f"{MLP}, {MLP}:inputs=none"})
    with pytest.raises(InputError, match="models differ"):
        run.check()
