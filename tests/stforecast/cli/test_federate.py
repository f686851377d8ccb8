"""`stforecast federate` writes an app whose settings are those that were typed."""

import json
import re
import sys
import tomllib

import pytest
import torch
from click.testing import CliRunner
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.cli.federate import federate_command
from stforecast.federated.core.state import Clients, State
from stforecast.federated.nodes.messages import FEW_CELLS
from stforecast.federated.runs.checkpoint import (
    Checkpoint,
    is_spaced,
    newest_first,
    save_checkpoint,
)
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.settings import RunSettings, read_app


def type_in(*words):
    done = CliRunner().invoke(federate_command, list(map(str, words)), catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_app_holds_what_was_typed(tmp_path):
    app = tmp_path / "app"
    done = type_in(
        "--method", "fuels", "--clients", 9, "--out", app, "--results", tmp_path / "results",
        "--rounds", 9, "--tau", 0.5, "--service", "net", "--enough", 5, "--answer", 30,
        "--strikes", 4, "--min-parties", 3,
    )  # fmt: skip
    assert done.output.splitlines()[-1] == f"begin it with: flwr run {app} --stream"
    project = tomllib.loads((app / "pyproject.toml").read_text())
    run = RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"])
    assert run.config.method == "fuels"
    assert (run.config.training.rounds, run.config.method_options.tau) == (9, 0.5)
    assert run.config.data.service == "net"
    assert (run.n_clients, run.out) == (9, str(tmp_path / "results"))
    assert (run.patience.start, run.patience.answer, run.patience.enough) == (600.0, 30.0, 5)
    assert (run.patience.strikes, run.patience.min_parties) == (4, 3)


def test_totals_are_written_with_what_they_need_and_said(tmp_path):
    app = tmp_path / "app"
    words = ["--clients", 9, "--out", app, "--results", tmp_path, "--totals", "--units", "MB"]
    words += ["--intervals", "conformal"]
    with pytest.raises(InputError, match="time_zone") as error:
        type_in(*words)
    assert "--time-zone" in error.value.typed
    done = type_in(*words, "--time-zone", "Europe/Rome")
    assert done.output.startswith("totals: the server learns test readings")
    run = read_app(app)
    assert (run.totals, run.patience.min_parties) == (True, 3)
    with pytest.raises(InputError, match="sums of avg_speed"):
        type_in(*words, "--time-zone", "Europe/Rome", "--service", "avg_speed", "--units", "km/h")


def test_settings_that_nodes_cannot_have_are_refused(tmp_path):
    with pytest.raises(InputError, match="no node"):
        type_in(
            "--clients", 9, "--out", tmp_path / "app", "--results", tmp_path, "--scale", "global"
        )  # fmt: skip
    for step in ("0h", "soon", "NaT"):
        with pytest.raises(InputError, match=f"step is '{step}'"):
            type_in(
                "--step", step, "--clients", 9, "--out", tmp_path / "app", "--results", tmp_path
            )  # fmt: skip
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--start", "nan"], "start is nan"),
        (["--start", "-1"], "start is -1.0"),
        (["--answer", "0"], "answer is 0.0"),
        (["--answer", "inf"], "answer is inf"),
        (["--enough", "-1"], "enough is -1"),
        (["--strikes", "-1"], "strikes is -1"),
        (["--min-parties", "0"], "min_parties is 0"),
        (
            ["--participation", "0.2"],
            "participation=0.2 draws 2 of 9 .*min_parties",
        ),
        (["--min-parties", "10"], "min_parties is 10, .*9 "),
        *[
            ([*words, "--clip", "1", "--noise", "gaussian"], ".*sends counters")
            for words in (
                ["--method", "fedproto"],
                ["--model", "graph_wavenet", "--client-is", "all"],
            )
        ],
    ],
)
def test_settings_without_sense_are_refused_in_one_line(words, message, tmp_path):
    with pytest.raises(InputError, match=f"^{message}") as refused:
        type_in("--clients", 9, "--out", tmp_path / "app", "--results", tmp_path, *words)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(("step", "period"), [("1h", 24), ("10min", 144)])
