"""Download of one file over HTTP, with resume and retries, into a folder with partial files."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path, PureWindowsPath
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from requests import exceptions as failures
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from data_prep.base.errors import InputError, Words
from data_prep.base.files import is_full
from data_prep.base.limits import CHUNK
from data_prep.download import Item


def inside(out: Path, name: str, origin: str) -> Path:
    """Return the path of `name` under `out`; refuse one that would lie outside."""
    windows = PureWindowsPath(name)  # handles both kinds of slash, drives and shares
    if windows.anchor or ".." in windows.parts or not windows.name or not name.isprintable():
        raise InputError(f"{origin}: holds a file named {name!r}, which would leave {out}; refused")
    return out / name


def check_space(out: Path, items: list[Item]) -> None:
    """Create the folder and check that the missing items fit on its disk."""
    paths = {inside(out, i.name, i.origin): i.size or 0 for i in items}
    needed = sum(size - size_of(partial(p)) for p, size in paths.items() if not p.exists())
    with disk(out):
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    if needed > free:
        raise InputError(
            f"{out}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; ",
            Words("free some space, choose another folder or fetch fewer files with {only}"),
        )


def partial(path: Path) -> Path:
    """Return the path of a file until it is complete and verified."""
    return path.with_name(path.name + ".part")


def tag_of(part: Path) -> Path:
    """Return the path of the saved ETag of a partial file's version."""
    return part.with_name(part.name + ".etag")


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Convert errors of a full or read-only disk to input errors with advice."""
    try:
        yield
    except OSError as e:
        remedy = "free some space or choose" if is_full(e) else "choose"
        raise InputError(
            f"{e.filename or path}: cannot be written ({e.strerror or e}); {remedy} another folder "
            "and run again, it continues where it stopped"
        ) from e


ATTEMPTS = 5  # in a row; an attempt that receives new bytes resets the count
PAUSE = 1.0  # seconds before the second attempt; doubles with each further one
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two pieces of a response
# Sizes and resume positions count the file's own bytes, so responses must not be compressed.
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "stforecast-data-prep"}
T = TypeVar("T")


class DroppedError(Exception):
    """A temporary failure, worth another attempt after `wait` seconds if the server says so."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


