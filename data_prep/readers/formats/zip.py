"""Zips of text files that hold a table each."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import IO, cast

from data_prep.base.errors import InputError, some
from data_prep.base.limits import check_expansion, read_expanded
from data_prep.readers.formats import Format, Part
from data_prep.readers.formats.text import TEXTS, Text
from data_prep.readers.options import TableOptions
from data_prep.readers.table import Table


class Zip(Format):
    """A zip of text files."""

    name, how, suffixes, typed = "zip", "as a zip", (".zip",), False

    @classmethod
    def parts(cls, path: Path, options: TableOptions) -> list[Part]:
        """Return the texts of a zip, unpacked."""
        try:
            with zipfile.ZipFile(path) as packed:
                return _members(packed, path)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
            remedy = "unpack it or get it again"
            raise InputError(f"{path}: cannot be read as a zip ({e}); {remedy}") from e

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read a text."""
        return Text.read(part, options, keys)


def _members(packed: zipfile.ZipFile, path: Path) -> list[Part]:
    from data_prep.readers.open import check_number, say_left_out  # imports this package

    shown = [n for n in packed.namelist() if not re.search(r"(^|/)[.~]|^__MACOSX/|/$", n)]
    names = sorted(n for n in shown if n.lower().endswith(TEXTS))
    if not names:
        raise InputError(
            f"{path}: holds {some(packed.namelist(), 5) or 'nothing'}, expected .csv, .tsv or .txt "
            "files; unpack it"
        )
    check_number(path, names)
    unpacked = sum(packed.getinfo(name).file_size for name in names)
    check_expansion(unpacked, path, f"{path}: unpacked, it")
    say_left_out(path, sorted(set(shown) - set(names)))
    found = []
    for name in names:
        with packed.open(name) as member:
            content = read_expanded(cast(IO[bytes], member), path)
        found.append(Part(Path(name).name, path, content))
    return found