def test_the_server_learns_the_steps_of_a_day(tmp_path, step, period):
    type_in(
        "--method", "fedlean", "--clients", 9, "--out", tmp_path / "app", "--results", tmp_path,
        "--step", step,
    )  # fmt: skip
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    run = RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"])
    assert run.config.at(run.step).window.period == period


def test_a_file_holds_what_would_be_typed(tmp_path):
    (tmp_path / "server.toml").write_text(
        'method = "fuels"\nclients = 7\nout = "app"\nresults = "results"\ntau = 0.5\n'
        'node = ["12=0-3", "34=4-6"]\n'
    )
    type_in("--config", tmp_path / "server.toml", "--rounds", 3)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    run = RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"])
    assert (run.config.method_options.tau, run.config.training.rounds) == (0.5, 3)
    assert run.out == str(tmp_path / "results")
    assert run.owners == {12: range(4), 34: range(4, 7)}


def test_a_key_of_another_method_is_named(tmp_path):
    (tmp_path / "server.toml").write_text('method = "fedavg"\nclients = 7\ntau = 0.5\n')
    with pytest.raises(InputError, match=r"server.toml: unknown key 'tau'"):
        type_in("--config", tmp_path / "server.toml")


EVENTS = [
    {"event": "start", "method": "fuels", "rounds": 9, "clients": 4},
    {"event": "refused", "node": 3, "reason": "its clients 0 to 1 are those of another node"},
    {"event": "joined", "node": 1, "first": 0, "last": 1},
    {"event": "joined", "node": 2, "first": 2, "last": 3},
    {"event": "gathered"},
    {"event": "left_out", "node": 2, "reason": "it sent \x1b[1mnumbers " + "x" * 99},
    {"event": "sum_recovered", "round": 1, "nodes": 2, "left": 1},
    {"event": "sum_lost", "round": 1, "reason": "1 nodes dealt shares"},
    {"event": "round", "round": 1, "train_loss": 0.5, "validation_loss": None, "participants": 4,
     "failed": 2, "seconds": 3.25, "time": "2026-01-01T00:00:00+00:00"},
]  # fmt: skip


def test_the_status_shows_rounds_nodes_and_failures(tmp_path):
    (tmp_path / "server.jsonl").write_text("".join(json.dumps(e) + "\n" for e in EVENTS))
    shown = type_in("status", tmp_path).output
    assert shown.startswith("fuels: running\nrounds: 1 of 9 complete\n")
    assert "clients connected: 4 of 4 on 2 nodes" in shown
    assert "secure sums completed although nodes left: 1\n" in shown
    assert "secure sums lost: 1 (the last: 1 nodes dealt shares)\n" in shown
    assert re.search(r"last event: \d+ s ago", shown)
    assert re.search(r"^2 +2 to 3 +yes +1 +1 +0 +it sent  \[1mnumbers x+…$", shown, re.M)
    assert re.search(r"^ +1 +0.5 +4 +2 +3.25$", shown, re.M)
    assert "node 3 is not let in: its clients 0 to 1 are those of another node" in shown
    found = json.loads(type_in("status", tmp_path, "--json").output)
    assert (found["state"], found["nodes"]["2"]["failures"]) == ("running", 1)


def test_resume_goes_back_to_a_round_that_is_kept(tmp_path):
    with pytest.raises(InputError, match=r"round 3; .*none"):
        type_in("resume", tmp_path, "--from-round", 3)
    for round in (3, 4):
        state = State(Clients({}, {}, {}, torch.tensor([1])), {}, round, seed=0)
        save_checkpoint(Checkpoint({}, state, None, [], 1), tmp_path / "checkpoints", is_spaced)
    said = type_in("resume", tmp_path, "--from-round", 3).output
    assert said == "the run goes on after round 3 (removed: 4); start it again with flwr run\n"
    assert [p.name for p in newest_first(tmp_path / "checkpoints")] == ["round-0003"]


