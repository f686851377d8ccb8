"""Official files of a data set: fetched with resume, verified, never overwritten.

A data set's module names its files in `SOURCES`, a tuple of `Dataverse`, `Archive` and `File`;
`download` brings them. A file grows as `NAME.part` and bears its name only once its size and
checksum are right, so whatever has its name is whole. A killed run continues where it stopped.

The listing is Dataverse's native interface (https://guides.dataverse.org/en/latest/api/), the
resume RFC 9110: `Range` (section 14), `If-Range` (13.1.5).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import stat
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import requests
from requests import exceptions as failures
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from data_prep.cube import atomic_path
from data_prep.errors import InputError

logger = logging.getLogger(__name__)

ATTEMPTS = 5  # in a row; one that brings new bytes starts the count again
PAUSE = 1.0  # seconds before the second attempt; doubles with each further one
TIMEOUT = (10.0, 60.0)  # seconds: to connect, between two pieces of an answer
MAX_UNPACKED = 32 * 2**30  # bytes an archive may unpack to
CHUNK = 2**20
# Sizes and resume positions count the file's own bytes, so it must not be compressed on the way.
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "stforecast-data-prep"}
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
T = TypeVar("T")


@dataclass(frozen=True)
class Dataverse:
    """The files of a Dataverse data set, with the sizes and checksums of its own listing.

    Args:
        doi: persistent id, with or without the leading `doi:`.
        base: address of the installation.
        pattern: glob of the file names to take; None takes all.
    """

    doi: str
    base: str = "https://dataverse.harvard.edu"
    pattern: str | None = None


@dataclass(frozen=True)
class Archive:
    """A zip file: fetched, verified and unpacked.

    Args:
        url: its address.
        checksum: `algorithm:hexdigest` of the zip, e.g. `sha256:…`; None if not published.
        members: names inside the zip to unpack; empty unpacks all.
    """

    url: str
    checksum: str | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """One file at an address.

    Args:
        url: its address.
        name: the name to keep it under.
        checksum: `algorithm:hexdigest`; None if not published.
    """

    url: str
    name: str
    checksum: str | None = None


Source = Dataverse | Archive | File


@dataclass(frozen=True)
class _Item:
    """One file to bring: its name under `out`, its address or local path, what is known of it."""

    name: str
    origin: str
    size: int | None = None
    checksum: str | None = None
    archive: Archive | None = None


class _DroppedError(Exception):
    """A failure that may pass: worth another attempt, after `wait` seconds if the server says."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def download(
    sources: Sequence[Source],
    out: Path,
    *,
    source: str | None = None,
    only: str | None = None,
    progress: bool = False,
) -> list[Path]:
    """Bring the files of a data set into a folder; those already there and right are kept.

    Args:
        sources: where the files are, the `SOURCES` of a data set's module.
        out: folder to write to, created if absent. An archive is kept there beside its files.
        source: a mirror to use instead. An address replaces a Dataverse's `base`; for the other
            sources it is the folder that holds the files, or the file itself if it ends like one.
            A local path is a folder that holds the files, or a file. What a mirror gives is
            verified in the same way; local copies of Dataverse files by a listing saved beside
            them (for `doi:10.7910/DVN/EGZHFV` as `EGZHFV.json`), else by the official one.
        only: glob of the names to bring, matched case-sensitively, e.g. `"*-2013-11-0?.txt"`.
        progress: whether to show progress bars.

    Returns:
        The data files, in the order of the sources; of an archive the files unpacked from it.

    Raises:
        InputError: if a file cannot be had, is not what was published, would leave `out`, or if
            another file has its name.
    """
    out = Path(out)
    items = _select(_plan(sources, source), only)
    _check_space(out, items)
    paths: list[Path] = []
    for item in tqdm(items, desc="download", unit="file", disable=not progress):
        path = _bring(item, out, progress)
        paths += _unpack(path, item.archive, out, only) if item.archive else [path]
    if not paths:
        raise InputError(f"no file matches {only!r}; give another pattern with --only")
    return paths


