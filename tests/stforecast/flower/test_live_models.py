"""Over a SuperLink and three nodes, each node's model is that of one process. Slow."""

import importlib.util

import pandas as pd
import pytest

from data_prep.cube import open_cube
from experiments import federation_demo
from experiments.local_flower import LocalFlower, follow
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower"),
]

SETTINGS = {
    **federation_demo.SETTINGS, "rounds": 2, "refit": "final", "refit_rounds": 1,
    "intervals": "conformal",
}  # fmt: skip
METHODS = {
    "fedlean": ({"extra_lags": "2-6", "profile": "none"}, SecureSums()),
    "fedtrees": ({"model": "mlp", "period": 24, "extra_lags": "", "depth": 2}, SecureSums()),
    "fuels": ({}, None),
    "fedrep": ({}, None),
    "ditto": ({}, None),
    "fedproto": ({}, None),
}
"""The default, trees, and a method of each other kind, with their own settings."""


MODELS = {"north": "dual_gru:hidden_size=4", "centre": "mlp:hidden_size=8", "south": "linear"}
"""The model of each node, where these differ."""
MIXED = {
    **{name: value for name, value in SETTINGS.items() if name != "hidden_size"},
    "refit": "never", "intervals": "none", "model": "mixed", "models": ", ".join(MODELS.values()),
}  # fmt: skip


@pytest.mark.parametrize("method", ["fedproto", "fuels"])
def test_each_node_trains_its_own_model_as_one_process_does(method, tmp_path):
    federation_demo.make_cubes(tmp_path)
    patience = Patience(start=600, answer=240)
    run = RunSettings(resolve(method, **MIXED), 9, patience, str(tmp_path / "server"))
    with LocalFlower(tmp_path / "logs") as flower:
        for name, (first, _) in federation_demo.SHARES.items():
            own = "--allow-disclosure", f"--model={MODELS[name]}"
            flower.start_node(name, tmp_path / f"{name}.nc", first, *own)
        app = write_app(tmp_path / "app", run)
        about = follow(flower, flower.run(app), tmp_path / "server", seconds=1800)
    assert about["nodes"] == 3
    with open_cube(tmp_path / "city.nc") as city:
        lines = ["cell,client,model"]
        for name, share in federation_demo.SHARES.items():
            lines += [f"{c},{c},{MODELS[name]}" for c in city["cell"].to_numpy()[slice(*share)]]
        (tmp_path / "owners.csv").write_text("\n".join(lines))
        settings = {**run.config.flat(), "clients": str(tmp_path / "owners.csv")}
        expected = Forecaster.recorded(settings).fit(city.load()).predict(city)
    for name, share in federation_demo.SHARES.items():
        [folder] = (tmp_path / f"{name}.federation").glob("run-*")
        found = Forecaster.load(folder).predict(tmp_path / f"{name}.nc")
        pd.testing.assert_frame_equal(found, expected.iloc[:, slice(*share)], rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_each_node_forecasts_as_one_process_does(method, tmp_path):
    federation_demo.make_cubes(tmp_path)
    own, secure = METHODS[method]
    config = resolve(method, **{**SETTINGS, **own})
    patience = Patience(start=600, answer=240)
    run = RunSettings(config, 9, patience, str(tmp_path / "server"), secure=secure)
    allowed = [] if secure else ["--allow-disclosure"]
    with LocalFlower(tmp_path / "logs") as flower:
        for name, (first, _) in federation_demo.SHARES.items():
            flower.start_node(name, tmp_path / f"{name}.nc", first, *allowed)
        app = write_app(tmp_path / "app", run)
        about = follow(flower, flower.run(app), tmp_path / "server", seconds=1800)
    assert about["nodes"] == 3
    with open_cube(tmp_path / "city.nc") as city:
        forecaster = Forecaster.recorded(run.config.flat()).fit(city.load())
        expected, bounds = forecaster.predict(city), forecaster.predict_interval(city)
    for name, share in federation_demo.SHARES.items():
        [folder] = (tmp_path / f"{name}.federation").glob("run-*")
        node, data = Forecaster.load(folder), tmp_path / f"{name}.nc"
        for found, whole in (
            (node.predict(data), expected),
            (node.predict_interval(data).upper, bounds.upper),
        ):
            pd.testing.assert_frame_equal(found, whole.iloc[:, slice(*share)], rtol=1e-3)