def test_the_status_of_nothing_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"no server.jsonl"):
        type_in("status", tmp_path)


def test_a_rule_that_does_the_method_harm_is_refused_before_a_node_is_asked(tmp_path):
    common = ("--clients", 9, "--out", tmp_path / "app", "--results", tmp_path)
    with pytest.raises(InputError, match=r"robust='clip' .*fedtrees: .*drop"):
        type_in("--method", "fedtrees", "--robust", "clip", *common)
    assert not (tmp_path / "app").exists()


def test_secure_aggregation_is_for_methods_whose_server_needs_sums(tmp_path):
    common = ("--clients", 9, "--out", tmp_path / "app", "--results", tmp_path)
    for method, reason in (("fuels", "compares the clients' prototypes"), ("solo", "send nothing")):
        with pytest.raises(InputError, match=rf"{method} .*{reason}"):
            type_in("--method", method, "--secure-aggregation", *common)
    with pytest.raises(InputError, match="robust='median'"):
        type_in("--method", "fedavg", "--secure-aggregation", "--robust", "median", *common)
    assert not (tmp_path / "app").exists()
    with pytest.raises(InputError, match=r"share_noise .*clip .*noise"):
        type_in("--secure-aggregation", "--share-noise", *common)
    pytest.importorskip("dp_accounting")
    private = ("--share-noise", "--clip", 2, "--noise", "gaussian")
    type_in("--secure-aggregation", "--secure-threshold", 0.6, *private, *common)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    run = RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"])
    assert run.secure == SecureSums(0.6, share_noise=True)
    assert run.covered.endswith("do not collude")


def written(tmp_path, *words):
    """Write an app; return what was said, and its settings."""
    common = ("--out", tmp_path / "app", "--results", tmp_path)
    said = type_in(*words, *common)
    assert not said.exit_code, said.output
    return said.output, read_app(tmp_path / "app")


TWO = ("--node", "1=0-3", "--node", "2=4-8")


@pytest.mark.parametrize(
    ("words", "fewest"),
    [
        ((), 3),
        (("--min-parties", 5), 5),
        (("--allow-disclosure", "--min-parties", 2), 2),
        (("--allow-disclosure", *TWO), 2),
        (("--method", "fedavg", *TWO), 2),
        (("--method", "fedavg", "--secure-aggregation", "--secure-threshold", 0.7), 3),
    ],
)
def test_uploads_are_masked_by_default(words, fewest, tmp_path):
    said, run = written(tmp_path, "--clients", 9, *words)
    assert run.secure
    assert run.patience.min_parties == fewest
    assert said.startswith("uploads are added up under masks: the server learns only sums over ")
    assert mentions(said, f"{fewest} nodes", "no --robust")
    assert ("other's upload" in said) == (fewest == 2)


@pytest.mark.parametrize(
    ("words", "why", "refused"),
    [
        (("--plain-uploads",), "node's clients", True),
        (("--robust", "median"), "--robust median compares", True),
        (("--bits", 8), "client's upload", True),
        (("--method", "protoridge"), "how the prototypes", True),
        (("--method", "fedavg", "--slow-share", 0.2), "leave out --slow-share", False),
        (("--method", "fuels"), "clients' prototypes", False),
    ],
)
def test_what_cannot_be_masked_is_plain_and_its_disclosure_is_said(words, why, refused, tmp_path):
    said, run = written(tmp_path, "--clients", 9, *words)
    assert run.secure is None
    assert run.patience.min_parties == 1
    assert said.startswith("uploads are plain: the server sees ")
    assert why in said
    assert (mentions(said, "nodes refuse", "allow_disclosure")) == refused


