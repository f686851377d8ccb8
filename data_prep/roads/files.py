"""Find a data set's files by the names under which they are published."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from data_prep.errors import InputError, check_regular, no_file

log = logging.getLogger(__name__)


def find_records(raw: Path, names: Sequence[str]) -> Path:
    """Return the file of records: the one given, or the one in the folder given.

    Args:
        raw: the file, or a folder that holds it.
        names: the published names, the usual one first; a single other file of the same ending
            is taken, too.

    Raises:
        InputError: if there is none, or several of unknown names.
    """
    if raw.is_file():
        return raw
    if not raw.is_dir():
        raise no_file(raw, "file or folder", f"give {names[0]}, or the folder that holds it")
    suffix = Path(names[0]).suffix
    found = sorted(raw.glob(f"*{suffix}"))
    official = [path for path in found if path.name in names]
    if len(found) == 1 or official:
        path = (official or found)[0]
        check_regular(path, "file of records", f"put {names[0]} itself there")
        return path
    listed = ", ".join(path.name for path in found) or f"no {suffix} file"
    raise InputError(
        f"{raw}: found {listed}, expected {names[0]}; give the path of the one to read"
    )


def given_or_beside(given: Path | None, records: Path, names: Sequence[str]) -> Path | None:
    """Return the path given, else the first file of a published name beside the records, if any.

    Args:
        given: what the user gave, if anything.
        records: the file of records.
        names: the published names, the usual one first.

    Raises:
        InputError: if there is no file at the path given.
    """
    if given is not None:
        if not Path(given).is_file():
            raise no_file(Path(given), "file", f"give one such as {names[0]}")
        return Path(given)
    beside = [path for name in names if os.path.lexists(path := records.parent / name)]
    if not beside:
        return None
    check_regular(beside[0], "file", "put the file itself there, or remove this one")
    log.info("%s: found beside %s and used", beside[0].name, records.name)
    return beside[0]
