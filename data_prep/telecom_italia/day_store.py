"""Days that are already summed, kept beside the result until it is written.

What is done is kept in a hidden folder, one `.npz` a day, with the checksum of the raw file and
under a name that stands for all else that its content depends on: a killed run goes on where it
stopped, a changed file or step is read anew.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.atomic import atomic_path
from data_prep.errors import InputError
from data_prep.npz import read_npz
from data_prep.telecom_italia.cdr import DaySums, read_day, text_checksum
from data_prep.telecom_italia.raw_day import RawDay

LAYOUT = 2
"""Number of the folder's layout: raise it when the content of the files changes its meaning."""


@dataclass(frozen=True)
class StoredDay:
    """A summed day whose values are on disk; the other fields are those of `DaySums`."""

    raw: RawDay
    path: Path
    cells: np.ndarray
    recorded: np.ndarray
    checksum: str

    def values(self) -> np.ndarray:
        """`(service, step, cell)` sums, read from disk."""
        return read_npz(self.path, ["values"])[0]


class DayStore:
    """The folder of summed days that belongs to one result.

    Args:
        out: the result.
        per_step: ten-minute intervals in a step.
    """

    def __init__(self, out: Path, per_step: int) -> None:
        self.folder = out.parent / f".{out.name}.days"
        self.per_step = per_step

    def day(self, raw: RawDay) -> StoredDay:
        """The sums of a raw day, read from its file unless they are already here.

        Raises:
            InputError: if the file is refused (see `cdr.read_day`).
        """
        path = self.folder / f"{raw.date}-{self._key(raw)}.npz"
        if path.exists():
            with suppress(InputError):
                stored = _load(raw, path)
                # Size and time do not tell: an editor or a copy may keep both.
                if stored.checksum == text_checksum(raw.path):
                    return stored
        _save(read_day(raw, self.per_step), path)
        return _load(raw, path)

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)

    def _key(self, raw: RawDay) -> str:
        facts = (LAYOUT, raw.time_zone, self.per_step)
        return hashlib.sha256(repr(facts).encode() + raw.cells.tobytes()).hexdigest()[:16]


def _load(raw: RawDay, path: Path) -> StoredDay:
    cells, recorded, checksum = read_npz(path, ["cells", "recorded", "checksum"])
    return StoredDay(raw, path, cells, recorded, str(checksum))


def _save(sums: DaySums, path: Path) -> None:
    with atomic_path(path) as part, part.open("wb") as f:
        np.savez(
            f,
            values=sums.values,
            cells=sums.cells,
            recorded=sums.recorded,
            checksum=np.array(sums.checksum),
        )
