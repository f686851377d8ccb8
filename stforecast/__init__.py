"""Personalised federated forecasting of cellular and road traffic.

`Forecaster` fits, predicts, saves and loads; `stforecast.federated` is the core, which other fields
may use without the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stforecast.forecaster import Forecaster

__all__ = ["Forecaster"]


def __getattr__(name: str) -> Any:
    """Import the forecaster on first use, so that importing the core alone stays fast."""
    if name == "Forecaster":
        from stforecast.forecaster import Forecaster

        return Forecaster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
