"""Work spread over Ray's workers: the same results, and lost workers are made good."""

import os
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mentions import mentions
from waiting import Killed

from data_prep.base.errors import InputError
from data_prep.city.simulate import simulate
from data_prep.sets.milan import prepare
from data_prep.sets.telecom_italia import cdr
from stforecast import Forecaster
from stforecast.bench import ray as ray_engine
from stforecast.bench import ray_actors
from stforecast.bench.jobs import run_grid
from stforecast.bench.ray import ray_map
from stforecast.cli.main import main
from stforecast.forecasting import evaluate, trained_method
from stforecast.forecasting.kept_shards import KeptShards
from stforecast.forecasting.runs import resume, run


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    simulate(folder, cells=4, days=3, seed=1)
    return folder


def test_ray_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"ray .*pip"):
        ray_engine.do_each(print, [1], "nothing")


def test_days_are_summed_by_workers_alone(ray, raw, tmp_path, monkeypatch):
    alone = prepare(raw, tmp_path / "alone.nc", step="30min")

    def unread(*args):
        raise AssertionError("a day was read here")

    monkeypatch.setattr(cdr, "_blocks", unread)
    spread = prepare(raw, tmp_path / "spread.nc", step="30min", spread=ray_map)
    assert spread.read_bytes() == alone.read_bytes()


