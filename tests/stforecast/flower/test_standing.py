"""What the server writes about a run: events, metrics, and how the run stands."""

import json
import logging
import re

import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import pooled, select
from stforecast.federated.nodes.messages import Message
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.server_app import logged, serve
from stforecast.flower.standing import (
    FAILED,
    FINISHED,
    RUNNING,
    Standing,
    read_event_log,
    status_text,
)
from stforecast.flower.telemetry import JsonLines, metrics_text

SAMPLE = re.compile(r'stforecast_[a-z_]+(\{[a-z]+="[^"\\\n]*"\})? -?\d+(\.\d+)?(e-?\d+)?')
"""A line of Prometheus's text format, as far as it is used here."""


def samples(text):
    """Names of the metrics with their values; each has a line of its kind before it."""
    found, kinds = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kind in ("gauge", "counter")
            assert name.endswith("_total") == (kind == "counter")
            kinds.add(name)
        elif not line.startswith("# HELP "):
            assert SAMPLE.fullmatch(line), line
            name, value = line.rsplit(" ", 1)
            assert name.partition("{")[0] in kinds
            found[name] = float(value)
    assert text.endswith("\n")
    return found


def test_a_run_tells_its_rounds_nodes_and_end(federation, tmp_path):
    run, link, _ = federation()
    about = serve(link, run)
    standing = Standing.of(read_event_log(tmp_path / "server"))
    assert (standing.state, standing.method, standing.planned) == (FINISHED, "fuels", 2)
    assert (standing.clients, standing.connected_clients, standing.starts) == (3, 3, 1)
    assert standing.test == about["test"]
    assert standing.best_round == about["best_round"]
    assert sorted(standing.rounds) == [1, 2]
    assert [(n.first, n.last, n.failures) for n in standing.nodes.values()] == [
        (0, 0, 0), (1, 2, 0),
    ]  # fmt: skip
    found = samples((tmp_path / "server" / "metrics.prom").read_text())
    assert found["stforecast_round"] == found["stforecast_rounds_planned"] == 2
    assert found["stforecast_clients_connected"] == 3
    assert found["stforecast_validation_loss"] == standing.rounds[2]["validation_loss"]
    assert found['stforecast_state{state="finished"}'] == 1
    assert found["stforecast_received_bytes_total"] > 0


def test_a_failed_run_says_why(federation, tmp_path):
    run, link, _ = federation()
    link.configs[1] = {**link.configs[1], "data": "nowhere.nc"}
    with pytest.raises(InputError):
        serve(link, run)
    standing = Standing.of(read_event_log(tmp_path / "server"))
    assert standing.state == FAILED
    assert standing.reason.startswith("1 of 3 clients came within")
    assert standing.refused[1].startswith("nowhere.nc: no such file")


START = {"event": "start", "method": "fuels", "rounds": 9, "clients": 4}


def test_nodes_come_go_and_fail():
    standing = Standing.of(
        [
            START,
            {"event": "refused", "node": 1, "reason": "taken"},
            {"event": "joined", "node": 1, "first": 0, "last": 3},
            {"event": "gathered"},
            {"event": "left_out", "node": 1, "reason": "silent"},
            {"event": "lost", "node": 1},
            {"event": "joined", "node": 1, "first": 0, "last": 3},
            {"event": "round"},  # not complete: passed over
            {"event": "one of a later version"},
            {"message": "no event"},
        ]
    )
    (node,) = standing.nodes.values()
    assert (node.connected, node.joins, node.failures, node.reason) == (True, 2, 1, "silent")
    assert (standing.state, standing.refused, standing.rounds) == (RUNNING, {}, {})
    standing.apply({"event": "expelled", "node": 1, "reason": "it lied"})
    assert (node.connected, standing.refused[1]) == (False, "it lied")
    standing.apply(START)
    assert (standing.connected, standing.starts) == ([], 2)
    found = samples(metrics_text(standing))
    assert found['stforecast_node_failures_total{node="1"}'] == 1
    assert found['stforecast_node_connected{node="1"}'] == 0


