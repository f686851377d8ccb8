"""Clients of a run, as the setting `clients` says: `cell`, `all`, a file, a column or places."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from data_prep.errors import InputError, close_to
from data_prep.text import counted, some
from stforecast.data.partition import Partition, one_per_cell
from stforecast.data.text_tables import read_texts

if TYPE_CHECKING:
    from stforecast.data.series import Series

log = logging.getLogger(__name__)

FORMS = "cell, all, a file such as OWNERS.csv, a column of the cube, kmeans:8 or grid:4x4"

CELL, CLIENT = "cell", "client"
"""Columns of a file of clients."""

SEED = 0
"""Seed of k-means: the clients do not depend on the run's seed."""


def check_clients(text: str) -> None:
    """Refuse a text that cannot say what the clients are.

    Raises:
        InputError: with the forms that can.
    """
    numbers = re.fullmatch(r"kmeans:(\d+)|grid:(\d+)x(\d+)", text)
    begun = re.match(r"kmeans|grid\b", text)
    if not text or (begun and not (numbers and all(int(n) for n in numbers.groups() if n))):
        raise InputError(f"clients is {text!r}; give {FORMS}")


def partition(text: str, series: Series) -> Partition:
    """Return the client of each cell of a series.

    Args:
        text: the setting `clients`.
        series: the data.

    Raises:
        InputError: if the data lack what it needs, or the file does not fit the cells.
    """
    check_clients(text)
    if text == "cell":
        return one_per_cell(series.cells)
    if text == "all":
        return Partition.from_labels(["all"] * len(series.cells))
    kind, _, numbers = text.partition(":")
    if kind == "kmeans":
        return Partition.from_labels(_districts(series, int(numbers)))
    if kind == "grid":
        rows, _, columns = numbers.partition("x")
        return Partition.from_labels(_tiles(series, int(rows), int(columns)))
    if text.endswith(".csv"):
        return Partition.from_labels(_owners(Path(text), series))
    return Partition.from_labels(_column(series, text))


def _owners(path: Path, series: Series) -> list[str]:
    """Read the client of each cell from a file with the columns `cell` and `client`."""
    remedy = "give a CSV file with a line cell,client and then one line for each cell"
    table = read_texts(path, "file of clients", (CELL, CLIENT), remedy)
    listed, cells = table[CELL], [str(cell) for cell in series.cells]
    if listed.duplicated().any():
        raise InputError(
            f"{path}: cell {listed[listed.duplicated()].iloc[0]} has two lines; a cell belongs to "
            "one client"
        )
    owners = dict(zip(listed, table[CLIENT], strict=True))
    if unknown := [cell for cell in owners if cell not in set(cells)]:
        raise InputError(
            f"{path}: {counted(len(unknown), 'cell')} that {series.name} does not have: "
            f"{some(unknown)}; remove {'its line' if len(unknown) == 1 else 'their lines'}"
        )
    if absent := [cell for cell in cells if cell not in owners]:
        raise InputError(
            f"{path}: no line for {counted(len(absent), 'cell')} of {series.name}: "
            f"{some(absent)}; each cell belongs to a client"
        )
    return _named([owners[cell] for cell in cells], cells, str(path))


def _column(series: Series, name: str) -> list[str]:
    """Return the client of each cell by a column of the cube that has one value a cell."""
    known = series.columns
    if name not in known:
        has = f"its columns are {some(sorted(known))}" if known else "it has no columns by cell"
        raise InputError(
            f"clients is {name!r}, which is not a column of {series.name}: {has}"
            f"{close_to(name, known)}; give {FORMS}"
        )
    values = [None if pd.isna(v) else v for v in known[name].tolist()]
    return _named(values, series.cells, f"{series.name}, column {name!r}")


def _named(names: Sequence[Any], cells: Sequence[Any] | np.ndarray, origin: str) -> list[str]:
    """Refuse a cell whose client has no name."""
    texts = ["" if name is None else str(name) for name in names]
    if "" in texts:
        raise InputError(f"{origin}: cell {cells[texts.index('')]} has no client; give it a name")
    return texts


def _places(series: Series) -> np.ndarray:
    """Return `(cells, 2)` places on a plane: degrees of latitude, to the east and to the north.

    Raises:
        InputError: if the location of a cell is not known.
    """
    if series.locations is None:
        raise InputError(
            f"{series.name} has no locations, which kmeans and grid need; prepare it with the "
            "longitude and latitude of each cell, or give --clients a file"
        )
    lost = ~np.isfinite(series.locations).all(axis=1)
    if lost.any():
        raise InputError(
            f"{series.name}: cell {series.cells[lost][0]} has no location, which kmeans and grid "
            "need; add it, or give --clients a file"
        )
    east, north = series.locations.T
    return np.stack([east * np.cos(np.radians(north.mean())), north], axis=1)


def _districts(series: Series, n: int) -> list[str]:
    """Return the district of each cell, a cluster of places by k-means."""
    from sklearn.cluster import KMeans

    places = _places(series)
    if n > (different := len(np.unique(places, axis=0))):
        raise InputError(
            f"clients is kmeans:{n}, but {series.name} has cells at {different} places; give "
            "fewer districts"
        )
    found = KMeans(n, n_init=10, random_state=SEED).fit_predict(places)
    number: dict[int, int] = {}
    return [f"district {number.setdefault(int(i), len(number) + 1)}" for i in found]


def _tiles(series: Series, n_rows: int, n_columns: int) -> list[str]:
    """Return the tile of each cell; row 1 is in the north, column 1 in the west."""
    places = _places(series)
    low, high = places.min(axis=0), places.max(axis=0)
    share = (places - low) / np.where(high > low, high - low, 1.0)
    column, row = (
        np.minimum((part * n).astype(int), n - 1)
        for part, n in ((share[:, 0], n_columns), (1 - share[:, 1], n_rows))
    )
    tiles = [f"tile {r + 1}-{c + 1}" for r, c in zip(row, column, strict=True)]
    if empty := n_rows * n_columns - len(set(tiles)):
        log.info(
            "%s: %d of %d tiles have no cell and are left out, so there are %s",
            series.name, empty, n_rows * n_columns, counted(len(set(tiles)), "client"),
        )  # fmt: skip
    return tiles


def say(clients: Partition, series: Series) -> None:
    """Log the numbers of cells of clients, and the roads that are cut between them."""
    if clients.by_cell or len(clients) == 1:
        return
    low, middle, high = np.percentile(clients.sizes, [0, 50, 100])
    text = f"{len(clients)} clients of {low:.0f} to {high:.0f} cells, the median of {middle:g}"
    if series.adjacency is not None:
        roads = clients.cut(series.adjacency)
        text += (
            f"; they cut {roads['cut']:,} of {roads['roads']:,} roads "
            f"({roads['cut_weight']:.1%} of the weight)"
        )
    log.info("%s: %s", series.name, text)
