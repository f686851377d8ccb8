"""Rounds over a SuperLink go on without a slow node, and add its upload later. Slow."""

import importlib.util

import pytest
from supernodes import changed_node
from waiting import wait_for

from experiments import federation_demo
from experiments.local_flower import LocalFlower
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings, write_app
from stforecast.flower.standing import JOURNAL, read_event_log
from stforecast.forecasting.config import resolve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower"),
]

BUSY = """
import pathlib, time

def change(module):
    sound = module.FlowerNode.answer

    def answer(self, message):
        while message.about["task"] == "round" and not pathlib.Path("GO").exists():
            time.sleep(0.1)
        return sound(self, message)

    module.FlowerNode.answer = answer
"""
"""What keeps a node busy until the file GO exists."""


def events_of(folder, name):
    if not (folder / JOURNAL).exists():
        return []
    return [e for e in read_event_log(folder) if e.get("event") == name]


@pytest.mark.parametrize("mixing", [0.0, 0.6])
def test_rounds_go_on_without_a_busy_node_and_its_upload_is_added(mixing, tmp_path):
    """South trains in round 1 until the others have done three; more rounds than anybody awaits."""
    cubes = federation_demo.make_cubes(tmp_path)
    late = {"slow_share": 0.34, "rounds": 10_000, "mixing": mixing}
    settings = {**federation_demo.SETTINGS, **late}
    run = RunSettings(
        resolve("fedavg", **settings), 9, Patience(start=600, answer=600), str(tmp_path)
    )
    app = write_app(tmp_path / "app", run)
    busy = changed_node(tmp_path / "busy", BUSY.replace("GO", str(tmp_path / "go")))
    with LocalFlower(tmp_path / "logs") as flower:
        for path, (name, (first, _)) in zip(cubes, federation_demo.SHARES.items(), strict=True):
            flower.start_node(name, path, first, paths=busy if name == "south" else ())
        flower.run(app)
        wait_for(lambda: len(events_of(tmp_path, "round")) > 2, 600, "a third round")
        (tmp_path / "go").touch()
        wait_for(lambda: events_of(tmp_path, "late"), 300, "the upload of the busy node")
        (late, *_) = events_of(tmp_path, "late")
        wait_for(lambda: len(events_of(tmp_path, "round")) > late["round"], 300, "a further round")
    rounds = events_of(tmp_path, "round")
    asked = [r["participants"] for r in rounds]
    assert asked[: late["round"]] == [9, *[7] * (late["round"] - 1)]
    assert asked[late["round"]] != 7  # South is asked again, and another node may be busy.
    assert not any(r["failed"] for r in rounds)
    assert late["late"] == late["round"] - 1 >= 3
    if not mixing:
        assert late["weight"] == pytest.approx((1 + late["late"]) ** -0.5)