def _plan(sources: Sequence[Source], source: str | None) -> list[_Item]:
    if not sources:
        raise InputError("this data set has no official files to download; use your own with --raw")
    if source is not None and not _is_url(source) and not Path(source).exists():
        raise InputError(f"{source}: no such folder or file; give one, or an http(s) address")
    items: list[_Item] = []
    for entry in sources:
        match entry:
            case Dataverse():
                items += _list_dataverse(entry, source)
            case Archive(url, checksum):
                name = PurePosixPath(unquote(urlsplit(url).path)).name.removesuffix(".zip") + ".zip"
                items.append(_Item(name, _locate(url, name, source), None, checksum, entry))
            case File(url, name, checksum):
                items.append(_Item(name, _locate(url, name, source), None, checksum))
    name, count = Counter(item.name for item in items).most_common(1)[0]
    if count > 1:
        raise InputError(f"the sources list {name!r} {count} times; give them one at a time")
    for item in items:
        _check_checksum(item)
    return items


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _locate(url: str, name: str, source: str | None) -> str:
    """Where a file is: at its own address, or in (or as) the mirror `source`."""
    if source is None:
        return url
    if _is_url(source):
        is_file = PurePosixPath(urlsplit(source).path).suffix == PurePosixPath(name).suffix != ""
        return source if is_file else f"{source.rstrip('/')}/{name}"
    return source if Path(source).is_file() else str(Path(source, name))


def _check_checksum(item: _Item) -> None:
    algorithm, _, digest = (item.checksum or "md5:0").partition(":")
    if algorithm not in hashlib.algorithms_guaranteed or not re.fullmatch("[0-9a-f]+", digest):
        raise InputError(
            f"{item.name}: checksum {item.checksum!r} is not `algorithm:hexdigest` in lower case "
            "with an algorithm of Python's hashlib"
        )


def _list_dataverse(dataset: Dataverse, source: str | None) -> list[_Item]:
    """The files of a data set, as its installation, or a listing saved in the mirror, says."""
    base = (source if source and _is_url(source) else dataset.base).rstrip("/")
    folder = None if source is None or _is_url(source) else Path(source)
    doi = dataset.doi.removeprefix("doi:")
    origin = f"{base}/api/datasets/:persistentId/?persistentId=doi:{doi}"
    if folder and (saved := folder / f"{PurePosixPath(doi).name}.json").is_file():
        origin, text = str(saved), saved.read_bytes()
    else:
        text = _persist(origin, lambda: _read(origin))
    try:
        items = [
            _entry(f, base, folder) for f in json.loads(text)["data"]["latestVersion"]["files"]
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise InputError(
            f"{origin}: not the listing of a Dataverse data set ({type(e).__name__}: {e}); give "
            "the address of a Dataverse installation"
        ) from e
    chosen = [i for i in items if dataset.pattern is None or _matches(i.name, dataset.pattern)]
    if not chosen:
        raise InputError(
            f"{origin}: none of its {len(items)} files matches {dataset.pattern or '*'!r}; the "
            "data set has changed, look at it in a browser"
        )
    return chosen


def _entry(record: dict[str, Any], base: str, folder: Path | None) -> _Item:
    file = record["dataFile"]
    url = f"{base}/api/access/datafile/{int(file['id'])}"
    if "originalFileName" in file:
        # A table that Dataverse rewrote on upload. The original is asked for, and its checksum is
        # not published: the listed one is of another form (IQSS/dataverse issues 9501 and 11315).
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
    return _Item(str(name), origin, None if size is None else int(size), checksum)


def _select(items: list[_Item], only: str | None) -> list[_Item]:
    """The items to bring; what is in an archive is known, and chosen, only when it is there."""
    chosen = [i for i in items if only is None or i.archive or _matches(i.name, only)]
    if not chosen:
        shown = ", ".join(i.name for i in items[:3]) + (", …" if len(items) > 3 else "")
        raise InputError(f"none of the {len(items)} files matches {only!r}; they are: {shown}")
    return chosen


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)


def _inside(out: Path, name: str, origin: str) -> Path:
    """The path of `name` under `out`; a name from elsewhere must not lead out of it."""
    windows = PureWindowsPath(name)  # knows both kinds of slash, drives and shares
    if windows.anchor or ".." in windows.parts or not windows.name or not name.isprintable():
        raise InputError(f"{origin}: holds a file named {name!r}, which would leave {out}; refused")
    return out / name


