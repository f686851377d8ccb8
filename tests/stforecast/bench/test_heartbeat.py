"""A line a minute where no progress bar is shown."""

import logging
import threading

from stforecast.bench.progress import doing, heartbeat


def test_lines_say_what_is_done_until_it_is_stopped(caplog):
    """No time is measured: the test waits for two lines, and after the stop the thread ends."""
    caplog.set_level(logging.INFO)
    seen = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record):
            if record.getMessage().endswith(": round 3 of 9"):
                seen.set()

    watch = Watch()
    logging.getLogger("stforecast.bench.progress").addHandler(watch)
    try:
        with heartbeat(every=0.01):
            doing("round 3 of 9")
            assert seen.wait(60)
    finally:
        logging.getLogger("stforecast.bench.progress").removeHandler(watch)
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    assert caplog.messages[0].startswith("still running, 0 min")
