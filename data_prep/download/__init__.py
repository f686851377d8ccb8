"""Official files of a data set: fetched with resume, verified, never overwritten.

A data set's module names its files in `SOURCES`, a tuple of `Dataverse`, `Archive` and `File`;
`download` brings them. A file grows as `NAME.part` and bears its name only once its size and
checksum are right, so whatever has its name is whole. A killed run continues where it stopped, and
two at a time do not write to one file.

The listing is Dataverse's native interface (https://guides.dataverse.org/en/latest/api/), the
resume RFC 9110: `Range` (section 14), `If-Range` (13.1.5).

Pooch (1.9) would do with fewer lines, but begins a file of 300 MB anew after every break, replaces
a file that differs, and looks neither at sizes, room on the disk and web pages that come in place
of files, nor at how far a zip unpacks.
"""

from data_prep.download.fetch import download
from data_prep.download.sources import Archive, Dataverse, File, Source

__all__ = ["download", "Dataverse", "Archive", "File", "Source"]
