"""Secure aggregation over a SuperLink and three SuperNodes on this machine. Slow; needs Flower."""

import importlib.util
import math
import signal
from functools import partial

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from supernodes import changed_node, start_supernode
from waiting import wait_for

from experiments import federation_demo
from experiments.benchmarks.hostile import WireLink
from experiments.local_flower import LocalFlower, follow
from stforecast.cli.federate import federate_command
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.runs.checkpoint import load_checkpoint
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.server_app import LAST, serve
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower"),
]

ROUNDS = 2

DAYS = 29
"""Days of the default settings: its lags reach back a week."""

STALLED = """
import pathlib, time

def change(module):
    sound = module.in_sum

    def in_sum(run, place, message):
        if message.about["task"] == "unmask":
            pathlib.Path("UNMASKED").touch()
            time.sleep(600)
        return sound(run, place, message)

    module.in_sum = in_sum
"""
"""A node that writes the file UNMASKED and stalls after its masked values arrived."""


def make_app(folder, rounds=ROUNDS):
    config = resolve("fedavg", **federation_demo.SETTINGS, rounds=rounds)
    patience = Patience(start=600, answer=240)
    run = RunSettings(config, 9, patience, str(folder), secure=SecureSums())
    return write_app(folder / "app", run)


def start_nodes(flower, cubes, stalling=None):
    for path, (name, (first, _)) in zip(cubes, federation_demo.SHARES.items(), strict=True):
        start_supernode(flower, name, path, first, paths=(stalling or {}).get(name, ()))


def test_numbers_are_those_of_a_run_without_it(tmp_path):
    cubes = federation_demo.make_cubes(tmp_path)
    app = make_app(tmp_path)
    with LocalFlower(tmp_path / "logs") as flower:
        start_nodes(flower, cubes)
        about = follow(flower, flower.run(app), tmp_path, seconds=1800)
    alone = Forecaster("fedavg", **federation_demo.SETTINGS, rounds=ROUNDS)
    alone.fit(tmp_path / "city.nc")
    found = pd.read_csv(tmp_path / "rounds.csv")
    for name in ("train_loss", "train_task_loss", "validation_loss", "participants", "failed"):
        assert found[name].tolist() == pytest.approx(alone.rounds_[name].tolist(), rel=1e-4), name
    settings = {**federation_demo.SETTINGS, "rounds": ROUNDS}
    mse = federation_demo.in_one_process(tmp_path, "fedavg", settings)
    assert about["test"]["mse"] == pytest.approx(mse, rel=1e-4)
    assert about["nodes"] == 3
    assert not list(tmp_path.glob("*.federation/run-*/secure-sum"))


def test_nodes_share_the_noise_of_a_sum(tmp_path):
    """The model is that of a run without noise, and as much noise as three of two nodes add."""
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    cubes, clients, noise_std = federation_demo.make_cubes(tmp_path), 9, 0.5
    settings = {**federation_demo.SETTINGS, "rounds": 1, "clip": 1.0}
    noisy = {**settings, "noise": "gaussian", "noise-std": noise_std}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in noisy.items()]
    words += ["--method=fedavg", f"--clients={clients}", "--start=600", "--share-noise"]
    words += [f"--results={tmp_path / 'server'}", f"--out={tmp_path / 'app'}"]
    CliRunner().invoke(federate_command, words, catch_exceptions=False)
    with LocalFlower(tmp_path / "logs") as flower:
        start_nodes(flower, cubes)
        about = follow(flower, flower.run(tmp_path / "app"), tmp_path / "server", seconds=1800)
    config = resolve("fedavg", **settings)
    run = RunSettings(config, clients, Patience(start=600), str(tmp_path / "plain"))
    configs = {
        i: {"data": str(path), "first-client": first, "out": str(tmp_path / f"plain-{i}")}
        for i, (path, (first, _)) in enumerate(
            zip(cubes, federation_demo.SHARES.values(), strict=True)
        )
    }
    serve(WireLink(run, configs, {}), run)
    noises = torch.cat([
        (with_noise - without).flatten()
        for with_noise, without in zip(
            *(server_of(tmp_path / name) for name in ("server", "plain")), strict=True
        )
    ])  # fmt: skip
    expected = noise_std * math.sqrt(3 / 2) / clients
    assert float(noises.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(noises)))
    assert "do not collude" in about["privacy"]["of"]
    assert math.isfinite(about["privacy"]["epsilon"])


