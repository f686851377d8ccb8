"""Settings of prediction intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stforecast.federated.options import CheckedOptions


@dataclass(frozen=True)
class IntervalOptions(CheckedOptions):
    """Settings of prediction intervals.

    Attributes:
        intervals: bounds at --quantiles: `none` (a quantile loss has bounds of its own),
            `normalised` (recommended: calibrated on the validation errors of each client and step
            ahead, with widths that follow the hour, the level and recent changes, and widened or
            narrowed when too many or too few targets are missed; four weights are fitted to the
            errors of all clients together) or `conformal` (calibrated once, with one width of each
            client and step ahead; guaranteed for exchangeable errors). Bounds of data that were
            never below 0 in training are not below 0.
    """

    intervals: Literal["none", "normalised", "conformal"] = "none"
