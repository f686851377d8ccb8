"""Strangers at a federation's port, with Flower's own command, and a server whose app is hostile.

A real SuperLink, `stforecast federate serve` before it, and nodes, all on this machine. Slow.
"""

import subprocess

import psutil
import pytest
from attackers import Attacker, besiege
from supernodes import start_supernode
from waiting import wait_for

from data_prep.base.errors import InputError
from experiments import federation_demo
from experiments.local_flower import LocalFlower, make_node_key
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import PROJECT, RunSettings, write_app
from stforecast.flower.superlink import make_keys
from stforecast.flower.supernode import environment, find_program
from stforecast.forecasting.config import resolve

pytestmark = [pytest.mark.slow, pytest.mark.attack("strangers at the port")]


@pytest.fixture(autouse=True)
def flwr():
    return pytest.importorskip("flwr", reason="needs the extra flower")


SERVER = """
from pathlib import Path
Path({folder!r}, "ran-on-server").touch()
import time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    messages = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in nodes]
    said = [str(m.error.reason) for m in grid.send_and_receive(messages, timeout=120)]
    Path({folder!r}, "answers").write_text("\\n".join([*said, "end"]))
"""

CLIENT = """
from pathlib import Path
Path({folder!r}, "ran-on-node").touch()
from flwr.clientapp import ClientApp

app = ClientApp()
"""


def hostile_app(folder):
    """An app that leaves a file in the folder wherever its code runs."""
    package = folder / "hostile" / "hostile"
    package.mkdir(parents=True)
    text = PROJECT.format(task="malice", method="none", package="hostile", config="x = 1")
    (package.parent / "pyproject.toml").write_text(text)
    for name, code in {"__init__": "", "server": SERVER, "client": CLIENT}.items():
        (package / f"{name}.py").write_text(code.format(folder=str(folder)))
    return package.parent


def attack(flower, folder):
    """Which of Flower's commands a stranger succeeds with, who has the public certificate."""
    home = folder / "stranger"
    (home / ".flwr").mkdir(parents=True)
    (home / ".flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "victim"\n[superlink.victim]\naddress = "{flower.address}"\n'
        f'root-certificates = "{flower.keys.authority}"\n'
    )
    _, public = make_node_key(home, "key")
    words = {
        "list": ["list"], "register": ["supernode", "register", public],
        "run": ["run", hostile_app(folder)],
    }  # fmt: skip
    env = {k: v for k, v in environment().items() if not k.startswith("FLWR_")}
    done = {
        name: subprocess.run(
            [find_program("flwr"), *map(str, each)], env={**env, "HOME": str(home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )
        for name, each in words.items()
    }  # fmt: skip
    return {name for name, each in done.items() if each.returncode == 0}


def listening(flower):
    """The addresses at which the server and the nodes listen, with all that they started."""
    leaders = [psutil.Process(each.pid) for each in flower.running.values()]
    processes = [p for leader in leaders for p in (leader, *leader.children(recursive=True))]
    found = [c for p in processes for c in p.net_connections()]
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def ran_on(folder):
    """Where the hostile app's code ran."""
    return {path.name for path in folder.glob("ran-on-*")}


def answered(folder):
    """What nodes answered to the hostile app, once they did."""
    answers = folder / "answers"
    wait_for(lambda: answers.exists() and "end" in answers.read_text(), 240, "answers")
    return answers.read_text()


def start_with_node(flower, folder):
    """Register and start a node as docs/federation.md does it, and wait until it has joined."""
    key, public = make_node_key(folder / "keys", "north")
    flower.register(public)
    flower.start_node("north", federation_demo.make_cubes(folder)[0], 0, key=key)
    log = flower.folder / "north.log"
    wait_for(lambda: "joined the federation" in log.read_text(), 120, "the node")


def test_strangers_can_do_nothing_and_a_hostile_server_runs_no_code_on_nodes(tmp_path):
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys")) as flower:
        start_with_node(flower, tmp_path)
        assert listening(flower) == {"127.0.0.1"}, "the gate's address here, and no other"
        assert attack(flower, tmp_path) == set()
        assert "hostile" not in flower.flwr("list")
        assert ran_on(tmp_path) == set()
        assert [p for p in flower.home.rglob("*") if p.stat().st_mode & 0o077] == []
        flower.run(tmp_path / "hostile")  # By the server's own owner, who may.
        assert "KeyError, see the node's own log" in answered(tmp_path)
        assert ran_on(tmp_path) == {"ran-on-server"}


def test_the_attack_works_where_nothing_stands_against_it(tmp_path):
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys"), unsafe_open=True) as flower:
        key, public = make_node_key(tmp_path / "keys", "north")
        flower.register(public)
        start_supernode(flower, "north", federation_demo.make_cubes(tmp_path)[0], 0, key)
        assert attack(flower, tmp_path) == {"list", "register", "run"}
        answered(tmp_path)
        assert ran_on(tmp_path) == {"ran-on-server", "ran-on-node"}
        said = (tmp_path / "logs" / "superlink.log").read_text()
        assert "whoever reaches 127.0.0.1" in said
        assert "can list, register and run anything" in said


def test_requests_that_cost_much_stop_nobody_else(tmp_path):
    with LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys")) as flower:
        start_with_node(flower, tmp_path)
        stranger = Attacker(int(flower.address.split(":")[1]), flower.keys.authority)
        waited, grown, cpu = besiege(stranger, flower.running["superlink"].pid)
        said = (tmp_path / "logs" / "superlink.log").read_text()
        assert waited < 10, "an answer comes at once, on any processor"
        assert cpu < 20
        assert grown < 50
        refusals = [line for line in said.splitlines() if "refused a request" in line]
        assert len(refusals) == len({line.split(": ")[1].split(" (")[0] for line in refusals})
        assert 2 <= len(refusals) <= 5
        assert "Traceback" not in said


class Everywhere(LocalFlower):
    """A SuperLink at all addresses of the machine, as Flower's own documents start it."""

    def start(self, name, program, *args, **more):
        everywhere = ["0.0.0.0" if a == "127.0.0.1" else a for a in args]
        super().start(name, program, *everywhere, **more)


def test_a_run_does_not_begin_where_strangers_could_begin_one(tmp_path):
    run = RunSettings(
        resolve("fedavg", **federation_demo.SETTINGS, rounds=1), 9, Patience(1, 1),
        str(tmp_path / "out"),
    )  # fmt: skip
    log = tmp_path / "out" / "server.log"
    with Everywhere(tmp_path / "logs") as flower:
        flower.run(write_app(tmp_path / "app", run))
        wait_for(lambda: log.exists() and "the run ends" in log.read_text(), 120, "the end")
        assert "whoever reaches this address can list runs and run an app" in log.read_text()
        assert log.parent.stat().st_mode & 0o077 == 0


def test_a_server_whose_gate_lets_strangers_in_does_not_begin(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import stforecast.flower.gate as gate\ngate.NODES = gate.ALL\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    flower = LocalFlower(tmp_path / "logs", make_keys(tmp_path / "keys"))
    with pytest.raises(InputError, match=r"can list runs and run an app .tried just now"), flower:
        pass
