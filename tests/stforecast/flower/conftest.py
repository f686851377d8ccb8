"""Runs on two nodes with a cube each, without Flower."""

import contextlib
import json
import secrets

import pytest

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import OF_SUMS, Link, Message
from stforecast.flower.node import FlowerNode, Place, in_sum
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import read_by, resolve
from stforecast.forecasting.forecaster import Forecaster

SHARES = {"a": (0, 1), "b": (1, 3)}


TOKEN = "0123456789abcdef"


def answer_anew(run, config, message):
    """The answer of a node that is started for this message, as Flower's are."""
    about = message.about
    place = Place.of(config, about["run"])
    if about["task"] in OF_SUMS:
        return in_sum(run, place, message)
    return FlowerNode(run, place, about["round"] if about["task"] == "round" else None).answer(
        message
    )


class Cubes(Link):
    """A link to nodes."""

    answer = staticmethod(answer_anew)

    def __init__(self, run, configs):
        self.run, self.configs, self.sent = RunSettings.as_run_config(run), configs, []

    def nodes(self):
        return set(self.configs)

    def ask(self, messages, timeout):
        return {node: self._answer(node, message) for node, message in messages.items()}

    def _answer(self, node, message):
        try:
            run = RunSettings.from_run_config(self.run)
            return self._post(self.answer(run, self.configs[node], self._post(message)))
        except InputError as e:
            return str(e)

    def _post(self, message):
        self.sent.append(message)
        payload = {name: t.clone() for name, t in message.payload.items()}
        return Message(json.loads(json.dumps(message.about)), payload)


@pytest.fixture
def federation(cube, tmp_path, monkeypatch):
    """Makes the settings and the link of a run on two nodes."""

    monkeypatch.setattr(secrets, "token_hex", lambda n: TOKEN)

    def make(method="fuels", firsts=(0, 1), n_clients=3, secure=None, **settings):
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
        return run, Cubes(run, configs), Forecaster(method, **read_by(method, settings))

    return make


@pytest.fixture
def task_identity():
    """Sets what Flower's messages want to know of their process."""
    with contextlib.suppress(ImportError):  # Other versions keep it elsewhere.
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("run_id", "node_id", "task_id"):
            setattr(TaskIdentity, name, 1)
