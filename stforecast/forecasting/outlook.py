"""The coming span of a history: forecasts, bounds, probabilities and a plan, as tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import counted, some
from stforecast.data.scaling import Limits
from stforecast.data.series import Series
from stforecast.forecasting.groups import CELL, Groups, SumErrors
from stforecast.forecasting.planning import (
    ANY,
    Side,
    Threshold,
    error_paths,
    exceedance,
    plan,
    side_of,
)
from stforecast.forecasting.tables import DIGITS, Interval, in_digits, long_table, on_clock

if TYPE_CHECKING:
    from stforecast.forecasting.forecaster import Forecaster

log = logging.getLogger(__name__)

DECIMALS = 4
"""Decimals of probabilities, which follow from the bounds alone and are no surer than these."""

DIGITS_OF_SUMS = 12
"""Significant digits of written sums, so that they add up as written."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """What is known of the steps after a history, in the data's units.

    Attributes:
        forecast: forecasts (time × cell).
        interval: their bounds; None if the model has none.
        plan: `planning.plan` of each cell, in rows named `cell`.
        chances: probabilities (time × cell) of `exceedance`; None without a threshold or bounds.
        groups: groups whose sums are the columns, named by their labels; None for cells.
        coverage: share of tested sums within their bounds, by level of the groups.
        sums: the same of groups of these cells; None without groups.
    """

    forecast: pd.DataFrame
    interval: Interval | None
    plan: pd.DataFrame
    chances: pd.DataFrame | None
    groups: Groups | None = None
    coverage: Mapping[str, float] = field(default_factory=dict)
    sums: Outlook | None = None

    @property
    def side(self) -> Side:
        """On which side of a threshold values are a problem."""
        return side_of(self.forecast)

    def long(self) -> pd.DataFrame:
        """Return a row for each cell and time, as `stforecast predict` writes it.

        With groups, their rows follow, and a column `level` tells them apart.
        """
        digits = DIGITS if self.groups is None else DIGITS_OF_SUMS
        table = long_table(self.forecast, self.interval, digits)
        if self.chances is not None:
            chances = self.chances.melt()["value"].to_numpy().round(DECIMALS)
            table[f"probability_{self.side.beyond}"] = chances
        return self._with_groups(table, None if self.sums is None else self.sums.long())

    def of_level(self, level: str) -> Outlook:
        """Return the sums of the groups of one level, in columns of their names."""
        assert self.sums is not None
        groups = self.sums.groups
        assert groups is not None
        own = [i for i, of in enumerate(groups.levels) if of == level]
        names = [groups.names[i] for i in own]

        def part(table: pd.DataFrame) -> pd.DataFrame:
            found = table.iloc[:, own].set_axis(names, axis=1)
            found.attrs = table.attrs
            return found

        bounds = self.sums.interval and Interval(*map(part, self.sums.interval))
        return Outlook(part(self.sums.forecast), bounds, self.sums.plan.iloc[own], None)

    def plan_table(self) -> pd.DataFrame:
        """Return the plan with a column `cell`, and the groups as in `long`."""
        sums = None if self.sums is None else self.sums.plan_table()
        return self._with_groups(self.plan.reset_index(), sums)

    def _with_groups(self, table: pd.DataFrame, sums: pd.DataFrame | None) -> pd.DataFrame:
        if self.groups is not None:
            return self.groups.leveled(table)
        if sums is None:
            return table
        table.insert(list(table).index("cell"), "level", CELL)
        return pd.concat([table, sums], ignore_index=True)


def make_outlook(
    forecaster: Forecaster,
    series: Series,
    steps: int | None = None,
    *,
    threshold: Threshold | None = None,
    tested: xr.Dataset | None = None,
    groups: Groups | None = None,
    limits: Limits | None = None,
    clock: Literal["local", "utc"] = "local",
) -> Outlook:
    """Forecast what follows a series of `Forecaster.read`.

    `tested` forecasts, see `Forecaster.test_forecasts`, say how errors go together: without them
    there are no probabilities over the whole span, and no bounds of groups. Limits and steps are by
    default those of the model.
    """
    lower, upper = limits or forecaster.limits
    # Probabilities follow from bounds that are not cut at the limits.
    used = (lower, upper) if threshold is None else ANY
    table, interval = forecaster.outlook(series, steps, limits=used)
    uncut = on_clock(table, clock)
    bounds = interval and Interval(*(on_clock(bound, clock) for bound in interval))
    paths = error_paths(tested) if threshold is not None and tested is not None else None
    found = _outlook(uncut, bounds, threshold, (lower, upper), paths)
    if groups is None:
        return found
    return replace(found, sums=_sums(found, groups, tested, threshold, lower))


def _outlook(
    uncut: pd.DataFrame,
    bounds: Interval | None,
    threshold: Threshold | None,
    limits: tuple[float, float],
    paths: np.ndarray | None,
) -> Outlook:
    """Return the outlook of forecasts and bounds that are not cut at the limits."""
    by_cell, chances = plan(uncut, bounds, threshold, limits, paths), None
    if threshold is not None and bounds is not None:
        coverage = bounds.upper.attrs["coverage"]
        chances = exceedance(uncut, *bounds, threshold, coverage, limits)
    numbers = by_cell.select_dtypes("float").map(in_digits)
    steps = f"expected_steps_{side_of(uncut).beyond}"
    numbers = numbers.round(dict.fromkeys(("probability", "highest_probability", steps), DECIMALS))
    return Outlook(
        uncut.clip(*limits),
        bounds and Interval(*(bound.clip(*limits) for bound in bounds)),
        by_cell.assign(**numbers).rename_axis("cell"),
        chances,
    )


def _sums(
    of_cells: Outlook,
    groups: Groups,
    tested: xr.Dataset | None,
    threshold: Threshold | None,
    lower: float,
) -> Outlook:
    """Return the outlook of groups, whose forecasts are the sums of the cells' as written."""
    centre, interval = of_cells.forecast.map(in_digits), of_cells.interval
    if len(lost := centre.columns[centre.isna().any()]):
        text = "groups leave out %s without a forecast: %s"
        log.warning(text, counted(len(lost), "cell"), some(lost.tolist()))
    forecast, errors, bounds = groups.sum_table(centre), None, None
    if interval is not None and tested is not None and "upper" in tested:
        errors = SumErrors.of(tested, groups)
        bounds = errors.bounds(forecast, (of_cells.forecast, interval), groups)
    elif interval is not None:
        log.warning("groups have no bounds, as no tested forecasts say how errors go together")
    # A lower limit of cells is one of sums if it is 0, an upper one is none.
    limits = (0.0 if lower >= 0 else -np.inf), np.inf
    paths = None if errors is None else error_paths(errors.forecasts)
    found = _outlook(forecast, bounds, groups.thresholds(threshold), limits, paths)
    return replace(found, groups=groups, coverage=errors.coverage if errors else {})
