"""Checks of the files that commands will write, before the work begins."""

from __future__ import annotations

from pathlib import Path

from data_prep.base.errors import InputError


def check_ending(path: Path, *endings: str) -> None:
    """Refuse a file name whose ending does not match the format to write.

    Raises:
        InputError: listing the valid endings.

    >>> check_ending(Path("forecast.json"), ".csv")
    Traceback (most recent call last):
    data_prep.base.errors.InputError: forecast.json: the name ends in .json, expected .csv
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a file to write")
    if path.suffix.lower() not in endings:
        found = f"the name ends in {path.suffix}" if path.suffix else "the name has no ending"
        raise InputError(f"{path}: {found}, expected {' or '.join(endings)}")


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse to overwrite a file, unless asked to.

    Raises:
        InputError: if the file exists.
    """
    if path.is_file() and not overwrite:
        raise InputError(f"{path} already exists; choose another --out, or pass --overwrite")