def persist(url: str, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
    """Repeat an attempt until it succeeds or `ATTEMPTS` in a row have received nothing new.

    It raises `DroppedError` if another attempt may help; `reached` tells the bytes received so far.
    """
    best, fruitless = reached(), 0
    while True:
        try:
            return attempt()
        except DroppedError as e:
            fruitless = 1 if reached() > best else fruitless + 1
            best = max(best, reached())
            if fruitless == ATTEMPTS:
                raise InputError(
                    f"{url}: {e}, {ATTEMPTS} times in a row; check the network and run again "
                    "later, it continues where it stopped"
                ) from e
            time.sleep(max(PAUSE * 2 ** (fruitless - 1), e.wait))


def request(item: Item, part: Path, *, progress: bool) -> None:
    """Make one request for the missing rest of `part`; raise `DroppedError` if another may help."""
    tag = tag_of(part).read_text() if tag_of(part).exists() else None
    # Without an ETag or a checksum, the rest might come from another version.
    start = 0 if tag is None and item.checksum is None else size_of(part)
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
            raise DroppedError(f"HTTP {status} instead of the bytes from {start} on")
        start = start if status == 206 else 0
        length = response.headers.get("Content-Length")
        size = int(span[2]) if span else int(length) if length else item.size
        _check_answer(item, response, size)
        tag = response.headers.get("ETag", "")
        if tag.startswith('"'):  # A weak tag, W/"…", does not guarantee equal bytes.
            tag_of(part).write_text(tag)
        else:
            tag_of(part).unlink(missing_ok=True)
        _receive(response, part, start, size, progress=progress)


def _check_answer(item: Item, response: requests.Response, size: int | None) -> None:
    coding = response.headers.get("Content-Encoding", "identity")
    if coding != "identity":
        raise InputError(
            f"{item.origin}: {item.name} came compressed for the way (Content-Encoding: "
            f"{coding}), though it was asked for as it is; ",
            Words("fetch it by hand and pass it with {source}"),
        )
    kind = response.headers.get("Content-Type", "")
    if kind.startswith("text/html") and not item.name.endswith((".html", ".htm")):
        raise InputError(
            f"{item.origin}: a web page came instead of {item.name}; ",
            Words(
                "open the address in a browser, fetch the file by hand and pass it with {source}"
            ),
        )
    if item.size is not None and size != item.size:
        raise InputError(
            f"{item.origin}: {item.name} has {size} bytes there, expected {item.size} as "
            "published; try again later or use a mirror"
        )


def _receive(
    response: requests.Response, part: Path, start: int, size: int | None, *, progress: bool
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
        raise DroppedError(f"the connection broke at byte {size_of(part)}") from e
    if size is not None and size_of(part) != size:
        raise DroppedError(f"the connection ended at byte {size_of(part)} of {size}")


def read_body(url: str) -> bytes:
    """Return the body of a small response; raise `DroppedError` if another attempt may help."""
    with _open(url, {}) as response:
        try:
            return response.content
        except failures.RequestException as e:
            raise DroppedError("the connection broke") from e


class _Session(requests.Session):
    """A session that is not led from a public address into a private network."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the address that a response redirects to; refuse one from public to private."""
        target = super().get_redirect_target(resp)
        if target and not is_private(resp.url) and is_private(urljoin(resp.url, target)):
            raise InputError(
                f"{resp.url}: redirects to {target}, an address of this machine or its network; "
                "refused, use a mirror"
            )
        return target


def is_private(url: str) -> bool:
    """Return whether a host is, or resolves to, this machine or an address of a private network."""
    host = urlsplit(url).hostname or ""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):  # Only a proxy may know it.
        return False
    return not all(ip_address(str(address).partition("%")[0]).is_global for address in found)


def _open(url: str, headers: dict[str, str]) -> requests.Response:
    """Request an address without reading the body."""
    try:
        response = _Session().get(url, headers=HEADERS | headers, stream=True, timeout=TIMEOUT)
    except (failures.InvalidURL, failures.InvalidSchema, failures.MissingSchema) as e:
        raise InputError(f"{url}: not an address ({e}); give one like https://host/path") from e
    except failures.SSLError as e:
        raise InputError(f"{url}: its certificate is not trusted; check clock and proxy") from e
    except failures.RequestException as e:
        if "NameResolutionError" in str(e):
            raise InputError(
                f"{url}: the name of the host is not known; ",
                Words("check the network, or pass a mirror or a local folder with {source}"),
            ) from e
        dropped = "no answer in time" if isinstance(e, failures.Timeout) else "no connection"
        raise DroppedError(dropped) from e
    status = f"HTTP {response.status_code} {response.reason}".strip()
    if response.status_code in (408, 425, 429, 500, 502, 503, 504):  # Temporary failures.
        wait = response.headers.get("Retry-After", "")
        response.close()
        raise DroppedError(status, min(float(wait), 60.0) if wait.isdigit() else 0.0)
    if response.status_code not in (200, 206, 416):
        raise _refusal(url, status, response)
    return response


def _refusal(url: str, status: str, response: requests.Response) -> InputError:
    """Return the error of a refused request, with advice and the server's message if any."""
    with response:
        try:
            said = " ".join(str(response.json()["message"]).split())[:200]
            status += f", it says: {said}"
        except (failures.RequestException, KeyError, TypeError):
            pass
    if response.status_code in (400, 401, 403):
        return InputError(
            f"{url}: refused ({status}); if it asks for its terms of use or guestbook, accept them "
            "in a browser, ",
            Words("fetch the files by hand and pass their folder with {source}"),
        )
    advice = Words("it may have moved, pass a mirror with {source}")
    return InputError(f"{url}: unavailable ({status}); ", advice)
