"""The coming span of a history: forecasts, bounds, probabilities and a plan, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from stforecast.data.scaling import Limits
from stforecast.data.series import Series
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.planning import ANY, Side, Threshold, exceedance, plan, side_of
from stforecast.forecasting.tables import Interval, in_digits, long_table, on_clock

DECIMALS = 4
"""Decimals of probabilities, which follow from the bounds alone and are no surer than these."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is known of the steps after a history, in the data's units.

    Attributes:
        forecast: forecasts (time × cell).
        interval: their bounds; None if the model has none.
        plan: `planning.plan` of each cell, in rows named `cell`.
        chances: probabilities (time × cell) of `exceedance`; None without a threshold or bounds.
    """

    forecast: pd.DataFrame
    interval: Interval | None
    plan: pd.DataFrame
    chances: pd.DataFrame | None

    @property
    def side(self) -> Side:
        """On which side of a threshold values are a problem."""
        return side_of(self.forecast)

    def long(self) -> pd.DataFrame:
        """Return a row for each cell and time, as `stforecast predict` writes it."""
        table = long_table(self.forecast, self.interval)
        if self.chances is not None:
            chances = self.chances.melt()["value"].to_numpy().round(DECIMALS)
            table[f"probability_{self.side.beyond}"] = chances
        return table


def make_outlook(
    forecaster: Forecaster,
    series: Series,
    steps: int | None = None,
    *,
    threshold: Threshold | None = None,
    paths: np.ndarray | None = None,
    limits: Limits | None = None,
    clock: Literal["local", "utc"] = "local",
) -> Outlook:
    """Forecast what follows a series of `Forecaster.read`.

    `paths` are those of `planning.error_paths`, for probabilities over the whole span; limits and
    steps are by default those of the model.
    """
    lower, upper = limits or forecaster.limits
    # Probabilities follow from bounds that are not cut at the limits.
    used = (lower, upper) if threshold is None else ANY
    table, found = forecaster.outlook(series, steps, limits=used)
    uncut = on_clock(table, clock)
    bounds = found and Interval(*(on_clock(bound, clock) for bound in found))
    by_cell = plan(uncut, bounds, threshold, (lower, upper), paths)
    chances = None
    if threshold is not None and bounds is not None:
        coverage = bounds.upper.attrs["coverage"]
        chances = exceedance(uncut, *bounds, threshold, coverage, (lower, upper))
    numbers = by_cell.select_dtypes("float").map(in_digits)
    numbers = numbers.round(dict.fromkeys(("probability", "highest_probability"), DECIMALS))
    return Outlook(
        uncut.clip(lower, upper),
        bounds and Interval(*(bound.clip(lower, upper) for bound in bounds)),
        by_cell.assign(**numbers).rename_axis("cell"),
        chances,
    )
