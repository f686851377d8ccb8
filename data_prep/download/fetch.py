"""Download of the files of a data set; valid files are kept, others fetched and verified.

Checksums of files for which none is published are recorded when they are first downloaded, in
`SHA256SUMS` beside the files, which `sha256sum --check SHA256SUMS` reads, too.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.base.errors import InputError, Words, check_regular, reading
from data_prep.base.files import atomic_path, checksum, file_lock
from data_prep.base.limits import read_bounded
from data_prep.base.progress import each
from data_prep.download import Archive, Item, Source, http, listing

NAME = "SHA256SUMS"


def recorded(out: Path, name: str) -> str | None:
    """Return the checksum recorded for a file, such as `"sha256:…"`; None if there is none."""
    sums = out / NAME
    check_regular(sums, "record of checksums", "move it away and run again")
    if not sums.exists():
        return None
    with reading(sums, "as checksums", "move it away and run again"):
        lines = read_bounded(sums, 2**20).decode().splitlines()
    found = [re.fullmatch(rf"([0-9a-f]{{64}}) [ *]{re.escape(name)}", line) for line in lines]
    return next((f"sha256:{match[1]}" for match in reversed(found) if match), None)


log = logging.getLogger(__name__)


def download(
    sources: Sequence[Source],
    out: Path,
    *,
    source: str | None = None,
    only: str | None = None,
    progress: bool = False,
) -> list[Path]:
    """Download the files of a data set into a folder; valid existing files are kept.

    Args:
        sources: locations of the files, the `SOURCES` of a data set's module.
        out: folder to write to, created if absent. It also keeps the archives.
        source: a mirror to use instead. An address replaces a Dataverse's `base`; for the other
            sources it is the folder that holds the files, or the file itself if it ends like one.
            A local path is a folder that holds the files, or a file. Files of a mirror are verified
            in the same way; local copies of Dataverse files by a listing saved next to them (for
            `doi:10.7910/DVN/EGZHFV` as `EGZHFV.json`), else by the official one.
        only: case-sensitive glob of the names to fetch, e.g. `"*-2013-11-0?.txt"`.
        progress: whether to show progress bars.

    Returns:
        The data files, in the order of the sources; for an archive, the files unpacked from it.

    Raises:
        InputError: if a file is unavailable, differs from the published one, would leave `out`, or
            if another file has its name.
    """
    out = Path(out)
    there = listing.plan_files(sources, source)
    # Members of an archive are selected when it is unpacked.
    items = [i for i in there if only is None or i.archive or listing.matches(i.name, only)]
    if not items:
        names = ", ".join(i.name for i in there[:3]) + (", …" if len(there) > 3 else "")
        raise InputError(f"none of the {len(there)} files matches {only!r}; they are: {names}")
    http.check_space(out, items)
    paths: list[Path] = []
    for item in each(items, "download", "file", progress=progress):
        if item.archive:
            paths += _fetch_archive(item, item.archive, out, only, progress=progress)
        else:
            paths.append(_fetch(item, out, progress=progress))
            _record(item, paths[-1], out)
    if not paths:
        raise InputError(f"no file matches {only!r}; ", Words("give another pattern with {only}"))
    return paths


def _fetch_archive(
    item: Item, archive: Archive, out: Path, only: str | None, *, progress: bool
) -> list[Path]:
    """Fetch an archive and unpack it; a damaged new download is not kept."""
    was_there = http.inside(out, item.name, item.origin).exists()
    path = _fetch(item, out, progress=progress)
    try:
        members = listing.unpack_archive(path, archive, out, only)
    except listing.DamagedError:
        if not was_there:
            path.unlink()
        raise
    _record(item, path, out)
    return members


def _fetch(item: Item, out: Path, *, progress: bool) -> Path:
    """Fetch and verify one file, unless it exists."""
    path = http.inside(out, item.name, item.origin)
    for place in (path, http.partial(path)):
        check_regular(place, "file", "move it away and run again")
    if item.checksum is None:
        item = replace(item, checksum=recorded(out, item.name), recorded=True)
    with http.disk(path):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(path.with_name(path.name + ".lock"), path):
                if not path.exists():  # Another download may have finished it meanwhile.
                    _obtain_verified(item, http.partial(path), progress=progress)
                    http.partial(path).replace(path)
        elif problem := _mismatch(path, item):
            raise InputError(f"{path}: exists but {problem}; move it away and run again")
    return path


def _record(item: Item, path: Path, out: Path) -> None:
    """Record the checksum of a file for which none is published or recorded yet."""
    if item.checksum is None and recorded(out, item.name) is None:
        found = checksum(path)
        with http.disk(path), (out / NAME).open("a") as file:
            file.write(f"{found.removeprefix('sha256:')}  {item.name}\n")
        log.warning("%s: no checksum is published; recorded in %s: %s", path, NAME, found)


def _obtain_verified(item: Item, part: Path, *, progress: bool) -> None:
    resumed = part.exists()
    _obtain(item, part, progress=progress)
    if resumed and _mismatch(part, item):  # the earlier part was of another version
        part.unlink()
        _obtain(item, part, progress=progress)
    http.tag_of(part).unlink(missing_ok=True)
    if problem := _mismatch(part, item):
        part.unlink()
        raise InputError(f"{item.origin}: the download {problem}; try again or use a mirror")


def _obtain(item: Item, part: Path, *, progress: bool) -> None:
    if listing.is_url(item.origin):
        http.persist(
            item.origin,
            lambda: http.request(item, part, progress=progress),
            lambda: http.size_of(part),
        )
    elif Path(item.origin).is_file():
        with atomic_path(part) as copy:
            shutil.copyfile(item.origin, copy)
    else:
        raise InputError(
            f"{item.origin}: no such file, and not an http(s) address; ",
            Words("add it to the mirror or choose others with {only}"),
        )


def _mismatch(path: Path, item: Item) -> str | None:
    """Describe how a file differs from the published one; None if it does not."""
    if item.size is not None and http.size_of(path) != item.size:
        return f"has {http.size_of(path)} bytes, expected {item.size} as published"
    if item.checksum is None:
        return None
    found = checksum(path, item.checksum.partition(":")[0])
    if found == item.checksum:
        return None
    if item.recorded:
        return (
            f"has {found}, expected {item.checksum} as recorded in {NAME} at the first download "
            "(remove its line there if the publisher has replaced the file)"
        )
    return f"has {found}, expected {item.checksum} as published"
