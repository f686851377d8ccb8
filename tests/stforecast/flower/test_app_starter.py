"""Flower's process of a message, forked from one that stays; here the program is a stand-in."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from stforecast.flower.app_starter import PROGRAM, can_fork, write_program
from stforecast.flower.kept_worker import KeptWorker

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
    serve(listener, program)
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
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout.splitlines()


def wait_for(path):
    """Wait until somebody listens; one that asks for nothing gets nothing."""
    while True:
        with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
            asking.connect(str(path))
            return
        time.sleep(0.01)


def test_a_fork_has_the_arguments_and_outputs_of_the_program_that_asks(own):
    with KeptWorker(["-c", STARTER], name="starter") as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(kept.socket)
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


def test_a_fork_ends_with_the_process_that_started_the_program(own):
    code = f"import subprocess, time; subprocess.run(['{PROGRAM}', 'wait']); time.sleep(60)"
    with KeptWorker(["-c", STARTER], name="starter") as kept:
        write_program(kept.socket.parent, kept.socket, own)
        wait_for(kept.socket)
        parent = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            env={"PATH": f"{kept.socket.parent}:{os.defpath}"},
        )  # fmt: skip
        fork = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.communicate()  # Until the fork has closed its output.
        end = time.monotonic() + 20
        while fork.is_running() and fork.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.01)
