"""Flower's processes on this machine. What needs Flower is skipped without it, and slow with it."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import psutil
import pytest
from mentions import mentions
from supernodes import changed_node, start_supernode
from waiting import wait_for

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from experiments import federation_demo, hostile_node
from experiments.local_flower import LocalFlower, events_of, follow, make_node_key
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.settings import RunSettings, write_app
from stforecast.flower.superlink import make_keys
from stforecast.forecasting.config import resolve

WITHOUT = "needs the extra flower: pip install 'stforecast[flower]'"


@pytest.fixture
def flwr():
    return pytest.importorskip("flwr", reason=WITHOUT)


def started(out):
    """Flower's processes whose home is below the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("FLWR_HOME", "").startswith(str(out)):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def trained(out):
    """How many clients trained in each round so far."""
    return [e["participants"] - e["failed"] for e in events_of(out, "round")]


@pytest.mark.parametrize("session", [False, True])
def test_a_process_and_all_that_it_starts_is_stopped(session, tmp_path):
    """Flower's SuperLink gives its helper a session of its own."""
    flower = LocalFlower(tmp_path)
    start = f"subprocess.Popen(['sleep', '600'], start_new_session={session})"
    flower.start("parent", sys.executable, "-c", f"import subprocess; {start}.wait()")
    wait_for(lambda: len(started(tmp_path)) == 2, 20, "a child")
    flower.stop_all()
    assert started(tmp_path) == []
    assert flower.running == {}