def test_a_damaged_day_is_refused_as_in_one_process(ray, raw, tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for path in raw.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    day = min(folder.glob("sms-*.txt"))
    day.write_text("this is no record\n" + day.read_text())
    with pytest.raises(InputError, match=rf"^{day}: line 1: found"):
        prepare(folder, tmp_path / "cube.nc", spread=ray_map)


def test_a_lost_workers_task_is_done_again(ray, tmp_path):
    def fragile(path):
        """Writes a file; the worker of the second one is killed the first time."""
        tries = len(list(path.parent.glob(f"{path.name}-*")))
        (path.parent / f"{path.name}-{tries}").touch()
        if path.name == "b" and not tries:
            os.kill(os.getpid(), signal.SIGKILL)
        path.write_text(path.name)

    paths = [tmp_path / name for name in "abc"]
    assert ray_engine.do_each(fragile, paths, "files") == {}
    assert [path.read_text() for path in paths] == ["a", "b", "c"]
    assert len(list(tmp_path.glob("b-*"))) == 2


def test_failures_are_told_by_position_and_do_not_stop_others(ray):
    def odd(n):
        if n == 1:
            raise InputError("one is odd")
        if n == 3:
            raise KeyError("three")

    assert ray_engine.do_each(odd, [0, 1, 2, 3], "numbers") == {
        1: "one is odd",
        3: "KeyError: 'three'",
    }


def test_relative_paths_mean_the_same_everywhere(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ray_engine.do_each(lambda name: Path(name).touch(), ["here"], "files") == {}
    assert (tmp_path / "here").exists()


def test_a_benchmarks_runs_equal_those_of_one_process(ray, write, tmp_path, monkeypatch):
    grid = write('["ridge", "solo"]', 'services = ["sms"]\nseeds = [1, 2]')
    alone = run_grid(grid, tmp_path / "alone")
    spread = run_grid(grid, tmp_path / "spread", engine="ray")
    assert not spread.failures
    for own, other in zip(alone.runs, spread.runs, strict=True):
        pd.testing.assert_frame_equal(own.metrics(), other.metrics())
        np.testing.assert_array_equal(own.forecasts()["y_hat"], other.forecasts()["y_hat"])


def test_only_what_is_not_finished_is_done(monkeypatch):
    asked = []
    monkeypatch.setattr(
        ray_engine, "do_each", lambda do, items, *_, **__: asked.extend(items) or {1: "bad luck"}
    )
    jobs = [
        types.SimpleNamespace(name=name, finished=lambda done=done: done)
        for name, done in [("a", None), ("b", "run"), ("c", None)]
    ]
    ray_engine.do_runs(jobs, "runs")
    assert [job.name for job in asked] == ["a", "c"]


def test_the_commands_take_the_engine(ray, raw, town, tiny_settings, tmp_path):
    bench = tmp_path / "bench.toml"
    bench.write_text(
        f'data = ["{town}"]\nservices = ["sms"]\nmethods = ["ridge", "fedavg"]\n'
        f"[settings]\n{tiny_settings}"
    )
    out = tmp_path / "cube.nc"
    for words in (
        ["prepare", "milan", "--raw", raw, "--out", out, "--engine", "ray"],
        ["bench", bench, "--out", tmp_path / "results", "--engine", "ray"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert not stop.value.code
    assert out.exists()
    assert "ridge" in (tmp_path / "results" / "table.md").read_text()


@pytest.fixture
def actors(monkeypatch):
    """All actors that were made in the test."""
    made = []

    class Noted(ray_actors.RayActors):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(ray_actors, "RayActors", Noted)
    return made


@pytest.fixture
def short():
    """Settings of a run whose cohorts are the same in one process and in two actors."""
    return {
        "service": "internet", "split": "days:7,1,2", "rounds": 3, "hidden_size": 8, "cohort": 2,
        "epochs": 1, "device": "cpu",
    }  # fmt: skip


def test_a_run_over_actors_forecasts_the_same_though_one_is_killed(
    ray, town, short, actors, caplog
):
    def kill(report):
        if report.round == 2:
            ray.kill(actors[0].handles[1])

    alone = Forecaster("fuels", **short).fit(town)
    spread = Forecaster("fuels", **short, engine="ray", actors=2).fit(town, kill)
    np.testing.assert_array_equal(spread.test_forecasts()["y_hat"], alone.test_forecasts()["y_hat"])
    numbers = [f.rounds_.drop(columns="seconds") for f in (alone, spread)]
    pd.testing.assert_frame_equal(*numbers, check_exact=True)
    assert mentions(caplog.text, "round 3:", "2 to 2", "(ActorDiedError")
    assert not actors[0].handles


def test_an_error_in_an_actor_is_that_of_one_process(ray, town, short):
    private = {"noise": "gaussian", "clip": 1.0}
    for more in ({}, {"engine": "ray", "actors": 2}):
        with pytest.raises(InputError, match=r"counters \(\w+"):
            Forecaster("fedproto", **short, **private, **more).fit(town)


def test_actors_that_the_cluster_has_no_cores_for_are_refused(ray, town, short):
    with pytest.raises(InputError, match=r"3 actors .*1 core .*2 c"):
        Forecaster("fedavg", **short, engine="ray", actors=3).fit(town)


@pytest.mark.parametrize("killed", [False, True])
def test_shards_are_evaluated_by_tasks_with_the_same_files(
    ray, town, short, tmp_path, monkeypatch, killed
):
    monkeypatch.setattr(evaluate, "SHARD", 1)
    monkeypatch.setattr(trained_method, "WHOLE", 0)  # Actors cut their samples themselves.
    settings = {**short, "refit": "once", "intervals": "normalised", "workers": 1}
    tried, here, do = tmp_path / "tried", os.getpid(), evaluate.evaluate_shard

    def fragile(work):
        """Its worker is killed with the first shard."""
        assert os.getpid() != here
        is_first = not tried.exists()
        tried.touch()
        if killed and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return do(work)

    run("fedlean", town, tmp_path / "alone", settings)
    monkeypatch.setattr(evaluate, "evaluate_shard", fragile)
    run("fedlean", town, tmp_path / "spread", {**settings, "engine": "ray", "actors": 2})
    for name in ("metrics.csv", "model/state.safetensors", "forecasts.nc"):
        alone, spread = ((tmp_path / of / name).read_bytes() for of in ("alone", "spread"))
        assert spread == alone, name
    assert tried.exists()


@pytest.mark.slow
@pytest.mark.attack("kills")
def test_a_run_killed_between_shards_of_tasks_goes_on_after_them(
    ray, town, short, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluate, "SHARD", 1)
    settings = {**short, "workers": 1, "checkpoint_every": 1, "cohort": 1}
    run("fedavg", town, tmp_path / "alone", settings)
    out, save = tmp_path / "spread", KeptShards.save

    def killed(self, some, results):
        save(self, some, results)
        raise Killed

    monkeypatch.setattr(KeptShards, "save", killed)
    with pytest.raises(Killed):
        run("fedavg", town, out, {**settings, "engine": "ray", "actors": 2})
    monkeypatch.setattr(KeptShards, "save", save)
    assert len(list(out.glob("checkpoints/shards-*/cells-0"))) == 1
    resume(out)
    for name in ("metrics.csv", "model/state.safetensors", "forecasts.nc"):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


def test_an_error_in_a_shard_is_that_of_one_process(ray, town, short, monkeypatch):
    def odd(work):
        raise InputError("this shard is odd")

    monkeypatch.setattr(evaluate, "SHARD", 1)
    monkeypatch.setattr(evaluate, "evaluate_shard", odd)
    forecaster = Forecaster("fedavg", **short, engine="ray", actors=2).fit(town)
    with pytest.raises(InputError, match=r"^this shard"):
        forecaster.evaluate()


def test_without_ray_the_command_says_what_to_install(monkeypatch, raw, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["prepare", "milan", "--raw", raw, "--out", tmp_path / "cube.nc", "--engine", "ray"]
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    assert "pip install 'stforecast[ray]'" in capsys.readouterr().err