def test_strikes_lost_rounds_and_errors_that_do_not_count_are_shown():
    standing = Standing.of(
        [
            START,
            {"event": "joined", "node": 1, "first": 0, "last": 3},
            *({"event": "round", "round": n, "bytes_down": 1, "bytes_up": 1} for n in (1, 2, 3)),
            {"event": "left_out", "node": 1, "reason": "silent", "strikes": 3},
            {"event": "suspended", "node": 1},
            {"event": "round_lost", "round": 4, "reason": "values up to inf"},
            {"event": "errors_left_out", "node": 1, "reason": "its test mse is -1e+09"},
        ]
    )
    found = samples(metrics_text(standing))
    assert found['stforecast_node_strikes{node="1"}'] == 3
    assert found['stforecast_node_suspended{node="1"}'] == 1
    assert found["stforecast_rounds_lost_total"] == 1
    said = status_text(standing)
    assert re.search(r"0 to 3 +silent +1 +1 +3 +silent", said)
    assert "rounds repeated: 1 (the last: values up to inf)" in said
    assert mentions(said, "node 1:", "mse", "-1e+09")
    standing.apply({"event": "joined", "node": 1, "first": 0, "last": 3})
    standing.apply({"event": "answered", "node": 1})
    standing.apply({"event": "resumed", "round": 1})
    (node,) = standing.nodes.values()
    assert (node.suspended, node.strikes, list(standing.rounds)) == (False, 0, [1])


def test_what_a_federation_wrote_is_described_and_damage_is_named(federation, tmp_path, stforecast):
    run, link, _ = federation()
    about, folder = serve(link, run), tmp_path / "server"
    code, out, err = stforecast("info", folder, "--json")
    found = json.loads(out)
    assert (code, err, found["kind"], found["state"]) == (0, "", "federation", FINISHED)
    assert found["results"]["test"] == about["test"]
    for name, text in {
        "rounds.csv": "".join((folder / "rounds.csv").read_text().splitlines(True)[:-1]),
        "federation.json": "{",
    }.items():
        whole = (folder / name).read_text()
        for damaged in (text, "\0" * 9, "[" * 10**5):
            (folder / name).write_text(damaged)
            for words in (["info"], ["federate", "status"]):
                code, out, err = stforecast(*words, folder)
                assert (code, out, err.count("\n")) == (2, "", 1)
                assert err.startswith(f"stforecast: {folder / name}: ")
        (folder / name).write_text(whole)
    (folder / "rounds.csv").unlink()
    assert stforecast("federate", "status", folder)[0] == 2


def test_a_damaged_line_of_events_is_said_and_one_being_written_is_not(tmp_path, caplog):
    (tmp_path / "server.jsonl").write_text('{"a": 1}\n{"b": \n{"c": 3}\n{"d"')
    assert list(read_event_log(tmp_path)) == [{"a": 1}, {"c": 3}]
    assert [r.getMessage() for r in caplog.records] == [
        f"{tmp_path / 'server.jsonl'}: line 2 is damaged; what it told is not shown"
    ]


@pytest.mark.attack("hostile answers")
def test_one_node_does_not_move_the_test_errors(federation, tmp_path):
    """Two nodes: a negative error is left out and named in the results."""
    run, link, _ = federation()
    honest = link.answer
    link.answer = lambda run, config, m: (
        Message({**found.about, "errors": {"mse": -1e9, "mae": -1e9}})
        if (found := honest(run, config, m)).about.get("errors") and config["first-client"]
        else found
    )
    about = serve(link, run)
    assert about["left_out"] == {1: "its test mse is -1e+09"}
    assert all(0 < v < 10 for v in about["test"].values())
    written = json.loads((tmp_path / "server" / "federation.json").read_text())
    assert written["left_out"].keys() == {"1"}