def test_certificates_name_this_machine(tmp_path):
    keys = make_keys(tmp_path)
    shown = subprocess.run(
        ["openssl", "x509", "-in", keys.certificate, "-noout", "-text"],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert "IP Address:127.0.0.1" in shown
    subprocess.run(["openssl", "verify", "-CAfile", keys.authority, keys.certificate], check=True)


def test_a_nodes_key_is_its_own(tmp_path):
    private, public = make_node_key(tmp_path, "north")
    assert private.stat().st_mode & 0o077 == 0
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")


@pytest.mark.repeats
def test_each_node_forecasts_the_coming_day(tmp_path):
    path = federation_demo.make_cubes(tmp_path)[0]
    forecaster = federation_demo.Forecaster("seasonal_day", service="internet", split="days:7,1,2")
    forecaster.fit(path).save(tmp_path / "north.federation" / "run-1" / "model")
    [(name, written, mean)] = federation_demo.forecast_tomorrow(tmp_path)
    table = pd.read_csv(written)
    assert (name, len(table)) == ("north", 4 * 24)
    assert table["internet"].mean() == pytest.approx(mean, rel=1e-4)


def test_uploads_cross_under_masks_or_plain_against_a_liar(tmp_path):
    """It is said what leaves a node, and what each way costs."""
    masked = federation_demo.settings_of(tmp_path, "fedlean", 6, hostile=False)
    assert (masked.secure, masked.patience.min_parties) == (SecureSums(), 3)
    assert "only sums over 3 nodes" in federation_demo.what_leaves(masked)[2]
    plain = federation_demo.settings_of(tmp_path, "fedlean", 6, hostile=True)
    assert (plain.secure, plain.config.robust.robust) == (None, "median")
    said = " ".join(federation_demo.what_leaves(plain))
    assert "uploads are plain" in said
    assert "attacks computed the node's readings" in said


@pytest.mark.repeats
def test_the_city_is_shared_out_without_overlap(tmp_path):
    paths = federation_demo.make_cubes(tmp_path)
    cells = [pd.Index(federation_demo.open_cube(path)["cell"].to_numpy()) for path in paths]
    assert [len(c) for c in cells] == [4, 3, 2]
    assert cells[0].append([cells[1], cells[2]]).is_unique


def test_a_demo_removes_what_a_demo_made(tmp_path):
    out = tmp_path / "demo"
    federation_demo.begin_anew(out)
    for name in sorted(federation_demo.MADE - {"raw", "logs", federation_demo.MARK}):
        (out / name).write_text("")
    (out / "logs" / "deep").mkdir(parents=True)
    (out / "raw").symlink_to(tmp_path)
    federation_demo.begin_anew(out)
    assert [path.name for path in out.iterdir()] == [federation_demo.MARK]


@pytest.mark.parametrize("name", ["city.nc", "thesis.tex"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_demo_removes_nothing_else(tmp_path, name, marked):
    if marked:
        federation_demo.begin_anew(tmp_path)
        name = f"my-{name}"
    for each in (name, f"more-{name}"):
        (tmp_path / each).write_text("mine")
    with pytest.raises(InputError, match=r"holds m\S+, which this demo did not make|holds city.nc"):
        federation_demo.run_federation(tmp_path, "fedavg", 1, tls=False)
    assert (tmp_path / name).read_text() == (tmp_path / f"more-{name}").read_text() == "mine"


@pytest.mark.slow
def test_the_hostile_node_lies_in_each_round(tmp_path):
    folder = hostile_node.write(tmp_path, federation_demo.LIES)
    code = """
import sys, torch
from stforecast.federated.nodes.messages import Message
import stforecast.flower.node as module
def show(round):
    found = module.FlowerNode.answer(None, Message({"task": "round", "round": round}))
    print(found.payload["w"].item(), found.about.get("ids"))
for round in range(3):
    show(round)
sitecustomize.Path("FOLDER", sitecustomize.NAMES).write_text("")
show(3)
"""
    before = """
import sitecustomize, importlib
spoil = sitecustomize.spoil
def honest(module, names):
    from stforecast.federated.nodes.messages import Message
    import torch
    module.FlowerNode.answer = lambda self, message: Message({}, {"w": torch.ones(1)})
    spoil(module, names)
sitecustomize.spoil = honest
"""
    done = subprocess.run(
        [sys.executable, "-c", before + code.replace("FOLDER", str(folder))],
        stdout=subprocess.PIPE, text=True, check=True,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
        },
    )  # fmt: skip
    assert done.stdout.splitlines() == ["nan None", "-1000.0 None", "1.0 [0]", "1.0 None"]


@pytest.mark.slow
def test_a_federation_over_tls_outlives_a_killed_node_and_keeps_strangers_out(flwr, tmp_path):
    """South is killed in round 2 and started again; a node with an unknown key never gets in.

    The run has more rounds than anybody waits for: it is stopped when south is part of it again.
    """
    cubes = federation_demo.make_cubes(tmp_path)
    config = resolve("fuels", **federation_demo.SETTINGS, rounds=10_000)
    patience = Patience(start=300, answer=240)
    app = write_app(tmp_path / "app", RunSettings(config, 9, patience, str(tmp_path)))
    log = tmp_path / "server.log"
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys")) as flower:
        keys = {}
        for i, (name, (first, _)) in enumerate(federation_demo.SHARES.items()):
            keys[name], public = make_node_key(tmp_path / "keys", name)
            flower.register(public)
            start_supernode(flower, name, cubes[i], first, keys[name])
        stranger, _ = make_node_key(tmp_path / "keys", "stranger")
        start_supernode(flower, "stranger", cubes[0], 0, stranger)
        flower.run(app)
        wait_for(lambda: trained(tmp_path), 900, "round 1")
        flower.stop("south", signal.SIGKILL)
        wait_for(lambda: trained(tmp_path)[-1] == 7, 600, "a round without south")
        flower.start_node("south", cubes[2], 7, key=keys["south"])
        wait_for(lambda: trained(tmp_path)[-1] == 9, 600, "a round with south again")
        assert "stranger" not in flower.flwr("supernode", "list")
    assert trained(tmp_path)[0] == 9
    text = log.read_text()
    assert mentions(text, "9 clients", "3 nodes")
    assert "(clients 7 to 8)" in text
    assert started(tmp_path) == []


@pytest.mark.slow
def test_a_federation_outlives_its_server(flwr, tmp_path):
    """The SuperLink and its ServerApp are killed in round 2; numbers are those of one process."""
    cubes = federation_demo.make_cubes(tmp_path)
    config = resolve("fuels", **federation_demo.SETTINGS, rounds=3)
    patience = Patience(start=300, answer=120)
    app = write_app(tmp_path / "app", RunSettings(config, 9, patience, str(tmp_path)))
    log = tmp_path / "server.log"
    with LocalFlower(tmp_path / "logs") as flower:
        for i, (name, (first, _)) in enumerate(federation_demo.SHARES.items()):
            start_supernode(flower, name, cubes[i], first)
        flower.run(app)
        wait_for(lambda: events_of(tmp_path, "round"), 900, "round 1")
        flower.restart_superlink()
        about = follow(flower, flower.run(app), tmp_path, seconds=1800)
    assert re.search("the run goes on after round [12]", log.read_text())
    assert not (tmp_path / "checkpoints").exists()
    assert len(pd.read_csv(tmp_path / "rounds.csv")) == 3
    alone = federation_demo.in_one_process(
        tmp_path, "fuels", dict(federation_demo.SETTINGS, rounds=3)
    )
    assert about["test"]["mse"] == pytest.approx(alone, rel=1e-4)
    assert started(tmp_path) == []


SPOILT = """
def change(module):
    sound = module.FlowerNode.answer

    def answer(self, message):
        truth = sound(self, message)
        if message.about["task"] == "join":
            return truth
        lies = [
            module.Message(truth.about, {n: t * float("nan") for n, t in truth.payload.items()}),
            module.Message({**truth.about, "ids": [0, 1]}, truth.payload),
            module.Message({"score": "high", "targets": 9, "errors": {"mse": float("nan")}}),
        ]
        return lies[message.about.get("round", 2) % 3]

    module.FlowerNode.answer = answer
"""
"""What a hostile owner may do to the `stforecast` of a node: its answers are garbage."""


SHARES = {"north": (0, 3), "centre": (3, 5), "hostile": (5, 7), "south": (7, 9)}


@pytest.mark.slow
def test_a_federation_outlives_a_killed_node_a_late_one_and_one_that_answers_garbage(
    flwr, tmp_path
):
    """South comes late, centre is killed and does not come back, hostile lies until it is out."""
    federation_demo.make_cubes(tmp_path)
    with federation_demo.open_cube(tmp_path / "city.nc") as city:
        cubes = {
            name: write_cube(city.isel(cell=slice(*share)), tmp_path / f"{name}.nc")
            for name, share in SHARES.items()
        }
    rounds = 9
    config = resolve("fedavg", **federation_demo.SETTINGS, rounds=rounds)
    patience = Patience(start=30, answer=120, enough=7)
    app = write_app(tmp_path / "app", RunSettings(config, 9, patience, str(tmp_path)))
    log = tmp_path / "server.log"
    hostile = changed_node(tmp_path / "hostile", SPOILT)
    with LocalFlower(tmp_path / "logs") as flower:
        for name in ("north", "centre", "hostile"):
            paths = hostile if name == "hostile" else ()
            start_supernode(flower, name, cubes[name], SHARES[name][0], paths=paths)
        run = flower.run(app)
        wait_for(lambda: log.exists() and "round 1 goes" in log.read_text(), 900, "round 1")
        start_supernode(flower, "south", cubes["south"], SHARES["south"][0])
        wait_for(lambda: ": 7 of 9 clients" in log.read_text(), 1800, "a round with south")
        flower.stop("centre", signal.SIGKILL)
        about = follow(flower, run, tmp_path, seconds=1800)
    assert started(tmp_path) == []
    check_what_was_said(log.read_text())
    table = pd.read_csv(tmp_path / "rounds.csv")
    done = table["participants"] - table["failed"]
    assert len(table) == rounds
    assert (done.iloc[0], done.max(), done.iloc[-1]) == (5, 7, 5)
    assert np.isfinite(table[["train_loss", "validation_loss"]]).all(axis=None)
    assert table["train_loss"].iloc[-1] < table["train_loss"].iloc[0]
    alone = federation_demo.in_one_process(
        tmp_path, "fedavg", dict(federation_demo.SETTINGS, rounds=rounds)
    )
    assert about["test"]["mse"] == pytest.approx(alone, rel=0.5)


def check_what_was_said(log):
    assert re.search(r"node \d+ \(clients 7 to 8\) joins", log)
    assert re.search(r"(goes on without|lost) node \d+ \(clients 3 to 4\)", log)
    without = r"goes on without node \d+ \(clients 5 to 6\): "
    assert re.search(f"{without}it sent numbers that are not finite", log)
    assert re.search(rf"{without}it answers for the clients \[0, 1\]", log)
    assert re.search(f"{without}its answer cannot be used", log)
    assert re.search(r"node \d+ \(clients 5 to 6\) is not let in again: its answer cannot be", log)


@pytest.mark.slow
def test_ctrl_c_stops_everything(flwr, tmp_path):
    out = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "experiments.federation_demo", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    wait_for(lambda: len(started(out)) >= 8, 200, "a SuperLink, three nodes, a helper of each")
    os.kill(demo.pid, signal.SIGINT)
    assert demo.wait(60) != 0
    assert "Aborted" in demo.stdout.read().decode()
    assert started(out) == []
