"""Exception for a run that was stopped by a signal."""

from __future__ import annotations

import signal as signals


class Stopped(BaseException):
    """Raised if a signal stops a run that can be resumed; like `KeyboardInterrupt`, no `Exception`.

    Attributes:
        signal: number of the signal; the exit code is 128 more.
        place: progress of the run.
        again: instructions to resume.
    """

    def __init__(self, signal: int, place: str, again: str) -> None:
        super().__init__(signal, place, again)
        self.signal, self.place, self.again = signal, place, again

    def __str__(self) -> str:
        """Describe the stop in one line."""
        return f"stopped by {signals.Signals(self.signal).name} {self.place}; {self.again}"
