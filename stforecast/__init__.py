"""Personalised federated forecasting of cellular and road traffic.

`Forecaster` fits, saves, loads and predicts; `stforecast.federated` is the core that other fields
may use without the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stforecast.forecaster import Forecaster

__all__ = ["Forecaster"]


def __getattr__(name: str) -> Any:
    """Import the forecaster when it is asked for, so that the core alone stays light."""
    if name == "Forecaster":
        from stforecast.forecaster import Forecaster

        return Forecaster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