def _check_space(out: Path, items: list[_Item]) -> None:
    paths = {_inside(out, i.name, i.origin): i.size or 0 for i in items}
    needed = sum(size - _size(_part(p)) for p, size in paths.items() if not p.exists())
    with _disk(out):
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    if needed > free:
        raise InputError(
            f"{out}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; free some "
            "space, choose another folder or bring fewer files with --only"
        )


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _tag(part: Path) -> Path:
    """Where the ETag of the version that `part` is a piece of is kept between runs."""
    return part.with_name(part.name + ".etag")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Say what to do when the disk is full or closed to us."""
    try:
        yield
    except OSError as e:
        raise InputError(
            f"{e.filename or path}: {e.strerror or e}; make room or choose another folder and run "
            "again, it continues where it stopped"
        ) from e


def _bring(item: _Item, out: Path, progress: bool) -> Path:
    """Bring one file, verified, or find it there already."""
    path = _inside(out, item.name, item.origin)
    with _disk(path):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _obtain_verified(item, _part(path), progress)
            _part(path).replace(path)
        elif problem := _mismatch(path, item):
            raise InputError(f"{path}: is there but {problem}; move it away and run again")
        if item.checksum is None:
            logger.warning("%s: no checksum is published; it has sha256:%s", path, _hash(path))
    return path


def _obtain_verified(item: _Item, part: Path, progress: bool) -> None:
    resumed = part.exists()
    _obtain(item, part, progress)
    if resumed and _mismatch(part, item):  # the earlier piece was of another version
        part.unlink()
        _obtain(item, part, progress)
    _tag(part).unlink(missing_ok=True)
    if problem := _mismatch(part, item):
        part.unlink()
        raise InputError(f"{item.origin}: what came {problem}; try again or use a mirror")


def _obtain(item: _Item, part: Path, progress: bool) -> None:
    if _is_url(item.origin):
        _persist(item.origin, lambda: _request(item, part, progress), lambda: _size(part))
    elif Path(item.origin).is_file():
        shutil.copyfile(item.origin, part)
    else:
        raise InputError(
            f"{item.origin}: no such file, and not an http(s) address; add it to the mirror or "
            "choose others with --only"
        )


def _mismatch(path: Path, item: _Item) -> str | None:
    """How a file differs from what was published, None if it does not."""
    if item.size is not None and _size(path) != item.size:
        return f"has {_size(path)} bytes, published are {item.size}"
    if item.checksum is None:
        return None
    algorithm, _, expected = item.checksum.partition(":")
    found = _hash(path, algorithm)
    return None if found == expected else f"has {algorithm} {found}, published is {expected}"


def _hash(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, algorithm).hexdigest()


def _persist(url: str, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
    """Repeat an attempt until it succeeds or `ATTEMPTS` in a row have brought nothing new."""
    best, fruitless = reached(), 0
    while True:
        try:
            return attempt()
        except _DroppedError as e:
            fruitless = 1 if reached() > best else fruitless + 1
            best = max(best, reached())
            if fruitless == ATTEMPTS:
                raise InputError(
                    f"{url}: {e}, {ATTEMPTS} times in a row; check the network and run again "
                    "later, it continues where it stopped"
                ) from e
            time.sleep(max(PAUSE * 2 ** (fruitless - 1), e.wait))


def _request(item: _Item, part: Path, progress: bool) -> None:
    """One request for what is still missing of `part`."""
    start, tag = _resume_point(item, part)
    if start and start == item.size:
        return
    wanted = {"Range": f"bytes={start}-"} if start else {}
    with _open(item.origin, wanted | ({"If-Range": tag} if start and tag else {})) as response:
        span = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        status = response.status_code
        if status == 416 and span and int(span[2]) == start:
            return  # nothing is missing
        if status == 416 or (status == 206 and not (span and span[1] == str(start))):
            part.unlink(missing_ok=True)
            raise _DroppedError(f"HTTP {status} instead of what follows byte {start}")
        start = start if status == 206 else 0
        length = response.headers.get("Content-Length")
        size = int(span[2]) if span else int(length) if length else item.size
        _check_answer(item, response, size)
        _remember(response.headers.get("ETag", ""), part)
        _receive(response, part, start, size, progress)


def _resume_point(item: _Item, part: Path) -> tuple[int, str | None]:
    """Bytes to keep of an earlier attempt, and the ETag of the version they are of."""
    tag = _tag(part).read_text() if _tag(part).exists() else None
    if tag is None and item.checksum is None:
        return 0, None  # nothing would tell if the rest came from another version
    return _size(part), tag


def _remember(tag: str, part: Path) -> None:
    if tag.startswith('"'):  # a weak one, W/"…", does not promise the same bytes
        _tag(part).write_text(tag)
    else:
        _tag(part).unlink(missing_ok=True)


def _check_answer(item: _Item, response: requests.Response, size: int | None) -> None:
    kind = response.headers.get("Content-Type", "")
    if kind.startswith("text/html") and not item.name.endswith((".html", ".htm")):
        raise InputError(
            f"{item.origin}: a web page came instead of {item.name}; open the address in a "
            "browser, fetch the file by hand and pass it with --source"
        )
    if item.size is not None and size != item.size:
        raise InputError(
            f"{item.origin}: {item.name} has {size} bytes there, published are {item.size}; try "
            "again later or use a mirror"
        )


def _receive(
    response: requests.Response, part: Path, start: int, size: int | None, progress: bool
) -> None:
    bar = tqdm(
        desc=part.stem,
        total=size,
        initial=start,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not progress,
    )
    try:
        with bar, part.open("ab" if start else "wb") as f:
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                f.write(chunk)
                bar.update(len(chunk))
    except HTTPError as e:
        raise _DroppedError(f"the connection broke at byte {_size(part)}") from e
    if size is not None and _size(part) != size:
        raise _DroppedError(f"the connection ended at byte {_size(part)} of {size}")


def _open(url: str, headers: dict[str, str]) -> requests.Response:
    """Ask for an address; the body is not read yet."""
    try:
        response = requests.get(url, headers=HEADERS | headers, stream=True, timeout=TIMEOUT)
    except (failures.InvalidURL, failures.InvalidSchema, failures.MissingSchema) as e:
        raise InputError(f"{url}: not an address ({e}); give one like https://host/path") from e
    except failures.SSLError as e:
        raise InputError(f"{url}: its certificate is not trusted; check clock and proxy") from e
    except failures.RequestException as e:
        if "NameResolutionError" in str(e):
            raise InputError(
                f"{url}: the name of the host is not known; check the network, or pass a mirror or "
                "a local folder with --source"
            ) from e
        dropped = "no answer in time" if isinstance(e, failures.Timeout) else "no connection"
        raise _DroppedError(dropped) from e
    status = f"HTTP {response.status_code} {response.reason}".strip()
    if response.status_code in TRANSIENT:
        wait = response.headers.get("Retry-After", "")
        response.close()
        raise _DroppedError(status, min(float(wait), 60.0) if wait.isdigit() else 0.0)
    if response.status_code not in (200, 206, 416):
        raise InputError(_refusal(url, status, response))
    return response


def _refusal(url: str, status: str, response: requests.Response) -> str:
    """What a refused request means and what to do, with the server's own words if it has any."""
    with response:
        try:
            said = " ".join(str(response.json()["message"]).split())[:200]
            status += f", it says: {said}"
        except (failures.RequestException, KeyError, TypeError):
            pass
    if response.status_code in (400, 401, 403):
        return (
            f"{url}: refused ({status}); if it asks for its terms of use or guestbook, accept them "
            "in a browser, fetch the files by hand and pass their folder with --source"
        )
    return f"{url}: not to be had ({status}); it may have moved, pass a mirror with --source"


