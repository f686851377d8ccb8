"""Locks on folders: one process at a time, and none that outlives its process."""

import errno
import fcntl
import os
import signal
import time

import pytest

from data_prep.base.errors import InputError
from stforecast.federated.runs import unfinished_run as run_lock
from stforecast.federated.runs.unfinished_run import locked


def test_the_second_is_refused_while_the_first_lives(tmp_path):
    out = tmp_path / "a" / "b"
    with locked(out):
        with pytest.raises(InputError, match=f"b: process {os.getpid()}"):
            locked(out).__enter__()
        with locked(tmp_path / "a"):
            pass
    assert not (tmp_path / "a").exists()
    with locked(out):
        (out / "result").write_text("")
    assert [path.name for path in out.iterdir()] == ["result"]


def test_it_is_gone_with_a_process_that_is_killed(tmp_path):
    is_locked, tell = os.pipe()
    child = os.fork()
    if not child:
        with locked(tmp_path):
            os.write(tell, b"!")
            time.sleep(60)
        os._exit(1)
    try:
        assert os.read(is_locked, 1) == b"!"
        with pytest.raises(InputError, match=f"process {child} on "):
            locked(tmp_path).__enter__()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (tmp_path / run_lock.LOCK).exists()
    with locked(tmp_path):
        pass


def test_a_file_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """The one before us removes it after we opened it: the next would make another one."""
    flock, seen = fcntl.flock, []

    def slow(handle, how):
        if not seen:
            (tmp_path / run_lock.LOCK).unlink()
        seen.append(handle)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with locked(tmp_path):
        assert len(seen) == 2
        with pytest.raises(InputError, match="writing"):
            locked(tmp_path).__enter__()


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, caplog):
    def none(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path):
        pass
    assert "No locks" in caplog.text
