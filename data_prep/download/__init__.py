"""Download of a data set's official files: resumable, verified, never overwriting.

A data set's module lists its files in `SOURCES`, a tuple of `Dataverse`, `Archive` and `File`;
`fetch.download` fetches them. A file is written as `NAME.part` and renamed only once its size and
checksum are right, so a file with its final name is complete. Where no checksum is published, the
file's own is recorded in `SHA256SUMS` at its first download and checked afterwards. A killed
download resumes where it stopped, and two processes do not write to one file.

Listings use Dataverse's native API (https://guides.dataverse.org/en/latest/api/), resuming follows
RFC 9110: `Range` (section 14), `If-Range` (13.1.5).

Pooch (1.9) would need fewer lines. But it restarts a file of 300 MB after every interruption and
replaces a file that differs. It does not check sizes, disk space or the unpacked size of a zip, nor
whether a web page was served in place of a file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dataverse:
    """The files of a Dataverse data set, with the sizes and checksums of its own listing.

    Args:
        doi: persistent id, with or without the leading `doi:`.
        base: address of the installation.
    """

    doi: str
    base: str = "https://dataverse.harvard.edu"


@dataclass(frozen=True)
class Archive:
    """A zip file: fetched, verified and unpacked.

    Args:
        url: its address.
        checksum: `algorithm:hexdigest` of the zip, e.g. `sha256:…`; None if not published.
        members: names inside the zip to unpack; empty unpacks all.
        name: the name to keep it under; by default the end of its address.
    """

    url: str
    checksum: str | None = None
    members: tuple[str, ...] = ()
    name: str | None = None


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
class Item:
    """A file to fetch: its name under `out`, its address or local path, size and checksum.

    The checksum is the published one, unless it was `recorded` at an earlier download.
    """

    name: str
    origin: str
    size: int | None = None
    checksum: str | None = None
    archive: Archive | None = None
    recorded: bool = False
