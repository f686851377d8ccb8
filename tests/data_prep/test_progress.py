"""Lines that say what a long command does where no progress bar is shown."""

import logging
import threading
import time

import pytest

from data_prep.base import progress
from data_prep.base.progress import doing, each, heartbeat, noting, ready


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0.01)


LOG = "data_prep.base.progress"


class Watch(logging.Handler):
    """Tells when a line ends with a text, without its time."""

    def __init__(self, text):
        super().__init__()
        self.text, self.seen = text, threading.Event()
        logging.getLogger(LOG).addHandler(self)
        logging.getLogger(LOG).setLevel(logging.INFO)

    def emit(self, record):
        if record.getMessage().rpartition(" (")[0] == self.text:
            self.seen.set()


def wait_for(text):
    """Wait for a line; no time is measured."""
    watch = Watch(text)
    try:
        assert watch.seen.wait(60)
    finally:
        logging.getLogger(LOG).removeHandler(watch)


def test_lines_say_what_is_done_until_it_is_stopped():
    with heartbeat("run"):
        doing("round 3 of 9")
        wait_for("run: round 3 of 9")
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_command_that_has_said_nothing_is_starting():
    with heartbeat("run"):
        wait_for("run: starting")


def test_a_service_that_has_begun_says_no_more(caplog, monkeypatch):
    monkeypatch.setattr(progress, "LONGEST", 0.01)
    with heartbeat("federate"):
        wait_for("federate: starting")
        ready()
        time.sleep(0.05)  # For a line that was being written.
        caplog.clear()
        time.sleep(0.2)
    assert caplog.records == []


def test_lines_say_which_of_several_parts_is_done_and_what_of_it():
    with heartbeat("bench"):
        for _ in each(["a", "b"], "files", "file", progress=False):
            doing("reading")
            wait_for("bench: files: file 1 of 2: reading")
            break
    with heartbeat("bench"):
        wait_for("bench: starting")


def test_lines_say_how_much_is_done_and_how_long_still():
    found = []
    for _ in noting(range(4), "writing"):
        found.append(progress._work["now"])
    assert found[0] == "writing"
    assert [text.partition("% done, about ")[0] for text in found[1:]] == [
        f"writing, {share}" for share in (25, 50, 75)
    ]
    assert all(text.endswith(" left") for text in found[1:])
