"""An invented city, and cubes of a federation's nodes, for benchmarks."""

from __future__ import annotations

from pathlib import Path

from data_prep.city.simulate import simulate
from data_prep.cube import open_cube, write_cube
from data_prep.sets.milan import prepare


def make_city(folder: Path, cells: int, days: int) -> Path:
    """Simulate a city and return its cube, in a folder for it."""
    simulate(folder / "raw", cells=cells, days=days, seed=1)
    return prepare(folder / "raw", folder / "city.nc")


def make_cubes(folder: Path, n_nodes: int, share: int, days: int) -> list[Path]:
    """Simulate a city and write the nodes' parts, one file each.

    Args:
        folder: folder for the city and the parts.
        n_nodes: number of nodes.
        share: cells of each node.
        days: length of the records.
    """
    with open_cube(make_city(folder, share * n_nodes, days)) as city:
        return [
            write_cube(city.isel(cell=slice(share * i, share * (i + 1))).load(),
                       folder / f"node-{i}.nc")
            for i in range(n_nodes)
        ]  # fmt: skip
