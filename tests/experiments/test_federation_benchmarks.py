"""Benchmarks of federations: hostile nodes, kills and many nodes, as far as nothing is started."""

import itertools
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from experiments.benchmarks import hostile, live
from experiments.hostile_node import HUGE, LIES, told
from experiments.site.measured import RESULTS
from stforecast.federated.engine.rounds import Server
from stforecast.federated.nodes.messages import Message
from stforecast.federated.uploads.robust import RULES
from stforecast.methods import METHODS

ASKED = Message({"task": "round", "round": 2})


def honest():
    about = {"score": (1.0, 10.0), "loss": 0.5, "task_loss": 0.5, "ids": [4, 5]}
    prototypes = torch.arange(1.0, 13.0).reshape(2, 3, 2)
    return Message(about, {"prototypes": prototypes, "counts": torch.tensor([[1, 2, 3]] * 2)})


@pytest.mark.parametrize("name", LIES)
def test_every_lie_changes_an_answer_to_a_round_and_nothing_else(name):
    truth, counts = honest(), honest().payload["counts"]
    lie = told([name], ASKED, truth)
    changed = (
        lie.about != truth.about,
        not torch.equal(lie.payload["prototypes"], truth.payload["prototypes"]),
    )
    assert sum(changed) == 1
    assert torch.equal(lie.payload["counts"], counts)
    assert truth.about == honest().about
    join = Message({"task": "join"})
    assert told([name], join, truth) is truth


def test_lies_take_turns():
    asked = [Message({"task": "round", "round": i}) for i in range(3)]
    found = [told(["foreign", "sign-flipped"], a, honest()).about["ids"] for a in asked]
    assert found == [[0], [4, 5], [0]]


def test_random_values_are_the_same_in_each_process_and_others_in_each_round_and_node():
    def noise(round, first):
        about = {**honest().about, "ids": [first]}
        asked = Message({"task": "round", "round": round})
        return told(["random"], asked, Message(about, honest().payload)).payload["prototypes"]

    assert torch.equal(noise(2, 4), noise(2, 4))
    assert len({tuple(noise(r, i).flatten().tolist()) for r in (1, 2) for i in (0, 4)}) == 4


def test_without_a_name_a_node_is_honest():
    truth = honest()
    assert told([], ASKED, truth) is truth


def test_a_forged_score_praises_the_first_round_and_blames_the_others():
    scores = [
        told(["score-forging"], Message({"task": "round", "round": i}), honest()).about["score"]
        for i in (1, 2)
    ]
    assert scores == [(0.0, HUGE), (HUGE**2, HUGE)]


def test_every_behaviour_is_run_without_a_defence_and_prototypes_where_there_are_some():
    runs = set(hostile.hostile_runs())
    assert len(runs) == len(list(hostile.hostile_runs()))
    for method, n, behaviour in itertools.product(hostile.METHODS, (2, 4), hostile.BEHAVIOURS):
        absent = behaviour == "prototype-poisoned" and method != "fuels"
        assert (hostile.HostileRun(method, n, behaviour, "none") in runs) != absent


def test_live_runs_have_every_behaviour_and_method_once():
    runs = list(live.runs())
    assert len(set(runs)) == len(runs) == 3 + 2 * (3 * 7 - 2)
    assert {run.hostile for run in runs} == {0, 1, 2}


def cells_of(table):
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_worst_behaviour_is_told_against_the_undisturbed_run():
    rows = pd.DataFrame(
        [("fedavg", 0, "-", "none", 0.2), ("fedavg", 2, "random", "none", 0.9),
         ("fedavg", 2, "sign-flipped", "none", 0.8), ("fedavg", 2, "random", "median", 0.21),
         ("fedavg", 2, "sign-flipped", "median", 0.22)],
        columns=[*hostile.HostileRun._fields, "mse"],
    )  # fmt: skip
    assert cells_of(hostile.table_of_defences(rows)) == [
        ["`fedavg`", "none", "", "0 %", "-", "-", "-"],
        ["`fedavg`", "2 of 10", "random", "× 4.5", "+10 %", "-", "-"],
    ]


def test_live_errors_stand_beside_those_of_one_process():
    rows = pd.DataFrame(
        [("fedavg", 0, "-", "clip", 0.2, 9.0, 0.2, 0.2),
         ("fedavg", 2, "score-forging", "clip", 0.3003, 9.0, 0.3, 0.8)],
        columns=[*hostile.HostileRun._fields, "mse", "seconds", live.ALONE, live.BARE],
    )  # fmt: skip
    text = live.live_table(rows)
    assert cells_of(text)[-1] == [
        "`fedavg`", "2 of 5", "score forging", "× 4.0", "+50 %", "+50 %",
    ]  # fmt: skip


def test_live_errors_are_equal_to_those_of_one_process():
    rows = pd.read_csv(RESULTS / "federation" / "hostile-live.csv")
    assert (rows["mse"] == rows[live.ALONE]).all()


