"""Personalised federated forecasting of cellular and road traffic.

- `forecast` forecasts a table or cube in one call, with a check.
- `Forecaster` fits, predicts, evaluates, draws, saves and loads.
- `open_cube` opens data, `list_methods` tabulates the methods, `stforecast.plots` draws figures and
  `stforecast.tracking` writes to TensorBoard, MLflow and Weights & Biases.
- `stforecast.forecasting.planning` finds busy hours, peaks and headroom.
- `stforecast.federated` is the core, which other fields may use without the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from stforecast.data.cubes import open_cube
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.quick import forecast

    __version__: str

__all__ = ["forecast", "Forecaster", "open_cube", "list_methods"]


def list_methods() -> pd.DataFrame:
    """Tabulate all methods and reference forecasters.

    Returns:
        A row for each method, with its `summary`, whether it is `federated`, whether it pools the
        records of all cells, which a federation would not allow (`pooled`), and its `paper`.
    """
    from stforecast.forecasting.description import methods_frame

    return methods_frame()


def __getattr__(name: str) -> Any:
    """Import on first use, so that importing the core alone stays fast."""
    if name == "Forecaster":
        from stforecast.forecasting.forecaster import Forecaster

        return Forecaster
    if name == "forecast":
        from stforecast.forecasting.quick import forecast

        return forecast
    if name == "open_cube":
        from stforecast.data.cubes import open_cube

        return open_cube
    if name == "__version__":
        from importlib.metadata import version

        return version("stforecast")
    if name == "planning":
        from stforecast.forecasting import planning

        return planning
    if name in ("plots", "tracking"):
        from importlib import import_module

        return import_module(f"stforecast.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
