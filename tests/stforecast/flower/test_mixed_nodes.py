"""Nodes with a model each, without Flower: errors equal a run in one process."""

import numpy as np
import pandas as pd
import pytest
from node_link import TOKEN

from data_prep.base.errors import InputError
from stforecast.flower.node import FlowerNode, Place
from stforecast.flower.server_app import serve
from stforecast.forecasting.forecaster import Forecaster

GRU, MLP = "dual_gru:hidden_size=4", "mlp:hidden_size=8"
SHARES = {"a": ["11"], "b": ["22", "33"]}
MIXED = {"model": "mixed", "models": f"{GRU}, {MLP}", "feature_size": 8}
KEYS = ["client", "horizon", "split", "selection", "metric"]


def values(table):
    return table.astype({"client": str, "horizon": str}).set_index(KEYS)["value"].sort_index()


@pytest.mark.quick(2)
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


@pytest.mark.parametrize(
    ("settings", "model", "message"),
    [
        (MIXED, "linear", "a client has the model 'linear', which is not among dual_gru"),
        (
            {},
            MLP,
            "this node has the model 'mlp:hidden_size=8', but all clients of the .* dual_gru",
        ),
    ],
)
def test_a_model_that_the_federation_has_not_is_refused(settings, model, message, federation):
    run, link, _ = federation("fedproto", **settings)
    with pytest.raises(InputError, match=message):
        FlowerNode(run, Place.of({**link.configs[0], "model": model}, TOKEN))


def test_a_method_that_sends_encoders_is_refused_before_the_app_is_written(federation):
    run, *_ = federation("fedavg", **MIXED)
    with pytest.raises(InputError, match="the clients' models differ"):
        run.check()
