"""Nodes that stay in memory between messages answer as nodes that are started anew."""

import shutil

import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.federated.nodes.disclosure import FOUND, DisclosureRefused
from stforecast.federated.nodes.masker import TooFewCells, TooFewParties
from stforecast.federated.nodes.messages import FEW_CELLS, Message
from stforecast.federated.uploads.masking import SecureSums, new_key, public
from stforecast.flower import client_app
from stforecast.flower.node import FlowerNode, SecureAggregationRequired
from stforecast.flower.server_app import serve
from stforecast.methods import METHODS

TOKEN = "0123456789abcdef"
RUN = f"run-{TOKEN}"
JOIN = {"task": "join", "run": TOKEN}


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """Notes the nodes that are made; none are there at the beginning."""
    made = []

    class Noted(FlowerNode):
        def __init__(self, *about):
            made.append(self)
            super().__init__(*about)

    monkeypatch.setattr(client_app, "FlowerNode", Noted)
    monkeypatch.setattr(client_app, "_kept", {})
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "secure"),
    [("fuels", None), ("fedavg", None), ("perfedavg", None), ("fedavg", SecureSums())],
)
def test_numbers_are_those_of_nodes_that_are_made_anew(method, secure, federation, made, tmp_path):
    """Messages of secure sums make none."""
    run, link, _ = federation(method, secure=secure, rounds=3)
    tables = []
    for answer in (link.answer, client_app.answer_of_node):
        link.answer = answer
        serve(link, run)
        rounds = pd.read_csv(tmp_path / "server" / "rounds.csv").drop(columns="seconds")
        folders = [tmp_path / f"{name}.federation" for name in "ab"]
        tables.append([rounds, *(pd.read_csv(f / RUN / "metrics.csv") for f in folders)])
        for folder in (*folders, tmp_path / "server"):
            shutil.rmtree(folder)
    for a, b in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert len(made) == 2
    assert not client_app._kept


def asked_in(round):
    about = {"task": "round", "run": TOKEN, "round": round, "train": [], "best": None}
    return Message(about)


def ask(run, link, message, node=0):
    return client_app.answer_of_node(run, link.configs[node], message)


def test_the_disk_is_the_truth(federation, made):
    """Another process may have answered meanwhile."""
    run, link, _ = federation("fedavg")
    ask(run, link, asked_in(0))
    ask(run, link, asked_in(1))
    assert len(made) == 1
    link.answer(run, link.configs[0], asked_in(2))
    ask(run, link, asked_in(3))
    assert len(made) == 2


def test_a_round_that_is_asked_for_again_begins_from_the_state_before_it(federation, made):
    run, link, _ = federation("fedavg")
    for round in (0, 1):
        ask(run, link, asked_in(round))
    ask(run, link, asked_in(1))
    assert len(made) == 2
    assert made[1].node.rounds == 2


def test_another_cube_is_noticed(federation, cube, made):
    run, link, _ = federation("fedavg")
    ask(run, link, asked_in(0), node=1)
    write_cube(cube.isel(cell=[2, 1]), link.configs[1]["data"])
    with pytest.raises(InputError, match=r"cube.*data"):
        ask(run, link, asked_in(1), node=1)


def test_a_node_that_failed_is_made_anew(federation, made):
    run, link, _ = federation("fedavg")
    ask(run, link, Message(JOIN))
    with pytest.raises(InputError, match="asks for 'dance'"):
        ask(run, link, Message({"task": "dance", "run": TOKEN}))
    ask(run, link, Message(JOIN))
    assert len(made) == 2


@pytest.mark.quick(4)
@pytest.mark.parametrize("task", ["join", "round", "finish", "share"])
def test_a_node_may_refuse_runs_without_secure_aggregation(task, federation, made):
    """Before it reads its data, whatever the server asks."""
    run, link, _ = federation("fedavg")
    link.configs[0] |= {"require-secure-aggregation": True, "data": "nowhere.nc"}
    with pytest.raises(SecureAggregationRequired, match="secure aggregation"):
        ask(run, link, Message({**asked_in(0).about, "task": task}))
    assert made == []


