"""Progress of long commands: a bar over the rounds, or a line a minute without a terminal."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stforecast.federated.engine.rounds import RoundReport

MINUTE = 60.0

log = logging.getLogger(__name__)

_doing = ""


def doing(text: str) -> None:
    """Note what is being done, for the next line."""
    global _doing
    _doing = text


@contextmanager
def heartbeat(every: float = MINUTE) -> Iterator[None]:
    """Log a line at regular times, in a thread, within the context."""
    doing("")
    begin, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        while not ended.wait(every):
            minutes = (time.monotonic() - begin) / MINUTE
            log.info("still running, %.0f min%s", minutes, f": {_doing}" if _doing else "")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def rounds_bar(
    rounds: int, *, progress: bool, label: str = "rounds", keep: bool = True
) -> Iterator[Callable[[RoundReport], None]]:
    """Yield a function to call after each round, which moves the bar and shows the latest loss.

    A finished bar stays on the screen with `keep`.
    """
    from tqdm import tqdm  # slow to import, which short commands need not wait for

    with tqdm(total=rounds, desc=label, unit="round", disable=not progress, leave=keep) as bar:

        def after_round(report: RoundReport) -> None:
            loss, shown = report.validation_loss, "validation"
            if math.isnan(loss):
                loss, shown = report.train_task_loss, "training"
            doing(f"{label}: {report.round} of at most {rounds}, {shown} loss {loss:.4f}")
            bar.set_postfix_str(f"{shown} loss {loss:.4f}", refresh=False)
            bar.update(report.round - bar.n)  # A resumed run begins in the middle.

        yield after_round
