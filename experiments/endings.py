"""The ends of commands: JSON for scripts, and what to type next."""

from __future__ import annotations

import json
import logging
import math
import shlex
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


def say_next(*words: object) -> None:
    """Write the next command to type to standard error, unless notices are off.

    Args:
        words: words after `stforecast`; those in capitals stand for something to fill in.
    """
    log.info("next: stforecast %s", shlex.join(map(str, words)))


def to_json(about: Any) -> str:
    """Return what a command found as JSON, in which a number that is none is null.

    >>> print(to_json([float("nan"), "a"]))
    [
      null,
      "a"
    ]
    """
    return json.dumps(_without_nan(about), indent=2, default=str, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
