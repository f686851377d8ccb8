"""Zip files: unpacking limited to the folder and in size."""

from __future__ import annotations

import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from data_prep.base.limits import most_from
from data_prep.download import Archive
from data_prep.download.http import disk, inside
from data_prep.download.listing import matches

MAX_UNPACKED = 32 * 2**30  # maximum unpacked bytes of an archive
CHUNK = 2**20


class DamagedError(InputError):
    """Error of an incomplete archive; fetching it again may help."""


def unpack_archive(path: Path, archive: Archive, out: Path, only: str | None) -> list[Path]:
    """Unpack the members of an archive that match the glob `only`; none may lie outside `out`."""
    with _sound(path), zipfile.ZipFile(path) as z:
        targets = {m: inside(out, m.filename, str(path)) for m in _members(z, archive)}
        if only is not None:
            targets = {m: t for m, t in targets.items() if matches(m.filename, only)}
        for member in targets:
            _check_whole(z, member)
        for member, target in targets.items():
            _unpack_member(z, member, target)
    return list(targets.values())


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Convert errors of a zip that cannot be unpacked to `DamagedError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        raise DamagedError(
            f"{path}: not a valid zip ({e}); remove it if it exists, and run again"
        ) from e


def _check_whole(z: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Read a member to its end to verify its checksum, before anything is unpacked."""
    with z.open(member) as packed:
        while packed.read(CHUNK):
            pass


def _members(z: zipfile.ZipFile, archive: Archive) -> list[zipfile.ZipInfo]:
    files = {m.filename: m for m in z.infolist() if not m.is_dir()}
    if missing := set(archive.members) - set(files):
        raise InputError(
            f"{z.filename}: has no {min(missing)!r}, it holds: {', '.join(sorted(files)[:10])}; "
            "remove it and use another mirror"
        )
    members = [files[name] for name in archive.members or files]
    for member in members:
        if stat.S_ISLNK(member.external_attr >> 16) or member.flag_bits & 1:
            raise InputError(f"{z.filename}: {member.filename!r} is a link or encrypted; refused")
    total = sum(m.file_size for m in members)
    if total > min(MAX_UNPACKED, most_from(Path(str(z.filename)))):
        raise InputError(
            f"{z.filename}: would unpack to {total} bytes, more than {MAX_UNPACKED} or far more "
            "than its size should; unpack it by hand if that is right"
        )
    return members


def _unpack_member(z: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    with disk(target):
        if not target.exists():
            with z.open(member) as packed, atomic_path(target) as part, part.open("wb") as f:
                shutil.copyfileobj(packed, f, CHUNK)
        elif _crc(target) != member.CRC:
            raise InputError(f"{target}: exists but differs from {z.filename}; move it away")


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
