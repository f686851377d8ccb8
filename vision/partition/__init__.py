"""Partitions of an image set among clients: label skew and domain shift, each on its own or both.

Adding a kind is one file here with a subclass of `Partitioner` that has a `name`.
"""

from collections.abc import Mapping

from data_prep.errors import choose
from stforecast.federated.method import import_all
from vision.partition.base import Partition, Partitioner

__all__ = ["PARTITIONS", "Partition", "Partitioner", "find_partition"]

import_all(__name__, __path__)

PARTITIONS: Mapping[str, type[Partitioner]] = {
    cls.name: cls for cls in sorted(Partitioner.__subclasses__(), key=lambda c: c.name) if cls.name
}
"""Every kind of partition by name; the fields of each are its options."""


def find_partition(name: str) -> type[Partitioner]:
    """The kind of partition of that name.

    Raises:
        InputError: listing the names if there is none.
    """
    if name not in PARTITIONS:
        raise choose("partition", name, PARTITIONS)
    return PARTITIONS[name]
