"""Forecasting models, one file each; every class here with a `name` is registered."""

from __future__ import annotations

from typing import Any

from data_prep.base.registry import Registry, is_named
from stforecast.data.clients import Cells
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import SplitModel

MODELS: Registry[Any] = Registry(
    "model", "stforecast.models", is_entry=is_named(SplitModel), group="stforecast.models"
)
"""Model classes by name."""


def build_model(name: str, window: WindowSpec, options: Any, cells: Cells | None) -> SplitModel:
    """Build a new model by its name.

    The cells belong to the client with most, for models that distinguish them (`of_cells`); None
    if each client is one cell.
    """
    kind = MODELS[name]
    further = (cells,) if hasattr(kind, "of_cells") else ()
    model: SplitModel = kind(window, options, *further)
    return model
