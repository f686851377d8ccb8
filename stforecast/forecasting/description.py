"""Descriptions of a forecaster: a line of text, and a table for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from data_prep.base.errors import counted
from stforecast.data import dates as durations
from stforecast.forecasting.model import FittedModel


def _call(params: Mapping[str, Any]) -> str:
    """Return the call that makes a forecaster of these parameters.

    >>> _call({"method": "fuels", "rounds": 3})
    "Forecaster('fuels', rounds=3)"
    """
    method, *settings = params.items()
    texts = [repr(method[1]), *(f"{name}={value!r}" for name, value in settings)]
    return f"Forecaster({', '.join(texts)})"


def one_line(params: Mapping[str, Any], model: FittedModel | None) -> str:
    """Return one line: the call, and what it was fitted on."""
    if model is None:
        return _call(params)
    return f"<{_call(params)}, fitted: {_fitted(model)}>"


def _fitted(model: FittedModel) -> str:
    horizon = model.config.window.horizon
    return (
        f"{_quantity(model)} of {counted(len(model.cells), 'cell')}, "
        f"steps of {durations.in_words(1, model.step)}, "
        f"{durations.in_words(horizon, model.step)} ahead"
    )


def _quantity(model: FittedModel) -> str:
    """Return the service with its unit, if it has one."""
    return model.service if model.units == "1" else f"{model.service} ({model.units})"


def as_html(
    params: Mapping[str, Any],
    model: FittedModel | None,
    parts: Mapping[str, Mapping[str, str] | None],
    train_seconds: float,
) -> str:
    """Return a small table for notebooks; `parts` are the dates of each, empty if it was loaded."""
    rows = {"forecaster": _call(params), "fitted": "no"}
    if model is not None:
        horizon = model.config.window.horizon
        rows |= {
            "fitted": f"in {train_seconds:.1f} s" if parts else "loaded",
            "forecasts": _quantity(model),
            "cells": f"{len(model.cells)}: {', '.join(map(str, model.cells[:5]))}"
            + (", …" if len(model.cells) > 5 else ""),
            "step": durations.in_words(1, model.step),
            "time zone": model.time_zone or "none",
            "horizon": f"{counted(horizon, 'step')}, {durations.in_words(horizon, model.step)}",
        }
        rows |= {
            f"{name} part": f"{span['first']} to {span['last']}"
            for name, span in parts.items()
            if span
        }
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<table>{cells}</table>"
