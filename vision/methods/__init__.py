"""Methods for images only, one file each, and all methods that learn images."""

from data_prep.registry import Registry, is_named
from stforecast.federated.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    "stforecast.federated.methods",
    "vision.methods",
    is_entry=is_named(Method),
    group="stforecast.image_methods",
)
"""Methods by name: the core's, those of images and those of other packages."""
