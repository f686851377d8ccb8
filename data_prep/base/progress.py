"""Progress of long commands: bars, and lines at growing intervals where none is shown."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TypeVar, cast

from data_prep.base.errors import escaped

T = TypeVar("T")

FIRST, LONGEST = 3.0, 300.0
"""Seconds before the first line, and most between two; each time takes twice the one before."""

READY = "ready"
"""Work of a service that has begun, and now waits for others."""

log = logging.getLogger(__name__)

_work = {"parts": "", "now": ""}


def doing(text: str) -> None:
    """Note what is being done, for the next line."""
    _work["now"] = text


def ready() -> None:
    """Note that a service has begun, so that no more lines are logged."""
    doing(READY)


@contextmanager
def parts(total: int, what: str, unit: str, *, progress: bool) -> Iterator[Callable[..., None]]:
    """Show how many of several parts are done and how long the others still take.

    Yields:
        A function to call when a part begins, with its name or "".
    """
    from tqdm import tqdm  # slow to import, which short commands need not wait for

    begin, outer, done = time.monotonic(), _work["parts"], 0
    with tqdm(total=total, desc=what, unit=unit, disable=not progress) as bar:

        def begins(name: str = "") -> None:
            nonlocal done
            bar.update(done - bar.n)
            bar.set_postfix_str(escaped(name))
            named = f", {name}" if name else ""
            text = f"{what}: {unit} {done + 1} of {total}{named}{time_left(begin, done, total)}"
            _work["parts"], _work["now"] = text, ""
            done += 1

        try:
            yield begins
            bar.update(done - bar.n)
        finally:
            _work["parts"], _work["now"] = outer, ""


def each(
    items: Iterable[T], what: str, unit: str, total: int | None = None, *, progress: bool
) -> Iterator[T]:
    """Yield items, or so many of them, and show how many are done; arguments as in `parts`."""
    iterator = iter(items)
    n = len(cast(Sized, items)) if total is None else total
    with parts(n, what, unit, progress=progress) as begins:
        for _ in range(n):
            begins()
            yield next(iterator)


def noting(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items, and note for the next line which share of them is done."""
    begin = time.monotonic()
    for n, item in enumerate(items):
        left = time_left(begin, n, len(items))
        doing(f"{what}, {n / len(items):.0%} done{left}" if n else what)
        yield item


def time_left(begin: float, done: float, total: float) -> str:
    """Return how long the rest of some work takes if it is as fast as what was done since `begin`.

    It is empty as long as nothing is done.

    >>> time_left(time.monotonic() - 60, 1, 4)
    ', about 3 min left'
    """
    if not done:
        return ""
    return f", about {time_in_words((time.monotonic() - begin) / done * (total - done))} left"


def time_in_words(seconds: float) -> str:
    """Return a time in words.

    >>> time_in_words(12.3), time_in_words(200), time_in_words(9000)
    ('12 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def heartbeat(command: str) -> Iterator[None]:
    """Log what is done at growing intervals, in a thread, unless a bar shows it."""
    _work.update(parts="", now="starting")
    begin, ended = time.monotonic(), threading.Event()

    def beat() -> None:
        wait = FIRST
        while not ended.wait(wait):
            wait = min(2 * wait, LONGEST)
            bars = getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ())
            if not bars and _work["now"] != READY:
                what = ": ".join(filter(None, [command, _work["parts"], _work["now"]]))
                log.info("%s (%s)", what, time_in_words(time.monotonic() - begin))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
