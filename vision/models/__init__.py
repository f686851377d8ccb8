"""Image models, one file each: every class here that has a `name` is one."""

from __future__ import annotations

from typing import Any

from stforecast.federated.method import import_all
from stforecast.federated.population import SplitModel

import_all(__name__, __path__)

MODELS: dict[str, Any] = {
    cls.name: cls for cls in SplitModel.__subclasses__() if cls.__module__.startswith(__name__)
}
"""Model classes by name; they take the images' shape, the number of classes and options."""
