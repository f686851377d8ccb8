"""A line a minute on what a long command does, where no terminal shows a progress bar."""

from __future__ import annotations

import logging
import threading
import time

MINUTE = 60.0

log = logging.getLogger(__name__)

_doing = ""


def doing(text: str) -> None:
    """Note what is being done, for the next line."""
    global _doing
    _doing = text


class Heartbeat:
    """Logs a line at regular times in a thread, until it is stopped.

    Args:
        every: seconds between lines.
    """

    def __init__(self, every: float = MINUTE) -> None:
        self._every = every
        self._begin = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> Heartbeat:
        """Begin to log."""
        doing("")
        self._thread.start()
        return self

    def stop(self) -> None:
        """End at once."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._every):
            minutes = (time.monotonic() - self._begin) / MINUTE
            log.info("still running, %.0f min%s", minutes, f": {_doing}" if _doing else "")
