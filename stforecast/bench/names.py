"""Names of files and folders."""

from __future__ import annotations

import re
from pathlib import Path


def slug(text: str) -> str:
    """The text as the name of a file or folder.

    >>> slug("w/o inter")
    'w-o-inter'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.").lower() or "-"


def shown(path: Path) -> str:
    """A path for readers elsewhere: from the working folder, or the name alone if it lies outside.

    >>> shown(Path.cwd() / "data" / "milan.nc"), shown(Path("/somewhere/else/milan.nc"))
    ('data/milan.nc', 'milan.nc')
    """
    full, here = path.resolve(), Path.cwd()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else path.name