def server_of(folder):
    """Return the tensors of a server's state after a run."""
    return load_checkpoint(folder / LAST).state.server.values()


def test_a_run_with_default_settings_begins_and_ends_with_secure_sums(tmp_path):
    """The default method on three nodes; then the same with plain uploads, which they refuse."""
    cubes = federation_demo.make_cubes(tmp_path, days=DAYS)
    settings = {"service": "internet", "rounds": ROUNDS, "device": "cpu"}
    words = [f"--{name}={value}" for name, value in settings.items()]
    common = ["--clients=9", "--start=120", f"--out={tmp_path / 'app'}", *words]
    write = partial(CliRunner().invoke, federate_command, catch_exceptions=False)
    said = write([*common, f"--results={tmp_path}"]).output
    assert "uploads are added up under masks: the server learns only sums over 3 nodes" in said
    with LocalFlower(tmp_path / "logs") as flower:
        for path, (name, (first, _)) in zip(cubes, federation_demo.SHARES.items(), strict=True):
            flower.start_node(name, path, first)
        about = follow(flower, flower.run(tmp_path / "app"), tmp_path, seconds=1800)
        said = write([*common, "--plain-uploads", f"--results={tmp_path / 'plain'}"]).output
        assert "nodes refuse this run, except those with allow_disclosure = true" in said
        flower.run(tmp_path / "app")
        log = tmp_path / "plain" / "server.log"
        wait_for(lambda: log.exists() and "0 of 9 clients came" in log.read_text(), 300, "its end")
    assert "DisclosureRefused, see the node's own log" in log.read_text()
    assert "attacks computed the node's readings" in (tmp_path / "logs" / "north.log").read_text()
    text = (tmp_path / "server.log").read_text()
    assert "uploads are added up under masks" in text
    assert "the sum is lost" not in text
    mse = federation_demo.in_one_process(tmp_path, "fedlean", {**settings, "refit": "never"})
    assert about["test"]["mse"] == pytest.approx(mse, rel=1e-3)
    assert about["nodes"] == 3


def test_a_node_that_is_lost_after_masking_is_part_of_the_sum(tmp_path):
    """South is killed in round 1 between its masked values and the shares: two nodes suffice."""
    cubes = federation_demo.make_cubes(tmp_path)
    app, log = make_app(tmp_path, rounds=1), tmp_path / "server.log"
    seen = tmp_path / "unmasked"
    stalling = changed_node(tmp_path / "stalling", STALLED.replace("UNMASKED", str(seen)))
    with LocalFlower(tmp_path / "logs") as flower:
        start_nodes(flower, cubes, {"south": stalling})
        run = flower.run(app)
        wait_for(seen.exists, 1500, "the message to reveal shares")
        flower.stop("south", signal.SIGKILL)
        about = follow(flower, run, tmp_path, seconds=1800)
    text = log.read_text()
    assert "(clients 7 to 8) leaves the sum at 'unmask'" in text
    assert "the sum is lost" not in text
    found = pd.read_csv(tmp_path / "rounds.csv")
    assert (found["participants"] - found["failed"]).tolist() == [9]
    alone = Forecaster("fedavg", **federation_demo.SETTINGS, rounds=1)
    alone.fit(tmp_path / "city.nc")
    assert found["train_loss"].tolist() == pytest.approx(alone.rounds_["train_loss"], rel=1e-4)
    assert about["nodes"] == 2