def test_noise_of_which_no_epsilon_could_be_reported_is_refused_before_the_app_is_written(
    monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    private = ("--share-noise", "--clip", 2, "--noise", "gaussian", "--clients", 9)
    with pytest.raises(InputError, match=r"stforecast\[privacy\]"):
        type_in(*private, "--out", tmp_path / "app", "--results", tmp_path)
    assert not (tmp_path / "app").exists()


def test_a_single_party_has_nobody_to_add_up_with(tmp_path):
    _, run = written(tmp_path, "--clients", 1)
    assert run.secure is None


@pytest.mark.parametrize(
    "words",
    [("--clients", 2), ("--clients", 9, *TWO), ("--clients", 9, "--min-parties", 2),
     ("--clients", 2, "--plain-uploads"), ("--clients", 2, "--method", "protoridge")],
)  # fmt: skip
def test_two_parties_that_could_compute_each_other_s_readings_have_to_agree(words, tmp_path):
    common = ("--out", tmp_path / "app", "--results", tmp_path)
    with pytest.raises(InputError, match=r"two parties .*allow_disclosure"):
        type_in(*words, *common)
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("words", [("--clients", FEW_CELLS - 1), ("--participation", 0.4)])
def test_a_sum_over_few_cells_that_gives_each_up_has_to_be_allowed(words, tmp_path):
    common = ("--clients", 2 * FEW_CELLS, "--out", tmp_path / "app", "--results", tmp_path)
    with pytest.raises(InputError, match=rf"of \d+ cells; .*{FEW_CELLS} "):
        type_in(*common, *words)
    assert not (tmp_path / "app").exists()
    for way_out in (("--allow-disclosure",), ("--method", "fedavg"), ("--client-is", "all")):
        written(tmp_path, *common[:2], *words, *way_out)


@pytest.mark.parametrize(
    "words",
    [("--plain-uploads", "--secure-aggregation"), ("--plain-uploads", "--secure-threshold", 0.7),
     ("--bits", 8, "--secure-threshold", 0.7), ("--bits", 8, "--share-noise"),
     ("--plain-uploads", "--share-noise")],
)  # fmt: skip
def test_options_that_exclude_each_other_are_refused(words, tmp_path):
    common = ("--clients", 9, "--out", tmp_path / "app", "--results", tmp_path)
    assert type_in(*words, *common).exit_code == 2
    assert not (tmp_path / "app").exists()


def test_a_finished_federation_is_continued_by_a_new_app(tmp_path):
    type_in(
        "--method", "fuels", "--clients", 2, "--out", tmp_path / "app", "--results",
        tmp_path / "first", "--rounds", 9, "--lr", 0.5, "--service", "net", "--node", "7=0-1",
    )  # fmt: skip
    words = ["update", tmp_path / "app", "--out", tmp_path / "more", "--results", tmp_path / "next"]
    with pytest.raises(InputError, match=r"first/last: .*finished"):
        type_in(*words)
    state = State(Clients({}, {}, {}, torch.ones(2)), {"w": torch.ones(1)}, round=9, seed=1)
    written = save_checkpoint(
        Checkpoint({}, state, None, [], 1, {"token": "a" * 16}), tmp_path / "first"
    )
    written.rename(tmp_path / "first" / "last")
    said = type_in(*words).output
    assert said.startswith("uploads are plain: the server sees each client's upload")
    assert said.endswith(f"begin it with: flwr run {tmp_path / 'more'} --stream\n")
    before, after = (read_app(tmp_path / name) for name in ("app", "more"))
    assert (after.after, after.out, after.owners) == (
        "a" * 16, str(tmp_path / "next"), before.owners
    )  # fmt: skip
    training = after.config.training
    assert (training.rounds, training.schedule) == (10, "constant")
    rates = {"constant": 0.1, "cosine": 1 / 3}
    assert training.lr == 0.5 * rates[before.config.training.schedule]
    assert (tmp_path / "next" / "before" / "checkpoint.json").exists()


def test_a_folder_that_is_no_app_is_refused(tmp_path):
    with pytest.raises(InputError, match="`stforecast federate`"):
        type_in("update", tmp_path, "--out", tmp_path / "a", "--results", tmp_path / "r")
