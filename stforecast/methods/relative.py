"""Inputs of a window relative to its newest reading."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stforecast.data.anchors import LEVEL
from stforecast.data.windows import WindowSpec


class RelativeInputs(NamedTuple):
    """Inputs of windows, whose readings are relative to the newest one.

    Attributes:
        base: `(clients, batch, 1)` what forecasts are relative to: the newest reading, or 0 where
            the targets are differences already.
        linear: `(clients, batch, 1 + inputs)` a 1, the other readings less the newest one (which is
            0 itself), and the inputs known in advance.
        network: `(clients, batch, inputs)` the same without the 1, and with the newest reading in
            its own place.
    """

    base: Tensor
    linear: Tensor
    network: Tensor


def relative(x: Tensor, window: WindowSpec) -> RelativeInputs:
    """Subtract the newest reading from a window's readings.

    Args:
        x: `(clients, batch, inputs)`.
        window: shape of the windows.
    """
    lags = (*window.lags, *window.further_lags)
    place = lags.index(min(lags))
    newest = x[..., place : place + 1]
    n_readings = window.n_inputs - window.n_known
    differences = torch.cat([x[..., :n_readings] - newest, x[..., n_readings:]], dim=-1)
    linear = torch.cat([torch.ones_like(newest), differences], dim=-1)
    differences[..., place] = newest[..., 0]
    base = newest if window.target == LEVEL else torch.zeros_like(newest)
    return RelativeInputs(base, linear, differences)
