"""Download of a data set's official files: resumable, verified, never overwriting.

A data set's module lists its files in `SOURCES`, a tuple of `Dataverse`, `Archive` and `File`;
`download` fetches them. A file is written as `NAME.part` and renamed only once its size and
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

from typing import TYPE_CHECKING, Any

from data_prep.download.sources import Archive, Dataverse, File, Source

if TYPE_CHECKING:
    from data_prep.download.fetch import download

__all__ = ["download", "Dataverse", "Archive", "File", "Source"]


def __getattr__(name: str) -> Any:
    """Import the client on first use: data sets only list their sources."""
    if name == "download":
        from data_prep.download.fetch import download

        return download
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
