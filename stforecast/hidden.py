"""Detection of a user's file that hides one of our packages with a common name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def check_not_hidden(*packages: str) -> None:
    """Refuse to go on if Python would import something else than our packages.

    Python looks first in the folder of the script that it runs, and in those of `PYTHONPATH`: a
    file `vision.py` there would be imported in place of our package `vision`.

    Args:
        packages: names of packages that lie next to `stforecast`.

    Raises:
        ImportError: with the file or folder that hides a package.
    """
    place = Path(__file__).resolve().parents[1]
    for name in packages:
        spec = find_spec(name)
        found = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if found and Path(found).resolve() != place / name / "__init__.py":
            raise ImportError(
                f"{found} hides the package {name} that stforecast needs; rename it or take it off "
                "Python's path"
            )
