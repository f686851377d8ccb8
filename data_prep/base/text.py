"""Text for messages."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable
from pathlib import Path


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed.

    >>> counted(1, "step"), counted(24, "step")
    ('1 step', '24 steps')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def as_text(name: str) -> str:
    r"""Return a file's name as valid Unicode, with bytes that are not UTF-8 escaped.

    >>> as_text("caf\u00e9"), as_text("caf\udce9")
    ('café', 'caf\\xe9')
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def some(items: Iterable[object], n: int = 5) -> str:
    """Return the first `n` items as text, with the total number if there are more.

    >>> some(range(1, 9), 3)
    '1, 2, 3, … (8 in all)'
    """
    names = [str(item) for item in items]
    return ", ".join(names[:n]) + (f", … ({len(names)} in all)" if len(names) > n else "")


def in_minutes(length: datetime.timedelta) -> str:
    """Format a length of time in minutes, whole days in days.

    >>> in_minutes(datetime.timedelta(hours=1)), in_minutes(datetime.timedelta(days=1))
    ('60 minutes', '1 day')
    """
    days = length / datetime.timedelta(days=1)
    if days.is_integer():
        return counted(int(days), "day")
    return f"{length / datetime.timedelta(minutes=1):g} minutes"


def slug(text: str) -> str:
    """Convert a text to the name of a file or folder.

    >>> slug("w/o inter")
    'w-o-inter'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.").lower() or "-"


def shown(path: Path) -> str:
    """Return a path relative to the working folder, or only its name if it lies outside.

    >>> shown(Path.cwd() / "data" / "milan.nc"), shown(Path("/somewhere/else/milan.nc"))
    ('data/milan.nc', 'milan.nc')
    """
    full, here = path.resolve(), Path.cwd()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else path.name
