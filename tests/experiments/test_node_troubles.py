"""Nodes with a stalled way to a real SuperLink, a full disk, or rubbish to send. Slow."""

import re

import pytest
from stalling_proxy import StallingProxy
from supernodes import changed_node
from waiting import wait_for

from experiments import federation_demo
from experiments.local_flower import LocalFlower, follow, make_node_key
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings, write_app
from stforecast.flower.superlink import make_keys
from stforecast.forecasting.config import resolve

pytestmark = [pytest.mark.slow, pytest.mark.attack("nodes in trouble")]


@pytest.fixture(autouse=True)
def flwr():
    return pytest.importorskip("flwr", reason="needs the extra flower")


IMPATIENT = """
import sys
if any("own_supernode" in word or "flower-supernode" in word for word in sys.orig_argv):
    from flwr.supercore.protobuf.client import ProtobufClient
    ProtobufClient.__init__.__kwdefaults__["timeout"] = 2.0
"""
"""A SuperNode that waits for 2 seconds instead of 30."""


def test_a_node_comes_back_after_a_stall_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_LOG_LEVEL", "DEBUG")
    (tmp_path / "impatient").mkdir()
    (tmp_path / "impatient" / "sitecustomize.py").write_text(IMPATIENT)
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys")) as flower:
        key, public = make_node_key(tmp_path / "keys", "north")
        flower.register(public)
        direct, proxy = flower.address, StallingProxy(int(flower.address.split(":")[1]))
        flower.address = proxy.address
        cube, paths = federation_demo.make_cubes(tmp_path)[0], [str(tmp_path / "impatient")]
        flower.start_node("north", cube, 0, key=key, paths=paths)
        flower.address = direct
        seen = tmp_path / "logs" / "superlink.log"

        def pulled(since):
            return seen.read_text()[since:].count("[Fleet.PullMessages] Request")

        wait_for(lambda: pulled(0) > 2, 120, "the node")
        proxy.flows.clear()
        said = tmp_path / "logs" / "north.log"
        wait_for(lambda: "handshake operation timed out" in said.read_text(), 120, "the stall")
        since = len(seen.read_text())
        proxy.flows.set()
        wait_for(lambda: pulled(since) > 2, 60, "the node after the stall")
        proxy.close()


FULL = """
def change(module):
    import resource

    sound = module.FlowerNode.answer

    def answer(self, message):
        if message.about["task"] == "join":
            return sound(self, message)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            return sound(self, message)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    module.FlowerNode.answer = answer
"""
"""A node whose files cannot be larger than 1,000 bytes."""

RUBBISH = r"""
def change(module):
    sound = module.FlowerNode.answer

    def answer(self, message):
        truth = sound(self, message)
        if message.about["task"] == "join":
            return truth
        name = "\x1b[2J" + "x" * 12_000_000
        return module.Message(truth.about, {name: next(iter(truth.payload.values()))})

    module.FlowerNode.answer = answer
"""


def test_a_full_disk_is_reported_with_its_path_and_rubbish_in_one_line(tmp_path):
    cubes = federation_demo.make_cubes(tmp_path)
    config = resolve("fedavg", **federation_demo.SETTINGS, rounds=2)
    patience = Patience(start=120, answer=300, enough=9)
    app = write_app(tmp_path / "app", RunSettings(config, 9, patience, str(tmp_path)))
    changes = {"north": None, "centre": FULL, "south": RUBBISH}
    with LocalFlower(tmp_path / "logs") as flower:
        for (name, change), cube, first in zip(changes.items(), cubes, (0, 4, 7), strict=True):
            paths = changed_node(tmp_path / f"{name}-code", change) if change else ()
            flower.start_node(name, cube, first, paths=paths)
        follow(flower, flower.run(app), tmp_path, seconds=900)
        node = (tmp_path / "logs" / "centre.log").read_text()
    server = (tmp_path / "server.log").read_text()
    cannot = r"/centre\S+: cannot be written \(File too large\)"
    assert re.search(f"no answer to the server: .*{cannot}", node)
    assert re.search(f"goes on without node .*{cannot}", server)
    for path in [
        tmp_path / "server.log",
        tmp_path / "server.jsonl",
        *(tmp_path / "logs").iterdir(),
    ]:
        if path.is_file():
            assert max(map(len, path.read_bytes().splitlines()), default=0) < 10_000
    assert "xxx" in server
    assert "\x1b" not in server
