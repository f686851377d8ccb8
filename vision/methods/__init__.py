"""Methods for images only, one file each, and the registry of all methods for images."""

from data_prep.base.registry import Registry, is_named
from stforecast.federated.core.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    "stforecast.federated.methods",
    "vision.methods",
    "vision.references",
    is_entry=is_named(Method),
    group="stforecast.image_methods",
)
"""Methods by name: from the core, of images, references and from other packages."""
