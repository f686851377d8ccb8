"""Partitions of the cells of a series among clients, by their values or their places.

To add a kind, add a file with a subclass of `CellPartitioner` that has a `name`.
"""

from __future__ import annotations

from data_prep.base.errors import InputError
from data_prep.base.registry import Registry, is_named
from stforecast.data.partition.base import CellPartitioner
from stforecast.federated.core.options import read_settings

CELL_PARTITIONS: Registry[type[CellPartitioner]] = Registry(
    "partition of cells",
    "stforecast.data.partition",
    is_entry=is_named(CellPartitioner),
    group="stforecast.cell_partitions",
)
"""Every kind of partition of cells by name; its fields are its settings."""

FORMS = (
    "cell, all, a file such as OWNERS.csv, a column of the cube, kmeans:8, grid:4x4 or dirichlet:8"
)


def parse_partition(text: str) -> CellPartitioner | None:
    """Read a partition such as `dirichlet:8:concentration=0.1`; None for other forms of clients.

    What has no name belongs to the fields in their order.

    >>> parse_partition("dirichlet:8:by=shape")
    Dirichlet(clients=8, concentration=0.5, by='shape', classes=5, min_cells=1)
    """
    name, *settings = text.split(":")
    if name not in CELL_PARTITIONS:
        return None
    kind = CELL_PARTITIONS[name]
    try:
        return read_settings(name, kind, settings)
    except InputError as e:
        raise InputError(
            f"clients is {text!r}: {e}; give {FORMS}; `stforecast list partitions` has the settings"
        ) from e
