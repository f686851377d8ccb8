"""Forecasting models, one file each: every class here that has a `name` is one."""

from __future__ import annotations

from typing import Any

from stforecast.data.pooling import Cells
from stforecast.data.windows import WindowSpec
from stforecast.federated.method import import_all
from stforecast.federated.population import SplitModel

import_all(__name__, __path__)

MODELS: dict[str, Any] = {
    cls.name: cls for cls in SplitModel.__subclasses__() if cls.__module__.startswith(__name__)
}
"""Model classes by name."""


def build_model(name: str, window: WindowSpec, options: Any, cells: Cells | None) -> SplitModel:
    """A new model.

    Args:
        name: of one of `MODELS`.
        window: what it reads and forecasts.
        options: an instance of the model's `Options`.
        cells: the cells that a client holds, for models that tell them apart (`of_cells`); None
            where each client is one cell.
    """
    kind = MODELS[name]
    further = (cells,) if hasattr(kind, "of_cells") else ()
    model: SplitModel = kind(window, options, *further)
    return model
