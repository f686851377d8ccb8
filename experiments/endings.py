"""The ends of commands: what to type next."""

from __future__ import annotations

import logging
import shlex

log = logging.getLogger(__name__)


def say_next(*words: object) -> None:
    """Write the next command to type to standard error, unless notices are off.

    Args:
        words: words after `stforecast`; those in capitals stand for something to fill in.
    """
    log.info("next: stforecast %s", shlex.join(map(str, words)))
