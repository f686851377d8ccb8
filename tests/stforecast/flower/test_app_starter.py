"""Flower's process of a message, forked from one that stays; here the program is a stand-in."""

import contextlib
import os
import socket
import subprocess
import threading

import psutil
import pytest
from waiting import has_ended, started, wait_for

from stforecast.flower.app_starter import PROGRAM, can_fork, serve, write_program
from stforecast.flower.node_settings import KeptProcess

pytestmark = pytest.mark.skipif(not can_fork(), reason="forks only on Linux")

STARTER = """
import os, socket, sys, time
from stforecast.flower.app_starter import serve

def program():
    if "wait" in sys.argv:
        print(os.getpid(), flush=True)
        time.sleep(60)
    print("forked by", os.getppid(), *sys.argv, flush=True)
    print("an error", file=sys.stderr)
    sys.exit(3)

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    serve(listener, program, patience=0.1)
"""


@pytest.fixture
def own(tmp_path):
    """A program that runs where nothing forks."""
    path = tmp_path / "own"
    path.write_text('#!/bin/sh\necho own "$@"\n')
    path.chmod(0o700)
    return str(path)


def said(folder, *args):
    """What the program of a message prints, as Flower starts it: by its name."""
    done = subprocess.run(
        [PROGRAM, *args], env={"PATH": f"{folder}:{os.defpath}"}, text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
    )  # fmt: skip
    return done.stdout.splitlines()


def somebody_listens(path):
    """Whether somebody does; one that asks for nothing gets nothing."""
    with socket.socket(socket.AF_UNIX) as asking:
        return not asking.connect_ex(str(path))


def test_a_fork_has_the_arguments_and_outputs_of_the_program_that_asks(own):
    with KeptProcess("starter", ["-c", STARTER]) as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(lambda: somebody_listens(kept.socket), 20, "the starter")
        for args in (["--token", "a b"], ["ü", ""], []):
            words = " ".join(["forked by", str(kept.process.pid), PROGRAM, *args])
            assert sorted(said(kept.socket.parent, *args)) == ["an error", words]
        left = psutil.Process(kept.process.pid).children()
        assert len(left) <= 1, "forks that ended are forgotten"


@pytest.mark.parametrize("left", [False, True])
def test_the_program_itself_runs_where_nothing_forks(left, own, tmp_path):
    """Before the starter has begun, and after it was killed, which leaves its socket."""
    if left:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
    write_program(tmp_path, tmp_path / "s", own)
    assert said(tmp_path, "--token", "a b") == ["own --token a b"]


@contextlib.contextmanager
def waiting_fork(kept):
    """A fork that waits, until Flower's process that started the program is killed."""
    code = f"import subprocess, time; subprocess.run(['{PROGRAM}', 'wait']); time.sleep(60)"
    with started("-c", code, env={"PATH": f"{kept.socket.parent}:{os.defpath}"}) as parent:
        try:
            yield psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
            parent.stdout.read()  # Until the fork has closed its output.


def test_a_fork_ends_with_the_process_that_started_the_program(own):
    with KeptProcess("starter", ["-c", STARTER]) as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(lambda: somebody_listens(kept.socket), 20, "the starter")
        with waiting_fork(kept) as fork:
            assert fork.is_running()
        wait_for(lambda: has_ended(fork.pid), 20, "the fork's end")


def test_the_program_itself_runs_where_only_a_fork_of_a_killed_starter_is_left(own):
    with KeptProcess("starter", ["-c", STARTER], wait=60) as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(lambda: somebody_listens(kept.socket), 20, "the starter")
        with waiting_fork(kept) as fork:
            kept.process.kill()
            kept.process.wait()
            assert said(kept.socket.parent, "--token") == ["own --token"]
            assert fork.is_running()


def test_one_that_asks_and_says_nothing_holds_up_no_other(own):
    with KeptProcess("starter", ["-c", STARTER], wait=60) as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(lambda: somebody_listens(kept.socket), 20, "the starter")
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(kept.socket))
            assert f"forked by {kept.process.pid} {PROGRAM}" in said(kept.socket.parent)


def test_the_program_itself_runs_whenever_a_fork_fails(own, tmp_path, monkeypatch, caplog):
    def fork():
        raise BlockingIOError("no more processes")

    def begin():
        with contextlib.suppress(OSError):  # Of the listener's end.
            serve(listener, print)

    monkeypatch.setattr(os, "fork", fork)
    write_program(tmp_path, tmp_path / "s", own)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        thread = threading.Thread(target=begin)
        thread.start()
        assert [said(tmp_path, name) for name in "ab"] == [["own a"], ["own b"]]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert caplog.text.count("no more processes") == 2
