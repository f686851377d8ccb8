"""Progress bar over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from stforecast.bench.heartbeat import doing
from stforecast.federated.server import RoundReport


@contextmanager
def rounds_bar(
    rounds: int, *, progress: bool, label: str = "rounds", keep: bool = True
) -> Iterator[Callable[[RoundReport], None]]:
    """Yield a function to call after each round, which moves the bar and shows the latest loss.

    Args:
        rounds: number of rounds.
        progress: whether to show the bar.
        label: text before the bar.
        keep: whether the finished bar stays on the screen.
    """
    with tqdm(total=rounds, desc=label, unit="round", disable=not progress, leave=keep) as bar:

        def after_round(report: RoundReport) -> None:
            loss, shown = report.validation_loss, "validation"
            if math.isnan(loss):
                loss, shown = report.train_task_loss, "training"
            doing(f"{label}: {report.round} of at most {rounds}, {shown} loss {loss:.4f}")
            bar.set_postfix_str(f"{shown} loss {loss:.4f}", refresh=False)
            bar.update(report.round - bar.n)  # A resumed run begins in the middle.

        yield after_round
