"""Words for people."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(24, "step")
    ('1 step', '24 steps')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