def test_a_node_that_requires_secure_aggregation_joins_a_run_that_has_it(federation):
    run, link, _ = federation("fedavg", secure=SecureSums())
    link.configs[0]["require-secure-aggregation"] = True
    assert ask(run, link, Message(JOIN)).about["sizes"] == [1]


SHORT = {"extra_lags": "2,24"}
"""Lags within the fixture's ten days."""


@pytest.mark.attack("readings computed from uploads")
@pytest.mark.parametrize("method", ["fedlean", "protoridge"])
def test_a_node_refuses_to_give_its_readings_up(method, federation, made):
    """Before it reads its data; its owner may allow it."""
    run, link, _ = federation(method, allowed=False, **SHORT)
    with pytest.raises(DisclosureRefused, match="node's readings"):
        ask(run, link, Message(JOIN))
    assert made == []
    link.configs[0]["allow-disclosure"] = True
    assert ask(run, link, Message(JOIN)).about["first"] == 0


@pytest.mark.parametrize(
    ("method", "secure", "warned"),
    [("fuels", None, True), ("fedavg", None, True), ("fedavg", SecureSums(), False)],
)
def test_a_node_warns_of_what_plain_uploads_may_give_up(method, secure, warned, federation, caplog):
    run, link, _ = federation(method, secure=secure, allowed=False)
    ask(run, link, Message(JOIN))
    found = FOUND[METHODS[method].attacked.discloses]
    assert (f"uploads of {method}; {found}" in caplog.text) == warned


@pytest.mark.parametrize("allowed", [True, False])
def test_an_owner_of_few_cells_is_told_what_all_others_together_learn(allowed, federation, caplog):
    run, link, _ = federation("fedlean", secure=SecureSums(), allowed=allowed, **SHORT)
    ask(run, link, Message(JOIN))
    assert ("cells (1):" in caplog.text) != allowed


def shared_with(run, link, parties, cells=FEW_CELLS):
    """The answer of a node to the first message of a sum over so many parties and cells."""
    asked = asked_in(0).about | {"train": [0], "session": "s"}
    keys = ask(run, link, Message(asked)).about["keys"]
    others = {str(i): [public(new_key()).hex() for _ in range(2)] for i in range(1, parties)}
    peers = {"0": [keys["seal"], keys["mask"]], **others}
    about = {"task": "share", "run": TOKEN, "session": "s", "peers": peers, "shapes": {}}
    about["cells"] = {"0": 99, "1": cells - 1}
    return ask(run, link, Message(about))


@pytest.mark.attack("readings computed from uploads")
def test_a_node_is_in_no_sum_of_two_that_gives_its_readings_up(federation, made):
    run, link, _ = federation("fedlean", secure=SecureSums(), allowed=False, **SHORT)
    assert len(shared_with(run, link, 3).about["sealed"]) == 2
    with pytest.raises(TooFewParties, match="over 3 "):
        shared_with(run, link, 2)
    link.configs[0]["allow-disclosure"] = True
    assert len(shared_with(run, link, 2).about["sealed"]) == 1


@pytest.mark.attack("readings computed from uploads")
def test_a_node_is_in_no_sum_over_few_cells_that_gives_its_readings_up(federation, made):
    """It counts its own cell itself, whatever the server says of it."""
    run, link, _ = federation("fedlean", secure=SecureSums(), allowed=False, **SHORT)
    with pytest.raises(TooFewCells, match=f"{FEW_CELLS - 1} cells, "):
        shared_with(run, link, 3, FEW_CELLS - 1)
    link.configs[0]["allow-disclosure"] = True
    assert len(shared_with(run, link, 3, 1).about["sealed"]) == 2


def test_few_nodes_are_kept(federation, made, monkeypatch):
    run, link, _ = federation("fedavg")
    monkeypatch.setattr(client_app, "MOST", 1)
    for node in (0, 1, 1, 0):
        ask(run, link, Message(JOIN), node)
    assert len(made) == 3
    assert len(client_app._kept) == 1
