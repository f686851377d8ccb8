"""Names of files and folders."""

from __future__ import annotations

import re
from pathlib import Path


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
