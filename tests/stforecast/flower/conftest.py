"""Runs on two nodes with a cube each, without Flower."""

import contextlib
import secrets

import pytest
from node_link import TOKEN, NodeLink

from data_prep.cube import write_cube
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import read_by, resolve
from stforecast.forecasting.forecaster import Forecaster

SHARES = {"a": (0, 1), "b": (1, 3)}


@pytest.fixture
def federation(cube, tmp_path, monkeypatch):
    """Makes the settings and the link of a run on two nodes, whose owners have `allowed` all."""

    monkeypatch.setattr(secrets, "token_hex", lambda n: TOKEN)

    def make(method="fuels", firsts=(0, 1), n_clients=3, secure=None, allowed=True, **settings):
        settings = {
            "service": "internet", "split": "days:7,1,2", "rounds": 2, "device": "cpu",
            "refit": "never",
            **({} if "model" in settings else {"hidden_size": 8}), **settings,
        }  # fmt: skip
        run = RunSettings(
            resolve(method, **settings), n_clients, Patience(0.1, 1, 0.01),
            str(tmp_path / "server"), secure=secure,
        )  # fmt: skip
        configs = {}
        for node, (name, (first, end)) in enumerate(SHARES.items()):
            path = write_cube(cube.isel(cell=slice(first, end)), tmp_path / f"{name}.nc")
            configs[node] = {"data": str(path), "first-client": firsts[node]}
            configs[node] |= {"allow-disclosure": True} if allowed else {}
        return run, NodeLink(run, configs), Forecaster(method, **read_by(method, settings))

    return make


@pytest.fixture
def task_identity():
    """Sets what Flower's messages want to know of their process."""
    with contextlib.suppress(ImportError):  # Other versions keep it elsewhere.
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("run_id", "node_id", "task_id"):
            setattr(TaskIdentity, name, 1)
