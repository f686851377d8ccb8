"""Image models, one file each; every class here with a `name` is registered."""

from __future__ import annotations

from typing import Any

from data_prep.base.registry import Registry, is_named
from stforecast.federated.core.population import SplitModel

MODELS: Registry[Any] = Registry(
    "model", "vision.models", is_entry=is_named(SplitModel), group="stforecast.image_models"
)
"""Model classes by name; they take the images' shape, the number of classes and options."""
