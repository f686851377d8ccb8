"""Zips of texts, JSON and XML that hold a table each, or one together."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from pathlib import Path
from typing import IO, cast

from data_prep.base.errors import InputError, some
from data_prep.base.limits import check_expansion, read_expanded
from data_prep.readers.formats import Format, Part, format_of, format_of_all
from data_prep.readers.formats.json import Json
from data_prep.readers.formats.text import TEXTS
from data_prep.readers.options import TableOptions


class Zip(Format):
    """A zip of texts, JSON or XML."""

    name, how, suffixes = "zip", "as a zip", (".zip",)

    @classmethod
    def parts(cls, path: Path, options: TableOptions) -> list[Part]:
        """Return the members of a zip, unpacked."""
        try:
            with zipfile.ZipFile(path) as packed:
                return _members(packed, path)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as e:
            remedy = "unpack it or get it again"
            raise InputError(f"{path}: cannot be read as a zip ({e}); {remedy}") from e


def _members(packed: zipfile.ZipFile, path: Path) -> list[Part]:
    from data_prep.readers.open import check_number_of_tables, say_left_out  # imports this package

    shown = [n for n in packed.namelist() if not re.search(r"(^|/)[.~]|^__MACOSX/|/$", n)]
    ends = (*TEXTS, *Json.suffixes, ".xml", ".xml.gz", ".lp", ".influx")
    names = sorted(n for n in shown if n.lower().endswith(ends))
    if not names:
        raise InputError(
            f"{path}: holds {some(packed.namelist(), 5) or 'nothing'}, expected .csv, .txt, .json "
            "or .xml files; unpack it"
        )
    check_number_of_tables(path, names)
    unpacked = sum(packed.getinfo(name).file_size for name in names)
    check_expansion(unpacked, path, f"{path}: unpacked, it")
    say_left_out(path, sorted(set(shown) - set(names)))
    found = []
    for name in names:
        with packed.open(name) as member:
            content = read_expanded(cast(IO[bytes], member), path)
        if name.lower().endswith(".gz"):
            content = read_expanded(
                cast(IO[bytes], gzip.GzipFile(fileobj=io.BytesIO(content))), path
            )
        kind = format_of(Path(name), content)
        found.append(Part(Path(name).name, path, content, format=kind))
    kinds = {part.format for part in found}
    kind = format_of_all(part.name for part in found) or kinds.pop()
    if kind and (kind.sign or (kind.together and not kinds)):
        members = tuple((part.name, part.content or b"") for part in found)
        return [Part(path.name, path, members=members, format=kind)]
    return found
