"""Listing of files and their locations, at the sources' own addresses or a mirror."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from data_prep.base.errors import InputError, Words
from data_prep.download import Archive, Dataverse, File, Item, Source
from data_prep.download.http import persist, read_body


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
        _check_checksum(item)
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


def _check_checksum(item: Item) -> None:
    algorithm, _, digest = (item.checksum or "md5:0").partition(":")
    if algorithm not in hashlib.algorithms_guaranteed or not re.fullmatch("[0-9a-f]+", digest):
        raise InputError(
            f"{item.name}: checksum {item.checksum!r} is not `algorithm:hexdigest` in lower case "
            "with an algorithm of Python's hashlib"
        )


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
        text = _fetch_listing(origin, saved)
    try:
        items = [
            _entry(f, base, folder) for f in json.loads(text)["data"]["latestVersion"]["files"]
        ]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as e:
        raise InputError(
            f"{origin}: not the listing of a Dataverse data set ({type(e).__name__}: {e}); give "
            "the address of a Dataverse installation"
        ) from e
    chosen = [i for i in items if dataset.pattern is None or matches(i.name, dataset.pattern)]
    if not chosen:
        raise InputError(
            f"{origin}: none of its {len(items)} files matches {dataset.pattern or '*'!r}; the "
            "data set has changed, look at it in a browser"
        )
    return chosen


def _fetch_listing(url: str, saved: Path | None) -> bytes:
    """Fetch the official listing, also needed for a local mirror without a `saved` one."""
    try:
        return persist(url, lambda: read_body(url))
    except InputError as e:
        if saved is None:
            raise
        raise InputError(f"{saved}: no listing here, and the official one fails: ", e) from e


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


def select_files(items: list[Item], only: str | None) -> list[Item]:
    """Select the items to fetch; members of an archive are selected when it is unpacked."""
    chosen = [i for i in items if only is None or i.archive or matches(i.name, only)]
    if not chosen:
        shown = ", ".join(i.name for i in items[:3]) + (", …" if len(items) > 3 else "")
        raise InputError(f"none of the {len(items)} files matches {only!r}; they are: {shown}")
    return chosen


def matches(name: str, pattern: str) -> bool:
    """Return whether a glob matches a name, with or without its folders."""
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)
