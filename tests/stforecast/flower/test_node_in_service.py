"""The model that a federation left on a node does what any saved model does, on real cells."""

import json
import secrets
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from node_link import TOKEN, NodeLink

from data_prep.cube import open_cube, write_cube
from data_prep.sets.milan import prepare
from stforecast.cli.main import cli
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower import client_app
from stforecast.flower.server_app import prepare_continuation, serve
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import resolve
from stforecast.forecasting.export import graph_inputs
from stforecast.forecasting.forecaster import Forecaster

pytestmark = pytest.mark.slow

SHARES = {"north": (0, 5), "centre": (5, 10), "south": (10, 15)}
SETTINGS = {
    "service": "internet", "horizon": 24, "split": "time:0.7,0.15,0.15", "device": "cpu",
    "rounds": 2, "intervals": "conformal",
}  # fmt: skip
SMALL = {"hidden_size": 8}
METHODS = {
    "fedlean": ({**SMALL, "refit": "final", "refit_rounds": 1}, SecureSums()),
    "fedtrees": ({"depth": 2, "rounds": 3, "refit": "final", "refit_rounds": 1}, SecureSums()),
    "fuels": (SMALL, None),
    "protoridge": ({}, None),
    "fedrep": (SMALL, SecureSums()),
    "fedavg": ({"model": "linear"}, SecureSums()),
    "fedda": ({**SMALL, "warmup_epochs": 2}, None),
    "ditto": (SMALL, SecureSums()),
    "fedproto": (SMALL, None),
}
"""A method of each kind with its settings, and how its uploads cross."""

STEPS = 600
"""Steps of history that exported graphs read: the nodes have 624."""


@pytest.fixture(scope="module")
def milan(traffic_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("milan") / "milan.nc"
    with open_cube(prepare(traffic_dir / "milan-25cells-raw", path)) as cube:
        return cube[["internet"]].load()


def deliver(milan, folder, begin, end):
    """Write each node's cells on some days of November."""
    days = milan.isel(time=slice(24 * (begin - 1), 24 * end))
    folder.mkdir(exist_ok=True)
    for name, share in SHARES.items():
        write_cube(days.isel(cell=slice(*share)), folder / f"{name}.nc")
    return folder


def command(*words):
    done = CliRunner().invoke(cli, list(map(str, words)))
    assert not isinstance(done.exception, Exception), done.output
    return done


@pytest.mark.parametrize("method", METHODS)
def test_a_nodes_model_is_used_as_any_other(method, milan, tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda n: TOKEN)
    own, secure = METHODS[method]
    nodes = deliver(milan, tmp_path / "nodes", 1, 26)
    run = RunSettings(
        resolve(method, **{**SETTINGS, **own}), 15, Patience(0.1, 1, 0.01),
        str(tmp_path / "server"), secure=secure,
    )  # fmt: skip
    configs = {
        node: {
            "data": str(nodes / f"{name}.nc"),
            "first-client": share[0],
            "allow-disclosure": not secure,
        }
        for node, (name, share) in enumerate(SHARES.items())
    }
    link = NodeLink(run, configs)
    link.answer = client_app.answer_of_node
    monkeypatch.setattr(client_app, "_kept", {})
    assert serve(link, run)["nodes"] == 3
    folder = nodes / "north.federation" / f"run-{TOKEN}"
    expected = forecasts_of_the_coming_day(folder, nodes / "north.nc", tmp_path)
    check_graph(folder, nodes / "north.nc", expected, tmp_path)
    check_service(folder, expected)
    newer = deliver(milan, tmp_path / "newer", 1, 30) / "north.nc"
    check_on_new_data(folder, newer)
    check_day(folder, deliver(milan, tmp_path / "day", 27, 27) / "north.nc", expected)
    further = prepare_continuation(run, tmp_path / "further", 1)
    deliver(milan, nodes, 1, 29)
    monkeypatch.setattr(secrets, "token_hex", lambda n: "f" * 16)
    assert serve(NodeLink(further, configs), further)["nodes"] == 3
    renewed = nodes / "north.federation" / f"run-{'f' * 16}"
    assert Forecaster.load(renewed).predict(nodes / "north.nc").notna().all(axis=None)


def forecasts_of_the_coming_day(folder, data, tmp_path):
    """What `predict` writes is what the model forecasts, for the day after the data."""
    out = tmp_path / "forecast.csv"
    assert command("predict", folder, "--history", data, "--out", out).exit_code == 0
    table, forecaster = pd.read_csv(out), Forecaster.load(folder)
    expected, bounds = forecaster.predict(data), forecaster.predict_interval(data)
    wide = table.pivot_table("internet", "time", "cell", sort=False)
    np.testing.assert_allclose(wide.to_numpy(), expected.to_numpy(), rtol=1e-5)
    assert str(expected.index[0]) == "2013-11-27 00:00:00+01:00"
    assert (bounds.lower <= expected).all(axis=None)
    assert (expected <= bounds.upper).all(axis=None)
    return expected


def check_graph(folder, data, expected, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    graph = tmp_path / "model.onnx"
    assert command("export", folder, "--onnx", graph, "--steps", STEPS).exit_code == 0
    session = runtime.InferenceSession(graph)
    model = Forecaster.load(folder).model_
    [found, *_] = session.run(None, graph_inputs(model, model.read(data), STEPS))
    short = open_cube(data).isel(time=slice(-STEPS, None))
    alone = Forecaster.load(folder).predict(short.load())
    np.testing.assert_allclose(found, alone.to_numpy(), rtol=1e-4)
    assert found.shape == expected.shape


def check_service(folder, expected):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2", reason="starlette's test client needs it")
    from fastapi.testclient import TestClient

    from stforecast.service.serve import ForecastService, make_app

    client = TestClient(make_app(ForecastService(folder)), base_url="http://localhost")
    answer = client.get("/forecast").json()
    cells = {int(cell): about["forecast"] for cell, about in answer["cells"].items()}
    np.testing.assert_allclose(pd.DataFrame(cells), expected.to_numpy(), rtol=1e-5)


def check_on_new_data(folder, newer):
    """The node's owner tests its model, and trains a copy of it further."""
    done = command("federate", "check", folder, "--data", newer, "--days", 4)
    found = json.loads(done.stdout)
    assert done.exit_code == (0 if found["accepted"] else 20)
    assert (found["cells"], found["steps"]) == (5, 96)
    assert not found["seen_in_training"]
    copy = Path(shutil.copytree(folder, folder.parent / "copy"))
    done = command("federate", "update-alone", copy, "--data", newer, "--days", 4)
    assert done.exit_code in (12, 14)
    assert Forecaster.load(copy).predict(newer).notna().all(axis=None)


def check_day(folder, day, before):
    """A day of records begins the service of the model, which then forecasts the next."""
    done = command("update", folder, "--new", day)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["cells"], found["changed"]) == (5, 5 * 24)
    table = pd.read_csv(found["file"])
    assert table["time"].iloc[0] == str(before.index[0] + pd.Timedelta(1, "D"))
    assert table["internet"].notna().all()
