"""The Flower app of docs/flower-app gives the errors of its README, also over nodes."""

import importlib
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from data_prep.cube import open_cube
from experiments.local_flower import LocalFlower, follow
from stforecast import Forecaster
from stforecast.bench.run_groups import by_client, select
from stforecast.flower.supernode import HOST, free_port

APP = Path(__file__).resolve().parents[3] / "docs" / "flower-app"
PARTS = 3


@pytest.fixture
def settings(monkeypatch):
    """The app's module of settings, as Flower imports it."""
    monkeypatch.syspath_prepend(str(APP))
    yield importlib.import_module("fuels_app.settings")
    for name in [name for name in sys.modules if name.startswith("fuels_app")]:
        del sys.modules[name]


def configured(folder, **changed):
    table = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return {**table, "data": str(folder / "data"), "results": str(folder / "results"), **changed}


def stated():
    """The errors of the README's table: MSE and MAE by method and number of rounds."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([.\d]+) \| ([.\d]+) \|$", read(), re.M)
    return {(name, int(rounds)): [float(mse), float(mae)] for name, rounds, mse, mae in rows}


def read():
    return (APP / "README.md").read_text()


def errors(forecaster):
    table = by_client(forecaster.evaluate())
    found = [select(table, metric=m, split="test", selection="best") for m in ("mse", "mae")]
    return [float(of_cells["value"].mean()) for of_cells in found]


def in_one_process(settings, values, method):
    config = settings.settings_of(values).config.flat()
    path, _ = settings.data_of(values, 0, 1)
    shared = ("service", "split", "device", "rounds", "hidden_size", "lr", "seed")
    given = {name: config[name] for name in shared}
    with open_cube(path) as city:
        return errors(Forecaster(method, **given).fit(city.load()))


def test_the_readme_has_the_errors_of_training_in_one_process(settings, tmp_path):
    """Rounding differs by processor, and a training amplifies it."""
    rounds = configured(tmp_path)["rounds"]
    assert stated().keys() == {("fuels", 3), ("fuels", rounds), ("solo", rounds)}
    for (method, n), expected in stated().items():
        found = in_one_process(settings, configured(tmp_path, rounds=n), method)
        assert found == pytest.approx(expected, rel=0.1)


def test_nodes_have_the_cells_one_after_another(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "DAYS", 2)
    values = configured(tmp_path, cells=4)
    found = [settings.data_of(values, part, PARTS) for part in range(PARTS)]
    assert [first for _, first in found] == [0, 1, 2]
    names = []
    for path, _ in found:
        with open_cube(path) as cube:
            names += cube["cell"].to_numpy().tolist()
    with open_cube(settings.data_of(values, 0, 1)[0]) as city:
        assert names == city["cell"].to_numpy().tolist()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower")
def test_flwr_run_gives_the_errors_of_one_process(settings, tmp_path):
    values = configured(tmp_path, rounds=3)
    node = ["flower-supernode", "--insecure", "--host", HOST]
    with LocalFlower(tmp_path / "logs") as flower:
        for part in range(PARTS):
            place = ["--superlink", flower.address, "--port", free_port()]
            partition = f"partition-id={part} num-partitions={PARTS}"
            flower.start(f"node-{part}", *node, *place, "--node-config", partition)
        changed = " ".join(f"{n}={json.dumps(values[n])}" for n in ("rounds", "data", "results"))
        answer = flower.flwr("run", APP, "--format", "json", "--run-config", changed)
        run = str(json.loads(answer[answer.index("{") :])["run-id"])
        about = follow(flower, run, tmp_path / "results", seconds=1500)
    found = [about["test"][metric] for metric in ("mse", "mae")]
    assert about["nodes"] == PARTS
    assert found == pytest.approx(in_one_process(settings, values, "fuels"), rel=1e-3)
    assert found == pytest.approx(stated()["fuels", 3], rel=0.1)