@pytest.mark.repeats
@pytest.mark.parametrize("secure", [None, SecureSums()])
def test_a_node_without_the_best_round_says_so_and_does_not_count(
    secure, federation, tmp_path, caplog
):
    """Node 1 is told of a best round that it has not seen."""
    run, link, _ = federation("fedavg", secure=secure)
    honest = link.answer
    link.answer = lambda run, config, m: honest(
        run, config, Message({**m.about, "best": 99}, m.payload)
        if m.about["task"] == "finish" and config["first-client"] else m,
    )  # fmt: skip
    about = serve(link, run)
    assert about["left_out"][1].startswith("it was not there for the best round, ")
    assert "best round, 99" in caplog.text
    table = pd.read_csv(next(tmp_path.glob("a.federation/run-*/metrics.csv")))
    own = select(pooled(table), split="test", selection="best", metric="mse")["value"].item()
    assert about["test"]["mse"] == pytest.approx(own, rel=1e-6)
    of_late = pd.read_csv(next(tmp_path.glob("b.federation/run-*/metrics.csv")))
    assert set(table["selection"]) == {"best", "last"}
    assert set(of_late["selection"]) == {"last"}


def test_secure_sums_that_nodes_left_are_counted():
    standing = Standing.of(
        [
            START,
            {"event": "joined", "node": 1, "first": 0, "last": 3},
            {"event": "left_sum", "node": 1, "task": "mask", "reason": "silent"},
            {"event": "sum_recovered", "round": 1, "nodes": 2, "left": 1},
            {"event": "sum_lost", "round": 2, "reason": "1 nodes dealt shares"},
            {"event": "sum_lost", "round": 2, "reason": "no good"},
        ]
    )
    assert standing.nodes[1].reason == "left the sum at mask: silent"
    assert (standing.sums_recovered, standing.sums_lost) == (1, 2)
    assert standing.lost_because == "no good"
    found = samples(metrics_text(standing))
    assert found["stforecast_sums_recovered_total"] == 1
    assert found["stforecast_sums_lost_total"] == 2


def test_metrics_go_on_after_the_server_was_started_again(tmp_path):
    log = logging.getLogger("stforecast.flower.test")
    for _ in range(2):
        with logged(tmp_path):
            log.info("begins", extra={"fields": START})
        with (tmp_path / "server.jsonl").open("a") as file:
            file.write('{"event": "start", "meth\n[]\n')  # as a killed server leaves it
    assert samples((tmp_path / "metrics.prom").read_text())["stforecast_starts_total"] == 2
    assert (tmp_path / "server.log").read_text() == "begins\n" * 2


def test_numbers_that_json_has_not_are_null():
    record = logging.LogRecord("a", logging.WARNING, "", 1, "100 %", None, None)
    record.fields = {"loss": float("nan"), "test": {"mse": float("inf"), "mae": 1.5}}
    line = json.loads(JsonLines().format(record))
    assert (line["loss"], line["test"]) == (None, {"mse": None, "mae": 1.5})
    assert (line["level"], line["message"]) == ("warning", "100 %")


def test_what_others_sent_is_cut_and_has_no_control_characters():
    foreign = "\x1b[2J\u202e\n" + "x" * 10_000
    record = logging.LogRecord("a", logging.WARNING, "", 1, "%s", (foreign,), None)
    record.fields = {"reason": foreign, "names": [foreign], "test": {foreign: 1}}
    line = json.loads(JsonLines().format(record))
    for text in (line["message"], line["reason"], *line["names"], *line["test"]):
        assert len(text) <= 4000
        assert text.isprintable()


def test_an_exception_is_one_line(capsys):
    try:
        raise ValueError("two\nlines")
    except ValueError as e:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "no", None, (type(e), e, None))
    (line,) = JsonLines().format(record).splitlines()
    assert "two\nlines" in json.loads(line)["traceback"]


def test_a_folder_without_events_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no server.jsonl"):
        list(read_event_log(tmp_path))


def test_who_is_bounded_or_doubtful_is_shown():
    standing = Standing.of(
        [
            START,
            {"event": "joined", "node": 1, "first": 0, "last": 3},
            {"event": "bounded", "node": 1, "reason": "its validation loss: its mean is 1e9"},
            {"event": "errors_doubtful", "node": 1, "reason": "it claims 9 values"},
        ]
    )
    said = status_text(standing)
    assert mentions(said, "validation", "mean", "1e9")
    assert mentions(said, "node 1", "9 values")