def test_what_lying_nodes_send_in_one_process_is_what_the_server_gets(monkeypatch):
    got = {}

    def note(self, ids, upload, stage=0):
        got.update(upload, rule=self.robust.robust)

    monkeypatch.setattr(Server, "aggregate", note)
    server = Server.__new__(Server)
    server.state = SimpleNamespace(round=3)
    sent = {"w": torch.arange(1.0, 9.0)[:, None], "counts": torch.ones(8, dtype=torch.long)}
    with hostile.lying(hostile.HostileRun("fedavg", 2, "sign-flipped", "clip")):
        Server.aggregate(server, torch.tensor([0, 1, 3, 4, 5, 6, 7, 8]), sent)
    assert got["rule"] == "clip"
    assert got["w"].flatten().tolist() == [-1, -2, -3, 4, 5, 6, 7, 8]
    assert sent["w"].min() == 1
    assert torch.equal(got["counts"], sent["counts"])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_only_rules_that_were_measured_to_do_it_no_harm(name):
    method, guards = METHODS[name], METHODS[name].attacked.guards
    found = hostile.ratios(pd.read_csv(RESULTS / "federation" / "robust.csv"))
    nodes = pd.read_csv(RESULTS / "federation" / "hostile.csv").query("method == @name")
    for rule in guards:
        of_rule = nodes[nodes["robust"] == rule]
        if of_rule.empty:
            assert hostile.sound(found[name, rule])
            continue
        (base,) = nodes.query("robust == 'none' and hostile == 0")["mse"]
        worst = (of_rule.groupby(of_rule["hostile"] > 0)["mse"].max() / base).tolist()
        assert hostile.sound(worst)
    assert set(guards) == set(RULES) or method.attacked.unguarded


def test_the_table_of_rules_tells_for_whom_they_are_refused():
    names = {"fedtrees": ("median", "trimmed", "clip"), "fedavg": ()}
    rows = pd.DataFrame(
        [(method, n, b, rule, 0.3 if rule in refused else 0.101 if rule != "none" else 0.1)
         for method, refused in names.items() for rule in ("none", *RULES)
         for n, b in ((0, "-"), *((4, b) for b in hostile.ATTACKS))],
        columns=[*hostile.HostileRun._fields, "mse"],
    )  # fmt: skip
    found = {row[0]: row[1:] for row in cells_of(hostile.robust_table(rows))}
    assert found["`median`"] == ["1 of 2", "`fedtrees`", "+1 %", "+1 %", "+1 %"]
    assert found["`drop`"] == ["2 of 2", "none", "+1 %", "+1 %", "+1 %"]


@pytest.mark.parametrize(("n", "hostile_nodes", "select"), [(5, 2, "last"), (6, 4, "best")])
def test_only_nodes_that_lie_in_no_run_count(n, hostile_nodes, select, tmp_path):
    for i in range(hostile.N_NODES):
        folder = tmp_path / f"node-{i}" / "run-1"
        folder.mkdir(parents=True)
        row = {"client": 1, "horizon": "all", "metric": "mse", "split": "test"}
        rows = [{**row, "selection": s, "value": float(i < n)} for s in ("best", "last")]
        pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
    run = hostile.HostileRun("fedavg", hostile_nodes, "random", "none")
    found = hostile.honest_error(tmp_path, run, select, hostile.N_NODES)
    assert found == pytest.approx((n - 4) / 6)


def test_a_runs_difference_is_the_largest_of_its_numbers(tmp_path):
    for name, loss, mse in (("a", 1.0, 0.5), ("b", 1.01, 0.5), ("c", 1.0, 0.5)):
        (tmp_path / name).mkdir()
        row = dict.fromkeys(live.COMPARED, 3) | {"train_loss": loss, "seconds": math.pi}
        pd.DataFrame([row]).to_csv(tmp_path / name / "rounds.csv")
        (tmp_path / name / "federation.json").write_text(json.dumps({"test": {"mse": mse}}))
    assert live.difference(tmp_path / "b", tmp_path / "a") == pytest.approx(0.01)
    assert live.difference(tmp_path / "c", tmp_path / "a") == 0


def test_a_run_with_kills_of_nodes_is_told_by_its_test_error_and_missed_rounds(tmp_path):
    for name, asked, failed, mse in (("killed", [9, 6], [3, 0], 0.55), ("whole", [9, 9], 0, 0.5)):
        (tmp_path / name).mkdir()
        rows = pd.DataFrame([dict.fromkeys(live.COMPARED, 1.0)] * 2)
        rows.assign(participants=asked, failed=failed).to_csv(tmp_path / name / "rounds.csv")
        about = {"test": {"mse": mse}, "nodes": 3}
        (tmp_path / name / "federation.json").write_text(json.dumps(about))
    found = live.differences_of_runs(tmp_path / "killed", tmp_path / "whole", "node")
    assert found.pop("difference") == pytest.approx(0.1)
    assert found == {"left_out": 3, "missed": pytest.approx(6 / 18), "finished": True}
