"""Totals over a SuperLink and five nodes with districts, one of which is killed. Slow."""

import importlib.util

import numpy as np
import pandas as pd
import pytest
from supernodes import changed_node

from data_prep.cube import open_cube, write_cube
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

SHARES = {"north": (0, 2), "centre": (2, 4), "south": (4, 6), "east": (6, 8), "west": (8, 11)}
DISTRICTS = "ababacacabc"
"""District of each cell: b and c are on three nodes, one of which is killed."""

KILLED = """
import os, signal

def change(module):
    sound, sound_totals, asked = module.in_sum, module.in_totals, []

    def in_totals(run, place, message):
        asked.append(message.about["task"])
        return sound_totals(run, place, message)

    def in_sum(run, place, message):
        if message.about["task"] == "mask" and "total" in asked:
            os.kill(os.getppid(), signal.SIGKILL)
        return sound(run, place, message)

    module.in_sum, module.in_totals = in_sum, in_totals
"""
"""What kills a node when it is asked for its masked values of the totals."""


def test_districts_are_added_up_again_without_a_node_that_is_killed(tmp_path):
    federation_demo.make_cubes(tmp_path, SHARES)
    for name, (first, end) in SHARES.items():
        with open_cube(tmp_path / f"{name}.nc") as cube:
            part = cube.load()
        part = part.assign_coords(district=("cell", list(DISTRICTS[first:end])))
        part["internet"].attrs["units"] = "MB"
        write_cube(part, tmp_path / f"{name}.nc")
    ids = {name: open_cube(tmp_path / f"{name}.nc")["cell"].to_numpy() for name in SHARES}
    lines = [f"{cell},{of}" for cell, of in zip(ids["north"], DISTRICTS, strict=False)]
    table = tmp_path / "north.csv"
    table.write_text("\n".join(["cell,district", *lines]))
    settings = {
        **federation_demo.SETTINGS, "rounds": 1, "refit": "never", "intervals": "conformal",
    }  # fmt: skip
    run = RunSettings(
        resolve("fedavg", **settings), len(DISTRICTS),
        Patience(start=600, answer=60, min_parties=3), str(tmp_path / "server"),
        secure=SecureSums(), totals=True, units="MB", time_zone="Europe/Rome",
    )  # fmt: skip
    app = write_app(tmp_path / "app", run)
    killed = changed_node(tmp_path / "killed", KILLED)
    with LocalFlower(tmp_path / "logs") as flower:
        for name, (first, _) in SHARES.items():
            groups = table if name == "north" else "district"
            flower.start_node(
                name, tmp_path / f"{name}.nc", first, "--share-totals", f"--groups={groups}",
                paths=killed if name == "west" else (),
            )  # fmt: skip
        about = follow(flower, flower.run(app), tmp_path / "server", seconds=1800)["totals"]
    assert (about["nodes"], list(about["groups"])) == (4, ["district a"])
    assert about["groups"]["district a"]["nodes"] == 4
    assert set(about["groups_left_out"]) == {"district b", "district c"}
    assert list(about["left_out"].values()) == ["it left the sum"]
    forecasts, of_a = [], []
    for name in SHARES.keys() - {"west"}:
        [folder] = (tmp_path / f"{name}.federation").glob("run-*")
        forecast, _ = Forecaster.load(folder).outlook(tmp_path / f"{name}.nc")
        forecasts.append(forecast.sum(axis=1))
        of_a.append(forecast[ids[name][0]])
    found = pd.read_csv(tmp_path / "server" / "totals.csv").set_index("group")["forecast"]
    np.testing.assert_allclose(found["district a"], sum(of_a), rtol=1e-6)
    np.testing.assert_allclose(found["all"], sum(forecasts), rtol=1e-6)
