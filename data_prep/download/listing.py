"""Listing of files and their locations, and unpacking of archives into one folder, up to a size."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from data_prep.base.errors import InputError, Words
from data_prep.base.files import atomic_path
from data_prep.base.limits import CHUNK, most_from
from data_prep.download import Archive, Dataverse, File, Item, Source
from data_prep.download.http import disk, inside, persist, read_body


def plan_files(sources: Sequence[Source], source: str | None) -> list[Item]:
    """List the files of the sources, each with its location."""
    if not sources:
        raise InputError(
            Words("this data set has no official files to download; use your own with {raw}")
        )
    if source is not None and not is_url(source) and not Path(source).exists():
        raise InputError(f"{source}: no such folder or file; give one, or an http(s) address")
    items: list[Item] = []
    for entry in sources:
        match entry:
            case Dataverse():
                items += _list_dataverse(entry, source)
            case Archive(url, checksum, _, given):
                end = PurePosixPath(unquote(urlsplit(url).path)).name
                name = given or end.removesuffix(".zip") + ".zip"
                items.append(Item(name, _locate(url, name, source), None, checksum, entry))
            case File(url, name, checksum):
                items.append(Item(name, _locate(url, name, source), None, checksum))
    name, count = Counter(item.name for item in items).most_common(1)[0]
    if count > 1:
        raise InputError(f"the sources list {name!r} {count} times; give them one at a time")
    for item in items:
        algorithm, _, digest = (item.checksum or "md5:0").partition(":")
        if algorithm not in hashlib.algorithms_guaranteed or not re.fullmatch("[0-9a-f]+", digest):
            raise InputError(
                f"{item.name}: checksum {item.checksum!r} is not `algorithm:hexdigest` in lower "
                "case with an algorithm of Python's hashlib"
            )
    return items


def is_url(source: str) -> bool:
    """Return whether a source is an address rather than a local path."""
    return source.startswith(("http://", "https://"))


def _locate(url: str, name: str, source: str | None) -> str:
    """Return the location of a file: its own address, or one in (or equal to) the mirror."""
    if source is None:
        return url
    if is_url(source):
        is_file = PurePosixPath(urlsplit(source).path).suffix == PurePosixPath(name).suffix != ""
        return source if is_file else f"{source.rstrip('/')}/{name}"
    return source if Path(source).is_file() else str(Path(source, name))


def _list_dataverse(dataset: Dataverse, source: str | None) -> list[Item]:
    """List the files of a data set from its installation, or a listing saved in the mirror."""
    base = (source if source and is_url(source) else dataset.base).rstrip("/")
    folder = None if source is None or is_url(source) else Path(source)
    doi = dataset.doi.removeprefix("doi:")
    origin = f"{base}/api/datasets/:persistentId/?persistentId=doi:{doi}"
    saved = folder / f"{PurePosixPath(doi).name}.json" if folder else None
    if saved and saved.is_file():
        origin, text = str(saved), saved.read_bytes()
    else:
        try:  # The official listing is also needed for a local mirror without a saved one.
            text = persist(origin, lambda: read_body(origin))
        except InputError as e:
            if saved is None:
                raise
            raise InputError(f"{saved}: no listing here, and the official one fails: ", e) from e
    try:
        items = [
            _entry(f, base, folder) for f in json.loads(text)["data"]["latestVersion"]["files"]
        ]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as e:
        raise InputError(
            f"{origin}: not the listing of a Dataverse data set ({type(e).__name__}: {e}); give "
            "the address of a Dataverse installation"
        ) from e
    if not items:
        raise InputError(f"{origin}: has no files, but had some; look at it in a browser")
    return items


def _entry(record: dict[str, Any], base: str, folder: Path | None) -> Item:
    file = record["dataFile"]
    url = f"{base}/api/access/datafile/{int(file['id'])}"
    if "originalFileName" in file:
        # A table that Dataverse converted on upload. The original is requested, whose checksum is
        # not published: the listed one is of the converted file (IQSS/dataverse issues 9501 and
        # 11315).
        name, size, checksum = file["originalFileName"], file.get("originalFileSize"), None
        url += "?format=original"
    else:
        name, size = file["filename"], file["filesize"]
        stated = file.get("checksum") or {"type": "MD5", "value": file.get("md5")}
        algorithm = stated["type"].lower().replace("-", "")
        checksum = f"{algorithm}:{stated['value'].lower()}" if stated["value"] else None
    if record.get("directoryLabel"):
        name = f"{record['directoryLabel']}/{name}"
    origin = str(folder / name) if folder else url
    return Item(str(name), origin, None if size is None else int(size), checksum)


def matches(name: str, pattern: str) -> bool:
    """Return whether a glob matches a name, with or without its folders."""
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)


MAX_UNPACKED = 32 * 2**30  # maximum unpacked bytes of an archive


class DamagedError(InputError):
    """Error of an incomplete archive; fetching it again may help."""


def unpack_archive(path: Path, archive: Archive, out: Path, only: str | None) -> list[Path]:
    """Unpack the members of an archive that match the glob `only`; none may lie outside `out`."""
    try:
        with zipfile.ZipFile(path) as z:
            targets = {m: inside(out, m.filename, str(path)) for m in _members(z, archive)}
            if only is not None:
                targets = {m: t for m, t in targets.items() if matches(m.filename, only)}
            for member in targets:  # Its checksum is verified before anything is unpacked.
                with z.open(member) as packed:
                    while packed.read(CHUNK):
                        pass
            for member, target in targets.items():
                _unpack_member(z, member, target)
        return list(targets.values())
    except InputError:
        raise
    except Exception as e:
        raise DamagedError(
            f"{path}: not a valid zip ({e}); remove it if it exists, and run again"
        ) from e


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
            return
        crc = 0
        with target.open("rb") as f:
            while chunk := f.read(CHUNK):
                crc = zlib.crc32(chunk, crc)
        if crc != member.CRC:
            raise InputError(f"{target}: exists but differs from {z.filename}; move it away")
