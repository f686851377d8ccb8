"""A forecast of any table or cube in one call, with a check and what was assumed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, counted, four_digits, some
from data_prep.cube import step_of
from data_prep.description import describe_service
from stforecast.comparison.errors import SEASONAL, bias_in_words, local_times, naive_name, variables
from stforecast.data.anchors import reach_of
from stforecast.data.clock import Calendar
from stforecast.data.cubes import Data, choose_service, open_cube
from stforecast.data.dates import in_words
from stforecast.data.splits import make_split
from stforecast.forecasting import DEFAULT_METHOD

if TYPE_CHECKING:
    from stforecast.data.window_spec import WindowSpec
    from stforecast.forecasting.backtest import Backtest
    from stforecast.forecasting.forecaster import Forecaster
    from stforecast.forecasting.tables import Interval


SHARES = range(15, 49)
"""Per cent of the time to calibrate on and to check on, of which the first that fits is taken."""

WORK = 1_000_000
"""Cells × steps up to which all rounds of the default method take a minute or two."""


@dataclass(frozen=True)
class Plan:
    """Settings of a quick forecast.

    Attributes:
        service: variable to forecast.
        settings: settings by flat name, see `stforecast.forecasting.config`.
        assumed: what was assumed and how to change it, by topic.
    """

    service: str
    settings: Mapping[str, Any]
    assumed: Mapping[str, str | Words]


class Check(NamedTuple):
    """Errors on the last part of the data, which the model was not trained on.

    Attributes:
        mae: mean absolute error in the data's units; NaN if no value was recorded.
        naive: that of the value a day or a week before, see `yardstick`; NaN if there is none.
        first: first step of the part, in local time.
        last: last step.
        yardstick: what `naive` is the error of.
        bias: by which share the sum of the forecasts is above that of the values; NaN without any.
        limited: mean absolute error of forecasts that are moved to the limits.
    """

    mae: float
    naive: float
    first: pd.Timestamp
    last: pd.Timestamp
    yardstick: str = "value one day before"
    bias: float = float("nan")
    limited: float = float("nan")

    @property
    def skill(self) -> float:
        """Share by which the error is below `naive`."""
        return 1 - self.mae / self.naive if self.naive else float("nan")

    def __str__(self) -> str:
        days = f"checked on {self.first:%Y-%m-%d %H:%M} to {self.last:%Y-%m-%d %H:%M}"
        if np.isnan(self.mae):
            return f"not {days}: no value was recorded then, so errors and coverage are unknown"
        said = f"{days}: mean absolute error {four_digits(self.mae)}"
        if self.limited > self.mae:
            said += f", moved to the limits {four_digits(self.limited)}"
        if np.isnan(self.naive):
            said += " (nothing before to compare with)"
        elif not self.naive:
            said += f"; the {self.yardstick} has none"
        else:
            way = "below" if self.skill >= 0 else "above"
            said += f", {abs(self.skill):.0%} {way} that of the {self.yardstick} "
            said += f"({four_digits(self.naive)})"
        return said + (f"; {bias_in_words(self.bias)}" if np.isfinite(self.bias) else "")


@dataclass(frozen=True, eq=False)
class QuickForecast:
    """A forecast, and how far to trust it.

    Attributes:
        forecast: `(time, cell)` table in the data's units.
        interval: lower and upper bounds like it; None without a calibration.
        check: errors on the last part of the data.
        assumed: what was assumed and how to change it, by topic.
        forecaster: the fitted model.
        backtest: results on the folds that were asked for; None without.
    """

    forecast: pd.DataFrame
    interval: Interval | None
    check: Check
    forecaster: Forecaster = field(repr=False)
    assumed: Mapping[str, str] = field(default_factory=dict)
    backtest: Backtest | None = None


def forecast(
    data: Data,
    horizon: int = 24,
    *,
    service: str | None = None,
    method: str = DEFAULT_METHOD,
    folds: int = 0,
    **settings: Any,
) -> QuickForecast:
    """Train on data, check on its last part, and forecast what follows.

    Args:
        data: as for `open_cube`.
        horizon: number of steps to forecast.
        service: variable to forecast; by default the first that is not all zeros.
        method: name of a method.
        folds: number of further models, each tested on the span after its training, for a check
            with an interval; 0 for none.
        **settings: any setting of `stforecast.forecasting.config`, such as `rounds=50`.

    Raises:
        InputError: if the data or settings cannot be used.

    >>> hours = pd.date_range("2024-01-01", periods=24 * 14, freq="h")
    >>> daily = 100 + 50 * np.sin(2 * np.pi * hours.hour / 24)
    >>> result = forecast(pd.DataFrame({"a": daily}, index=hours), 3, method="seasonal_day")
    >>> result.forecast.round(0)["a"].tolist(), result.check.mae < 1e-6
    ([100.0, 113.0, 125.0], True)
    """
    from stforecast.forecasting.forecaster import Forecaster

    cube = open_cube(data)
    plan = make_plan(cube, horizon, service, method, settings)
    forecaster = Forecaster(method, **plan.settings).fit(cube)
    check = check_forecasts(forecaster.test_forecasts())
    table, bounds = forecaster.outlook(cube)
    tested = forecaster.backtest(cube, folds) if folds else None
    assumed = {name: str(words) for name, words in plan.assumed.items()}
    return QuickForecast(table, bounds, check, forecaster, assumed, tested)


def make_plan(
    cube: xr.Dataset, horizon: int, service: str | None, method: str, given: Mapping[str, Any]
) -> Plan:
    """Choose what is not given: the service, the split, intervals and rounds.

    Raises:
        InputError: if the service is unknown, the horizon is below 1 or the data are too short for
            it.
    """
    from stforecast.forecasting.config import defaults, resolve  # imports torch

    for name in given.keys() & {"horizon", "service"}:
        raise InputError(f"{name} is given twice; give it once")
    if not isinstance(horizon, int | np.integer) or horizon < 1:
        raise InputError(f"horizon is {horizon!r}; forecast at least 1 step, a whole number")
    step = step_of(cube)
    n_steps, n_cells = cube.sizes["time"], cube.sizes["cell"]
    zone = str(cube.attrs.get("time_zone", "UTC"))
    wall = ", times are its wall clock" if cube.attrs.get("clock") == "local" else ""
    name, which = _choose_service(cube, service)
    settings: dict[str, Any] = {"intervals": "normalised"}
    window = resolve(method, **{**given, "horizon": horizon}).window.at(step)
    if parts := given.get("split"):
        if n_steps < (reach := _reach(parts, Calendar.from_cube(cube), n_steps, window)):
            raise InputError(
                f"{n_steps} steps are too few, as forecasts read {reach} steps back; give a longer "
                "history"
            )
        parts = f"{parts} (setting split=…)"
    else:
        share = choose_share(Calendar.from_cube(cube), n_steps, window)
        settings["split"] = _split_of(share)
        parts = f"{100 - 2 * share} % of the time to train, {share} % to calibrate, {share} % "
        more = f", as {SHARES[0]} % are too short for the horizon" if share > SHARES[0] else ""
        parts += f"to check{more} (setting split=…)"
    assumed: dict[str, str | Words] = {
        "step": Words("{}, as in the data ({resample} changes a table's)", in_words(1, step)),
        "horizon": Words("{}, {} ({horizon})", in_words(horizon, step), counted(horizon, "step")),
        "service": which,
        "time zone": Words("{}{} ({time_zone} and {clock} of a table)", zone, wall),
        "parts": parts,
        "method": Words("{} ({method}; stforecast list methods)", method),
    }
    chosen = method == DEFAULT_METHOD and "rounds" not in given
    if chosen and (work := n_cells * n_steps) > WORK:
        most = defaults(method)["rounds"]
        settings["rounds"] = max(2, most * WORK // work)
        assumed["rounds"] = f"{settings['rounds']} of {most}, to be quick (setting rounds={most})"
    if defaults(method).get("refit") == "once":
        settings["refit"] = "final"
        assumed["newest"] = "also trained on, after the check (setting refit=once leaves it out)"
    if given.get("events"):
        assumed["events"] = Words("those in {}, and no others ({events})", given["events"])
    missing = describe_service(cube, name)["missing"]
    if missing:
        assumed["missing"] = f"{missing:.1%} of the values; they are masked"
    return Plan(name, settings | {"horizon": horizon, "service": name} | dict(given), assumed)


def n_tested(cube: xr.Dataset, settings: Mapping[str, Any], method: str) -> int:
    """Return the number of forecasts that the test part of a plan has."""
    from stforecast.forecasting.config import resolve  # imports torch

    calendar, n_steps = Calendar.from_cube(cube), cube.sizes["time"]
    window = resolve(method, **settings).window.at(calendar.step)
    times = calendar.local_times(np.arange(n_steps))
    return len(make_split(settings["split"], n_steps, calendar.step, window, times).test)


def choose_share(calendar: Calendar, n_steps: int, window: WindowSpec) -> int:
    """Return the per cent of a series that calibrate its forecasts, and of as many that check them.

    They are the fewest of `SHARES` that hold the windows of a whole period, or else a single one.

    Raises:
        InputError: if no share leaves a window to train on.
    """

    def fitting(n: int, horizon: int) -> int | None:
        spec = replace(window, horizon=horizon)
        for needed in (horizon + window.period, horizon):
            share = max(SHARES[0], -(-100 * needed // n))  # A longer part leaves less to train on.
            if share in SHARES:
                with suppress(InputError):
                    if _reach(_split_of(share), calendar, n, spec) <= n:
                        return share
        return None

    horizon = window.horizon
    window.chosen(calendar.step, n_steps)  # Settings that suit no step are refused as such.
    if (share := fitting(n_steps, horizon)) is not None:
        return share
    longest = bisect_left(range(1, horizon), True, key=lambda h: fitting(n_steps, h) is None)
    most = range(n_steps + 5 * (horizon + window.max_lag + window.period))
    fewest = bisect_left(most, True, lo=n_steps, key=lambda n: fitting(n, horizon) is not None)
    raise InputError(
        f"{n_steps} steps are too few to train, calibrate and check forecasts of {horizon} steps; "
        f"give at least {fewest} steps",
        Words(", or a {horizon} of at most {}", longest) if longest else "",
    )


def _reach(split: str, calendar: Calendar, n_steps: int, window: WindowSpec) -> int:
    """Return the steps that forecasts of a series that is split read back.

    Raises:
        InputError: if the series is too short for the split.
    """
    times, step = calendar.local_times(np.arange(n_steps)), calendar.step
    n_training = make_split(split, n_steps, step, window, times).fit.stop
    return reach_of(window.chosen(step, n_training), step)


def _split_of(share: int) -> str:
    return f"time:{1 - share / 50:.2g},{share / 100},{share / 100}"


def _choose_service(cube: xr.Dataset, service: str | None) -> tuple[str, str | Words]:
    """Return the service to forecast, and how it was chosen."""
    from data_prep.cube import services_of

    names = services_of(cube)
    if service is not None or len(names) == 1:
        chosen = choose_service(cube, service, "the data")
        return chosen, Words("{} ({service})", chosen) if len(names) > 1 else chosen
    filled = [name for name in names if not describe_service(cube, name)["blank"]]
    chosen = (filled or names)[0]
    others = some([name for name in names if name != chosen], 9)
    return chosen, Words("{}, the first that is not all zeros ({service}: {})", chosen, others)


def check_forecasts(forecasts: xr.Dataset) -> Check:
    """Return the errors of tested forecasts and of seasonal naive, where both are known."""
    y = forecasts["y"].to_numpy()
    found: dict[str, np.ndarray] = {"mae": forecasts["y_hat"].to_numpy()}
    named: dict[str, Any] = {}
    known = np.isfinite(y) & np.isfinite(found["mae"])
    if SEASONAL in variables(forecasts):
        naive = forecasts[variables(forecasts)[SEASONAL]].to_numpy()
        if (both := known & np.isfinite(naive)).any():
            known, found["naive"] = both, naive
            named["yardstick"] = naive_name(forecasts)
    errors = {
        name: float(np.abs(y_hat - y)[known].mean()) if known.any() else float("nan")
        for name, y_hat in found.items()
    }
    if known.any() and np.nansum(np.abs(y[known])):
        named["bias"] = float((found["mae"] - y)[known].sum() / np.abs(y[known]).sum())
    if known.any():
        lower, upper = (forecasts.attrs.get(f"{end}_limit", np.nan) for end in ("lower", "upper"))
        moved = np.fmin(np.fmax(found["mae"], lower), upper)
        named["limited"] = float(np.abs(moved - y)[known].mean())
    times, step = local_times(forecasts)
    last = times[-1] + step * (forecasts.sizes["horizon"] - 1)  # Clocks may change on the way.
    first, last = (time.tz_localize(None) for time in (times[0], last))
    return Check(errors["mae"], errors.get("naive", float("nan")), first, last, **named)
