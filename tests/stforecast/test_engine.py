"""Runs whose clients are spread over actors; those here are in this process."""

import sys
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.bench import ray, ray_actors
from stforecast.federated.engine.actors import Lost
from stforecast.forecasting.config import read_by
from stforecast.forecasting.runs import resume, run


class Actors(dict):
    """Three actors; the second one is lost before the second round."""

    lost = False

    def __len__(self):
        return 3

    def start(self, i, make):
        self[i] = make()

    def ask(self, calls):
        return {i: self.answer(i, *call) for i, call in calls.items()}

    def answer(self, i, name, sent, *args):
        if i == 1 and sent.round == 1 and not self.lost:
            self.lost = True
            return Lost("out of memory")
        return getattr(self[i], name)(sent, *args)


@pytest.fixture
def actors(monkeypatch):
    """Each cluster of actors that was used, with what was asked for."""
    made = []

    @contextmanager
    def connect(n, threads, most):
        made.append((n, threads, most))
        yield Actors()

    monkeypatch.setattr(ray_actors, "ray_actors", connect)
    monkeypatch.setattr(ray, "cluster", lambda n: nullcontext())
    return made


@pytest.fixture
def settings(tiny):
    return {**tiny, "service": "internet", "seed": 2, "rounds": 3, "cohort": 1}


def test_a_run_over_actors_forecasts_the_same(cube_path, settings, actors, caplog):
    alone = Forecaster("fuels", **settings).fit(cube_path)
    spread = Forecaster("fuels", **settings, engine="ray", workers=2).fit(cube_path)
    np.testing.assert_array_equal(spread.test_forecasts()["y_hat"], alone.test_forecasts()["y_hat"])
    numbers = [f.rounds_.drop(columns="seconds") for f in (alone, spread)]
    assert numbers[0].equals(numbers[1])
    assert actors == [(0, 2, 3)]
    assert mentions(caplog.text, "clients 1 to 1", "memory)")


@pytest.mark.repeats
def test_a_run_over_actors_goes_on_over_actors(cube_path, settings, actors, tmp_path):
    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    settings |= {"checkpoint_every": 1}
    whole = run("fedavg", cube_path, tmp_path / "whole", settings)
    out, settings = tmp_path / "stopped", {**settings, "engine": "ray", "actors": 3}
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", cube_path, out, settings, after_round=stop)
    found = resume(out)
    np.testing.assert_array_equal(found.forecasts()["y_hat"], whole.forecasts()["y_hat"])
    assert actors == [(3, 1, 3)] * 2


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("fedavg", {"actors": 4}, "4 actors .*3 clients"),
        ("fedavg", {"actors": 3, "clients": "all"}, "3 actors .*1 client; "),
        ("central", {}, "central .*actors"),
        ("fedavg", {"device": "cuda"}, "device is 'cuda'"),
        ("fedavg", {"engine": "local", "actors": 2}, "actors is 2"),
        ("fedavg", {}, r"ray .*'stforecast\[ray\]'"),
    ],
)
def test_what_cannot_be_spread_is_told(method, settings, message, table, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=message):
        Forecaster(
            method, **read_by(method, {**read_by(method, tiny), "engine": "ray", **settings})
        ).fit(table)


def test_reference_forecasters_do_not_read_the_engine():
    with pytest.raises(InputError, match=r"seasonal_day.*engine"):
        Forecaster("seasonal_day", engine="ray")
