"""Cache of summed days beside the result, so that a killed run continues where it stopped.

The cache is a hidden folder with one `.npz` per day, which holds the checksum of the raw file. Its
name contains a hash of everything else that the sums depend on. A day is therefore read again if
its file or the step has changed.
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
"""Version of the files' layout; increase it when the layout changes."""


@dataclass(frozen=True)
class StoredDay:
    """A summed day with its values on disk; other fields as in `DaySums`."""

    raw: RawDay
    path: Path
    cells: np.ndarray
    recorded: np.ndarray
    checksum: str

    def values(self) -> np.ndarray:
        """Read the sums `(service, step, cell)` from disk."""
        return read_npz(self.path, ["values"])[0]


class DayStore:
    """Folder of summed days for one result.

    Args:
        out: path of the result.
        per_step: ten-minute intervals in a step.
    """

    def __init__(self, out: Path, per_step: int) -> None:
        self.folder = out.parent / f".{out.name}.days"
        self.per_step = per_step

    def day(self, raw: RawDay) -> StoredDay:
        """Return the sums of a raw day, read from its file unless they are in the folder.

        Raises:
            InputError: if `cdr.read_day` refuses the file.
        """
        path = self.folder / f"{raw.date}-{self._key(raw)}.npz"
        if path.exists():
            with suppress(InputError):
                stored = _load(raw, path)
                # Size and time are not enough: an editor or a copy may keep both.
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
