"""Progress of rounds: a bar, or a line now and then without a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from data_prep.base.progress import doing, time_left

if TYPE_CHECKING:
    from stforecast.federated.engine.rounds import RoundReport


@contextmanager
def rounds_bar(
    rounds: int, *, progress: bool | None, label: str = "rounds", keep: bool = True
) -> Iterator[Callable[[RoundReport], None]]:
    """Yield a function to call after each round, which moves the bar and shows the latest loss.

    A finished bar stays on the screen with `keep`. Without a choice (`progress` None), terminals
    and notebooks show one.
    """
    from tqdm.auto import tqdm  # slow to import, which short commands need not wait for

    begin, first = time.monotonic(), 0
    hidden = None if progress is None else not progress
    with tqdm(total=rounds, desc=label, unit="round", disable=hidden, leave=keep) as bar:

        def after_round(report: RoundReport) -> None:
            nonlocal begin, first
            loss, shown, done = report.validation_loss, "validation", report.round
            if math.isnan(loss):
                loss, shown = report.train_task_loss, "training"
            if not first:  # It takes longer than others, and a resumed run begins in the middle.
                begin, first = time.monotonic(), done
            left = time_left(begin, done - first, rounds - first)
            doing(f"{label}: {done} of at most {rounds}, {shown} loss {loss:.4f}{left}")
            bar.set_postfix_str(f"{shown} loss {loss:.4f}", refresh=False)
            bar.update(done - bar.n)
            if done == rounds:  # What follows is told by lines.
                bar.close()

        yield after_round
