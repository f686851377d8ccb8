"""Partitions of an image set among clients: label skew, domain shift, or both.

To add a kind, add a file with a subclass of `Partitioner` that has a `name`.
"""

from data_prep.base.registry import Registry, is_named
from vision.partition.base import Partitioner

PARTITIONS: Registry[type[Partitioner]] = Registry(
    "partition", "vision.partition", is_entry=is_named(Partitioner), group="stforecast.partitions"
)
"""Every kind of partition by name; its fields are its options."""
