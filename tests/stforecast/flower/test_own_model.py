"""A node's own model: the check on its own data, and training without a server."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.cli.federate import federate_command
from stforecast.flower.own_model import check_model, train_alone
from stforecast.forecasting.forecaster import Forecaster
from stforecast.service.update import CODES, FURTHER, KEPT


@pytest.fixture
def model(cube, tmp_path):
    """A model of the first week, as a node keeps it."""
    early = cube.isel(time=slice(0, 7 * 24))
    fitted = Forecaster(
        "solo", model="linear", service="internet", split="days:4,1,2", periods=1, rounds=3,
        device="cpu",
    )  # fmt: skip
    fitted.fit(early).save(tmp_path / "run" / "model")
    return tmp_path / "run"


def ask(*words):
    done = CliRunner().invoke(federate_command, list(map(str, words)))
    return done.exit_code, json.loads(done.stdout)


def test_a_model_is_accepted_on_data_like_its_own_only(model, cube, cube_path, tmp_path):
    code, found = ask("check", model, "--data", cube_path, "--days", 2, "--most-mase", 1.5)
    assert (code, found["accepted"], found["seen_in_training"]) == (0, True, False)
    assert 0 < found["mase"] <= 1.5
    assert (found["steps"], found["n"], found["cells"]) == (48, 3 * 48, 3)
    assert found["until"] == "2013-11-11 01:00:00"
    odd = cube.copy()
    values = odd["internet"].to_numpy().copy()
    values[-48:, 0] += 1.5 * np.quantile(values[:, 0], 0.9)
    odd["internet"] = (("time", "cell"), values, cube["internet"].attrs)
    code, found = ask(
        "check", model, "--data", write_cube(odd, tmp_path / "odd.nc"), "--days", 2,
        "--most-mase", 1.5,
    )  # fmt: skip
    assert (code, found["accepted"]) == (20, False)
    assert found["worse"].startswith("11")


def test_a_check_on_days_of_training_says_so(model, cube, cube_path):
    assert check_model(model, cube_path, 7, 9.0)["seen_in_training"]


def test_a_check_without_readings_is_refused(model, cube, tmp_path):
    empty = cube.copy()
    values = empty["internet"].to_numpy().copy()
    values[-48:] = np.nan
    empty["internet"] = (("time", "cell"), values, cube["internet"].attrs)
    with pytest.raises(InputError, match="last 48 steps"):
        check_model(model, write_cube(empty, tmp_path / "empty.nc"), 2, 1.0)


def test_a_node_replaces_its_model_if_the_new_one_wins(model, cube_path, monkeypatch):
    state = model / "model" / "state.safetensors"
    before = state.read_bytes()
    for level, action in ((0.999, KEPT), (1e-9, FURTHER)):
        code, found = ask("update-alone", model, "--data", cube_path, "--days", 2, "--level", level)
        if found["against_champion_high"] >= 0:
            action = KEPT
        assert (found["action"], code) == (action, CODES[action])
        assert (state.read_bytes() == before) == (action == KEPT)
    assert Forecaster.load(model).predict(cube_path).notna().all(axis=None)


def test_a_trial_on_days_of_training_is_refused(model, cube_path):
    with pytest.raises(InputError, match=r"2013-11-05 .*newer"):
        train_alone(model, cube_path, 7, 0.9)
