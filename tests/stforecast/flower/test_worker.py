"""Messages that a long-lived worker answers in place of Flower's processes."""

import contextlib
import errno
import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from waiting import has_ended, started, wait_for

from data_prep.base.files import WriteError
from stforecast.federated.nodes.messages import Message
from stforecast.flower import worker
from stforecast.flower.hand_over import Array, ask_worker, receive, send
from stforecast.flower.node_settings import private_folder
from stforecast.flower.supernode import KeptProcess
from stforecast.flower.wire import encode, unpack

TOKEN = "0123456789abcdef"


@pytest.fixture
def socket(tmp_path):
    """The socket of a worker in a thread of this process."""
    path = str(tmp_path / "s")
    listener = Listener(path, "AF_UNIX")

    def serve():
        with contextlib.suppress(OSError):
            worker.serve_messages(listener)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return path


def asked(run, config, message):
    text, arrays = encode(message)
    return {"text": text, "run": run.as_run_config(), "node": config}, arrays


def test_what_crosses_is_what_was_sent():
    text, arrays = encode(Message({}, {"w": torch.randn(2, 3), "n": torch.tensor(1)}))
    here, there = multiprocessing.Pipe()
    send(here, {"text": text, "a": [1, None]}, {**arrays, "none": Array("x", (), "y", b"")})
    about, found = receive(there)
    assert about == {"text": text, "a": [1, None]}
    assert found == {**arrays, "none": Array("x", (), "y", b"")}


def test_a_worker_answers_as_a_process_of_one_message(federation, socket):
    run, link, _ = federation(method="fedavg")
    join = Message({"task": "join", "run": TOKEN})
    sent = asked(run, link.configs[1], join)
    about, arrays = ask_worker(socket, *sent)
    assert unpack({"about": {"json": about["text"]}, "payload": arrays}) == link.answer(
        run, link.configs[1], join
    )


def test_an_error_is_told_by_its_class_and_the_worker_goes_on(federation, socket, caplog):
    caplog.set_level(logging.ERROR)
    run, link, _ = federation()
    about, arrays = asked(run, {**link.configs[0], "data": "secret.nc"}, Message({"run": TOKEN}))
    assert ask_worker(socket, about, arrays) == ({"error": "InputError"}, {})
    assert "secret.nc" in caplog.text
    about["node"] = {"require-secure-aggregation": True}
    assert ask_worker(socket, about, arrays) == ({"error": "SecureAggregationRequired"}, {})
    about["node"] = link.configs[0]
    bad = {"w": Array("float32", (2,), "pickle", b"cos")}
    assert ask_worker(socket, about, bad) == ({"error": "ValueError"}, {})


def test_a_full_disk_is_reported_to_the_server_with_its_path(federation, caplog, monkeypatch):
    full = WriteError(Path("/data/round-0001"), OSError(errno.ENOSPC, ""))
    monkeypatch.setattr(worker, "answer_of_node", Mock(side_effect=full))
    run, link, _ = federation()
    about, arrays = asked(run, link.configs[0], Message({"task": "join", "run": TOKEN}))
    (found, _) = worker.answer(about, arrays)
    assert found["error"].startswith(
        "/data/round-0001: cannot be written (No space left on device)"
    )
    assert "/data/round-0001" in caplog.text
    assert "Traceback" not in caplog.text


def test_one_that_asks_and_goes_away_ends_no_worker(federation, socket):
    for sent in (b"", b"{", b'{"values": {}, "arrays": [1]}'):
        with Client(socket, "AF_UNIX") as connection:
            connection.send_bytes(sent)
    Client(socket, "AF_UNIX").close()
    assert ask_worker(socket, {}, {}) == ({"error": "KeyError"}, {})


SCRIPT = """
import sys, time
from multiprocessing.connection import Listener
from pathlib import Path
Path(sys.argv[1]).unlink(missing_ok=True)
with Listener(sys.argv[1], "AF_UNIX") as listener:
    while True:
        with listener.accept() as connection:
            connection.recv_bytes()
            connection.send_bytes(b'{"values": {"text": "{}"}, "arrays": []}')
"""


def test_a_worker_that_is_killed_is_started_again_and_stopped_at_the_end(tmp_path):
    socket = str(tmp_path / "s")
    with KeptProcess("worker", ["-c", SCRIPT, socket], wait=0.01) as kept:
        first = kept.process.pid
        assert ask_worker(socket, {}, {}) == ({"text": "{}"}, {})
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: kept.process.pid != first, 20, "another worker")
        assert ask_worker(socket, {}, {}) == ({"text": "{}"}, {})
        last = kept.process
    assert last.returncode is not None


@pytest.mark.repeats
def test_a_worker_ends_with_a_node_that_is_killed_while_it_stops():
    """Signals that the node ignores by then are not ignored by a worker that it starts."""
    code = f"""
import signal, time
from stforecast.flower.node_settings import private_folder
from stforecast.flower.supernode import KeptProcess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with private_folder("worker") as folder:
    with KeptProcess("worker", ["-c", {SCRIPT!r}, str(folder / "s")]) as kept:
        print(kept.process.pid, folder, flush=True)
        time.sleep(60)
"""
    with started("-c", code) as node:
        pid, folder = node.stdout.readline().split()
    wait_for(lambda: has_ended(int(pid)), 20, "the worker's end")
    with private_folder("worker") as own:
        assert own.stat().st_mode & 0o777 == 0o700
        assert not Path(folder).exists(), "the next node removes what a killed one left"
    assert not own.exists()


def test_a_worker_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("stforecast.flower.hand_over.PATIENCE", 0.0)
    with pytest.raises(FileNotFoundError):
        ask_worker(str(tmp_path / "none"), {}, {})
