"""Processes that tests start, wait for and kill, and runs that end as if killed."""

import subprocess
import sys
import time
from contextlib import contextmanager

import psutil


def wait_for(condition, seconds=20.0, what="it", pause=0.02):
    """Wait until a condition holds; fail if it does not within some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come in {seconds:g} s"
        time.sleep(pause)


def has_ended(pid):
    """Return whether a process is gone, or only waits to be reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def started(*words, **options):
    """A Python process with these arguments, whose output is piped; killed at the end."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


class Killed(BaseException):
    """As a SIGKILL would: nothing is saved on the way out."""


def killed_after(round):
    """Return what raises `Killed` when this round is reported."""

    def after(report):
        if report.round == round:
            raise Killed

    return after
