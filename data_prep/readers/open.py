"""Find the files that hold a table, or several: a folder, a zip, a pattern, sheets."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from data_prep.base.errors import InputError, no_file, some
from data_prep.readers.formats import (
    Format,
    Part,
    format_of,
    format_of_all,
    names_table,
    suffixes,
    tables_among,
)
from data_prep.readers.formats.text import may_have_times
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog

log = StepLog("open")

MOST_FILES = 10_000
"""Most files of an export; each takes some milliseconds."""

MOST_BELOW = 20_000
"""Most files and folders below a folder that are looked at, as `info` may be given any folder."""

HIDDEN = ".~"
"""First letters of the names of hidden files."""


def apply(path: Path, options: TableOptions) -> tuple[list[Path], list[Part]]:
    """Return the files of a path, and their parts without texts that hold no table, as a README.

    Args:
        path: a file, a folder, a zip, or a pattern such as `exports/*.csv`.
        options: the sheet of workbooks.
    """
    files, others = tables_in(path)
    if not files:
        raise no_file(path, "table", f"give one of {', '.join(suffixes())}, or a folder of them")
    check_number_of_tables(path, files)
    say_left_out(path, [p.name for p in others])
    parts = _parts_of_all(path, files, options)
    if len(parts) == 1:
        log.note(path.name, f"one table, in {parts[0].path.name}")
        return files, parts
    log.note(path.name, f"{len(parts)} tables: {some([part.name for part in parts], 5)}")
    texts = [p for p in parts if p.sheet is None and not (p.format and p.format.typed)]
    prose = [p for p in texts if not may_have_times(p.path, p.content)]
    if 0 < len(prose) < len(parts):
        names = some([p.name for p in prose], 5)
        log.warning(path.name, f"left out, as no row has a time: {names}")
        parts = [part for part in parts if part not in prose]
    return files, parts


def _parts_of_all(path: Path, files: Sequence[Path], options: TableOptions) -> list[Part]:
    """Return the parts of all files, which are one where their format reads them together."""
    if one := format_of_all(file.name for file in files):
        return [Part(path.name, path, files=tuple(files), format=one)]
    first = format_of(files[0]) if len(files) > 1 else None
    if first and first.together and all(format_of(file) is first for file in files[1:]):
        return [Part(path.name, path, files=tuple(files))]
    parts = []
    for file in files:
        found = format_of(file) if file.is_file() else None
        parts += (found or Format).parts(file, options)  # Of no known format, it is one.
    if not path.is_dir() or all(file.parent == path for file in files):
        return parts
    return [
        dataclasses.replace(part, name=str(part.path.parent.relative_to(path) / part.name))
        for part in parts
    ]


def is_pattern(path: Path) -> bool:
    """Return whether a path is no file but a pattern such as `exports/*.csv`."""
    return glob.has_magic(str(path)) and not path.exists()


def tables_in(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the tables of a folder, or without any of folders in it, or of a pattern; and others.

    Raises:
        InputError: if a folder without tables has too many files below it.
    """
    if is_pattern(path):
        shown = _visible(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
        files = [p for p in shown if names_table(p.name)]
    elif path.is_dir():
        shown = _visible(path.iterdir())
        if not (files := tables_among(shown)):
            shown = _visible(_below(path))
            files = tables_among(shown)
    else:
        return [path], []
    return files, sorted({*shown} - {*files})


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files of the visible folders in a folder, and in these."""
    n_files = 0
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[:1] not in HIDDEN]
        n_files += len(names) + len(folders)
        if n_files > MOST_BELOW:
            raise InputError(
                f"{folder}: no table, and more than {MOST_BELOW:,} files below it; give the folder "
                "of the tables"
            )
        yield from (Path(top, name) for name in names)


def _visible(paths: Iterable[Path]) -> list[Path]:
    """Return the files of some paths, without hidden ones, in the order of their names."""
    return sorted(p for p in paths if p.name[:1] not in HIDDEN and p.is_file())


def check_number_of_tables(path: Path, names: Sequence[object]) -> None:
    """Refuse more tables than a month of files has."""
    if (n := len(names)) > MOST_FILES:
        raise InputError(
            f"{path}: holds {n:,} tables, expected at most {MOST_FILES:,}; join those of a month, "
            "say, into one file"
        )


def say_left_out(path: Path, names: Sequence[str]) -> None:
    """Say which files hold no table."""
    if names:
        log.info(path.name, f"left out, as they are no tables: {some(names, 5)}")
