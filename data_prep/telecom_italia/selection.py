"""Select the cells to keep: all that occur, a list such as `1-100,5060`, or a random sample."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np

from data_prep.errors import InputError
from data_prep.text import some


@dataclass(frozen=True)
class Selection:
    """A user's selection of cells.

    Args:
        cells: ids and inclusive ranges, separated by commas; None selects no ids.
        sample: number of cells to draw; None draws no sample.
        seed: random seed of the sample.

    Raises:
        InputError: if both `cells` and `sample` are given.
    """

    cells: str | None = None
    sample: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.cells is not None and self.sample is not None:
            raise InputError("cells and sample are both given, expected at most one; drop one")

    def check(self, known: np.ndarray) -> None:
        """Refuse invalid ids before any data are read.

        Args:
            known: `(cell,)` ids that may occur.

        Raises:
            InputError: if an id is invalid.
        """
        if self.cells is not None:
            _require_among(known, parse_cells(self.cells))

    def choose(self, occurring: np.ndarray, grid: np.ndarray | None = None) -> np.ndarray:
        """Return the ids to keep, ascending.

        Args:
            occurring: `(cell,)` ids that occur in the data, ascending.
            grid: `(cell,)` ids of the whole grid, where known: a sample is drawn from these.

        Raises:
            InputError: if an id does not occur, or there are fewer ids than the sample needs.
        """
        if self.cells is not None:
            cells = parse_cells(self.cells)
            _require_among(occurring, cells)
            return cells
        if self.sample is not None:
            return sample_cells(occurring if grid is None else grid, self.sample, self.seed)
        return occurring


def parse_cells(text: str) -> np.ndarray:
    """Return the unique ids of a list of ids and ranges, ascending.

    Raises:
        InputError: if the text is not such a list.

    >>> parse_cells("5,1-3")
    array([1, 2, 3, 5])
    """
    ids: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", part)
        if not match:
            raise InputError(
                f"cells: found {part!r}, expected ids and ranges; write them like 1-100,5060"
            )
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise InputError(f"cells: the range {part!r} runs backwards; write {high}-{low}")
        ids.update(range(low, high + 1))
    return np.array(sorted(ids))


def sample_cells(known: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Draw cells as FedDA's code does: `sorted(random.sample(ids, n))` after seeding.

    C. Zhang, S. Dang, B. Shihada, M.-S. Alouini, "Dual attention-based federated learning for
    wireless traffic prediction", INFOCOM 2021; code: github.com/chuanting/FedDA.

    Args:
        known: `(cell,)` ids to draw from, in any order.
        n: number of cells.
        seed: seed of Python's generator.

    Returns:
        `(n,)` ids, ascending.

    Raises:
        InputError: if there are fewer than `n` ids.
    """
    if not 0 < n <= len(known):
        raise InputError(f"sample: cannot draw {n} cells; choose from 1 to {len(known)}")
    ids = sorted(int(cell) for cell in known)
    return np.array(sorted(random.Random(seed).sample(ids, n)))


def _require_among(known: np.ndarray, cells: np.ndarray) -> None:
    unknown = np.setdiff1d(cells, known)
    if len(unknown):
        raise InputError(
            f"cells: {some(unknown)} not found among the {len(known)} ids "
            f"{known[0]}–{known[-1]} of the data; choose ids that occur"
        )
