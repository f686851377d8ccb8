"""Waiting with a deadline, mostly for processes that tests start."""

import time

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
