"""A finished federation goes on with new data, over a SuperLink and three nodes. Slow."""

import importlib.util
import secrets

import pandas as pd
import pytest
from click.testing import CliRunner

from data_prep.cube import open_cube, write_cube
from experiments import federation_demo
from experiments.local_flower import LocalFlower, follow
from stforecast.cli.federate import federate_command
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.server_app import prepare_continuation, serve
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower"),
]

SETTINGS = {**federation_demo.SETTINGS, "split": "time:0.7,0.1,0.2", "rounds": 1}


def write_days(folder, days):
    """Write the nodes' cubes of the first days; return their paths by name."""
    with open_cube(folder.parent / "city.nc") as city:
        part = city.isel(time=slice(0, city.sizes["time"] * days // federation_demo.DAYS)).load()
    return {
        name: write_cube(part.isel(cell=slice(*share)), folder / f"{name}.nc")
        for name, share in federation_demo.SHARES.items()
    }


def test_the_numbers_are_those_of_nodes_without_flower(tmp_path, federation, monkeypatch):
    federation_demo.make_cubes(tmp_path)
    live, alone = tmp_path / "live", tmp_path / "alone"
    runs = {}
    for folder in (live, alone):
        folder.mkdir()
        config = resolve("fuels", **SETTINGS)
        runs[folder] = RunSettings(
            config, 9, Patience(start=600, answer=240), str(folder / "run-1")
        )
    cubes, app = write_days(live, 8), write_app(live / "app", runs[live])
    with LocalFlower(tmp_path / "logs") as flower:
        for name, (first, _) in federation_demo.SHARES.items():
            flower.start_node(name, cubes[name], first)
        follow(flower, flower.run(app), live / "run-1", seconds=1800)
        write_days(live, 10)
        words = ["update", app, "--rounds", 1, "--out", live / "app-2", "--results", live / "run-2"]
        said = CliRunner().invoke(federate_command, list(map(str, words)), catch_exceptions=False)
        assert f"flwr run {live / 'app-2'} --stream" in said.output
        about = follow(flower, flower.run(live / "app-2"), live / "run-2", seconds=1800)
    assert about["nodes"] == 3

    _, link, _ = federation()
    configs = {
        i: {"data": str(alone / f"{name}.nc"), "first-client": first}
        for i, (name, (first, _)) in enumerate(federation_demo.SHARES.items())
    }
    write_days(alone, 8)
    serve(type(link)(runs[alone], configs), runs[alone])
    write_days(alone, 10)
    further = prepare_continuation(runs[alone], alone / "run-2", 1)
    monkeypatch.setattr(secrets, "token_hex", lambda n: "f" * 16)
    expected = serve(type(link)(further, configs), further)
    assert about["test"] == pytest.approx(expected["test"], rel=1e-4)
    rounds = [pd.read_csv(folder / "run-2" / "rounds.csv") for folder in (live, alone)]
    for name in ("train_loss", "validation_loss", "participants", "failed"):
        assert rounds[0][name].tolist() == pytest.approx(rounds[1][name].tolist(), rel=1e-4), name
    assert len(rounds[0]) == 1
