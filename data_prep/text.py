"""Words for people."""

from __future__ import annotations

import os
from collections.abc import Iterable


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(24, "step")
    ('1 step', '24 steps')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def as_text(name: str) -> str:
    r"""A file's name as text that can be stored anywhere: bytes that are not UTF-8 are spelt out.

    >>> as_text("caf\u00e9"), as_text("caf\udce9")
    ('café', 'caf\\xe9')
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def some(items: Iterable[object], n: int = 5) -> str:
    """The first `n` items for a message, and how many there are if that is not all.

    >>> some(range(1, 9), 3)
    '1, 2, 3, … (8 in all)'
    """
    names = [str(item) for item in items]
    return ", ".join(names[:n]) + (f", … ({len(names)} in all)" if len(names) > n else "")
