"""Personalised federated forecasting of cellular and road traffic.

- `forecast` forecasts a table or cube in one call, with a check.
- `Forecaster` fits, predicts, evaluates, draws, saves and loads.
- `open_cube` opens data, `list_methods` tabulates the methods, `stforecast.plots` draws figures and
  `stforecast.tracking` writes to TensorBoard, MLflow and Weights & Biases.
- `stforecast.forecasting.planning` finds busy hours, peaks and headroom.
- `stforecast.federated` is the core, which other fields may use without the rest.
"""

from __future__ import annotations

from importlib import import_module
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
    import pandas as pd

    from stforecast.baselines import BASELINES
    from stforecast.methods import METHODS

    rows = [
        (name, method.summary, federated, bool(method.pooled), method.paper)
        for known, federated in ((METHODS, True), (BASELINES, False))
        for name, method in known.items()
    ]
    columns = ["method", "summary", "federated", "pooled", "paper"]
    return pd.DataFrame(rows, columns=columns).set_index("method")


MODULES = {
    "Forecaster": "stforecast.forecasting.forecaster",
    "forecast": "stforecast.forecasting.quick",
    "open_cube": "stforecast.data.cubes",
}
"""Module of each name that is imported on first use, so that importing the core alone is fast."""

SUBMODULES = {
    "planning": "stforecast.forecasting.planning",
    "plots": "stforecast.plots",
    "tracking": "stforecast.tracking",
}
"""Modules that are imported on first use."""


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    if name in SUBMODULES:
        return import_module(SUBMODULES[name])
    if name == "__version__":
        from importlib.metadata import version

        return version("stforecast")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
