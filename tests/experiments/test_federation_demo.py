"""Flower's processes on this machine. What needs Flower is skipped without it, and slow with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from data_prep.errors import InputError
from experiments import federation_demo, flower_processes
from experiments.flower_keys import make_keys, make_node_key
from experiments.flower_processes import LocalFlower, find_program, free_port
from stforecast.config import resolve
from stforecast.federated.roster import Patience
from stforecast.flower.app_folder import write_app
from stforecast.flower.settings import RunSettings

WITHOUT = "needs the extra flower: pip install 'stforecast[flower]'"


@pytest.fixture
def flwr():
    return pytest.importorskip("flwr", reason=WITHOUT)


def started(out):
    """Flower's processes whose home is below the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={out}".encode() in path.read_bytes():
                words = (path.parent / "cmdline").read_text().split("\0")
                found.append(f"{path.parent.name} {' '.join(words)}")
    return found


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come in {seconds} s"
        time.sleep(0.5)


def test_flower_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(flower_processes.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"no flower-x here; install the extra"):
        find_program("flower-x")


def test_ports_are_free():
    assert 1024 < free_port() < 2**16


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


def test_the_city_is_shared_out_without_overlap(tmp_path):
    paths = federation_demo.make_cubes(tmp_path)
    cells = [pd.Index(federation_demo.open_cube(path)["cell"].to_numpy()) for path in paths]
    assert [len(c) for c in cells] == [3, 3, 3]
    assert cells[0].append([cells[1], cells[2]]).is_unique


@pytest.mark.slow
def test_a_federation_over_tls_outlives_a_killed_node_and_keeps_strangers_out(flwr, tmp_path):
    """South is killed in round 2 and started again; a node with an unknown key never gets in."""
    cubes = federation_demo.make_cubes(tmp_path)
    config = resolve("fuels", **federation_demo.SETTINGS, rounds=5)
    patience = Patience(start=300, answer=60)
    app = write_app(tmp_path / "app", RunSettings(config, 9, patience, str(tmp_path)))
    log = tmp_path / "server.log"
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys")) as flower:
        keys = {}
        for i, name in enumerate(federation_demo.NODES):
            keys[name], public = make_node_key(tmp_path / "keys", name)
            flower.register(public)
            flower.start_node(name, {"data": str(cubes[i]), "first-client": 3 * i}, keys[name])
        stranger, _ = make_node_key(tmp_path / "keys", "stranger")
        flower.start_node("stranger", {"data": str(cubes[0]), "first-client": 0}, stranger)
        run = flower.run(app)
        wait_for(lambda: log.exists() and "round 1:" in log.read_text(), 300, "round 1")
        flower.stop("south", signal.SIGKILL)
        wait_for(lambda: "goes on without" in log.read_text(), 200, "a round without south")
        flower.start_node("south", {"data": str(cubes[2]), "first-client": 6}, keys["south"])
        about = federation_demo.follow(flower, run, tmp_path)
        assert about["nodes"] == 3
        assert "stranger" not in flower.flwr("supernode", "list", "here")
    text = log.read_text()
    assert "9 clients are there, on 3 nodes" in text
    assert "(clients 6 to 8)" in text
    rounds = pd.read_csv(tmp_path / "rounds.csv")
    done = rounds["participants"] - rounds["failed"]
    assert done.iloc[0] == 9
    assert done.min() == 6
    assert done.iloc[-1] == 9
    assert started(tmp_path) == []


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