def _read(url: str) -> bytes:
    with _open(url, {}) as response:
        try:
            return response.content
        except failures.RequestException as e:
            raise _DroppedError("the connection broke") from e


def _unpack(path: Path, archive: Archive, out: Path, only: str | None) -> list[Path]:
    """Unpack what is wanted of an archive; nothing of it may lie outside `out`."""
    try:
        with zipfile.ZipFile(path) as z:
            targets = {m: _inside(out, m.filename, str(path)) for m in _members(z, archive)}
            if only is not None:
                targets = {m: t for m, t in targets.items() if _matches(m.filename, only)}
            for member, target in targets.items():
                _unpack_member(z, member, target)
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError) as e:
        raise InputError(f"{path}: a damaged zip, or none ({e}); remove it and run again") from e
    return list(targets.values())


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
    if (total := sum(m.file_size for m in members)) > MAX_UNPACKED:
        raise InputError(
            f"{z.filename}: would unpack to {total} bytes, at most {MAX_UNPACKED} are allowed; "
            "unpack it by hand if that is right"
        )
    return members


def _unpack_member(z: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    with _disk(target):
        if not target.exists():
            with z.open(member) as packed, atomic_path(target) as part, part.open("wb") as f:
                shutil.copyfileobj(packed, f, CHUNK)
        elif _crc(target) != member.CRC:
            raise InputError(f"{target}: is there but differs from {z.filename}; move it away")


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
