"""Inputs of a window relative to its newest reading, and a basis of its calendar."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stforecast.data.anchors import LEVEL
from stforecast.data.calendar import CALENDAR_INPUTS
from stforecast.data.window_spec import WindowSpec

DAY_CYCLES = 4
"""Number of known inputs that follow the time of day; they come first."""


class RelativeInputs(NamedTuple):
    """Inputs of windows, whose readings are relative to the newest one.

    Attributes:
        base: `(clients, batch, 1)` what forecasts are relative to: the newest reading, or 0 where
            the targets are differences already.
        linear: `(clients, batch, n_linear)` a 1, the readings less the newest one (which is 0
            itself), and `calendar_basis` of the inputs known in advance.
        network: `(clients, batch, inputs)` the readings less the newest one, which is in its own
            place as it is, and the time of day; other inputs known in advance are 0, since all
            cells share the few days of training and a network learns these by heart.
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
    known = x[..., n_readings:]
    differences = x[..., :n_readings] - newest
    cycles = n_cycles(window)
    linear = [torch.ones_like(newest), differences, calendar_basis(known, cycles)]
    network = torch.cat([differences, known], dim=-1)
    network[..., place] = newest[..., 0]
    network[..., n_readings + cycles :] = 0
    base = newest if window.target == LEVEL else torch.zeros_like(newest)
    return RelativeInputs(base, torch.cat(linear, dim=-1), network)


def n_cycles(window: WindowSpec) -> int:
    """Return the number of known inputs that follow the time of day."""
    return min(DAY_CYCLES, CALENDAR_INPUTS[window.calendar])


def calendar_basis(known: Tensor, cycles: int) -> Tensor:
    """Return the known inputs and their products with those that follow the time of day.

    A linear map of them has a daily profile for each kind of day, where one of the known inputs
    alone has the same profile every day, and twice as many cycles a day.

    Args:
        known: `(…, known)` inputs known in advance.
        cycles: number of those that follow the time of day.

    Returns:
        `(…, known + products)`.
    """
    products = [known[..., i : i + 1] * known[..., i:] for i in range(cycles)]
    return torch.cat([known, *products], dim=-1)


def n_linear(window: WindowSpec) -> int:
    """Return the number of linear inputs of a window."""
    of_calendar = calendar_basis(torch.zeros(window.n_known), n_cycles(window)).shape[-1]
    return 1 + window.n_inputs - window.n_known + of_calendar
