"""What a node answers, and what it says of errors."""

import errno
import logging
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
from waiting import has_ended, started, wait_for

from data_prep.base.files import WriteError
from stforecast.federated.nodes.messages import Message
from stforecast.flower import client_app
from stforecast.flower.supernode import KeptProcess

TOKEN = "0123456789abcdef"


def content(text, **arrays):
    """What Flower holds of a message, without Flower."""
    return {"about": {"json": text}, "payload": arrays}


def test_an_error_is_named_by_its_class_alone(federation, caplog):
    caplog.set_level(logging.ERROR)
    run, link, _ = federation()
    settings, join = run.as_run_config(), content(f'{{"task": "join", "run": "{TOKEN}"}}')
    lost = {**link.configs[0], "data": "secret.nc"}
    assert client_app.answer(join, settings, lost) == "InputError"
    assert "secret.nc" in caplog.text
    strict = {"require-secure-aggregation": True}
    assert client_app.answer(join, settings, strict) == "SecureAggregationRequired"
    bad = content("{}", w=Mock(stype="pickle", data=b"cos"))
    assert client_app.answer(bad, settings, link.configs[0]) == "ValueError"
    assert client_app.answer({}, {}, {}) == "InputError"


def test_a_full_disk_is_reported_to_the_server_with_its_path(federation, caplog, monkeypatch):
    full = WriteError(Path("/data/round-0001"), OSError(errno.ENOSPC, ""))
    monkeypatch.setattr(client_app, "answer_of_node", Mock(side_effect=full))
    run, link, _ = federation()
    found = client_app.answer(content("{}"), run.as_run_config(), link.configs[0])
    assert found.startswith("/data/round-0001: cannot be written (No space left on device)")
    assert "/data/round-0001" in caplog.text
    assert "Traceback" not in caplog.text


def test_an_answer_is_that_of_the_node(federation):
    run, link, _ = federation(method="fedavg")
    join = content(f'{{"task": "join", "run": "{TOKEN}"}}')
    found = client_app.answer(join, run.as_run_config(), link.configs[1])
    assert found == link.answer(run, link.configs[1], Message({"task": "join", "run": TOKEN}))


WAITS = "import time; print('ready', flush=True); time.sleep(60)"


def test_an_app_that_is_killed_is_started_again_and_stopped_at_the_end():
    with KeptProcess("app", ["-c", WAITS], wait=0.01) as kept:
        first = kept.process.pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: kept.process.pid != first, 20, "another app")
        last = kept.process
    assert last.returncode is not None


@pytest.mark.repeats
def test_an_app_ends_with_a_node_that_is_killed_while_it_stops():
    """Signals that the node ignores by then are not ignored by an app that it starts."""
    code = f"""
import signal, time
from stforecast.flower.supernode import KeptProcess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with KeptProcess("app", ["-c", {WAITS!r}]) as kept:
    print(kept.process.pid, flush=True)
    time.sleep(60)
"""
    with started("-c", code) as node:
        pid = int(node.stdout.readline())
    wait_for(lambda: has_ended(pid), 20, "the app's end")
