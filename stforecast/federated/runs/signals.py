"""How a signal ends a run that can go on."""

from __future__ import annotations

import signal as signals


class Stopped(BaseException):
    """A signal ended the run, which can go on; like `KeyboardInterrupt`, no `Exception`.

    Attributes:
        signal: its number; the exit code is 128 more.
        place: how far the run is.
        again: how to go on.
    """

    def __init__(self, signal: int, place: str, again: str) -> None:
        super().__init__(signal, place, again)
        self.signal, self.place, self.again = signal, place, again

    def __str__(self) -> str:
        """In one line."""
        return f"stopped by {signals.Signals(self.signal).name} {self.place}; {self.again}"
