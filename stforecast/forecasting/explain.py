"""Explanations: a forecast as a sum of parts, by input and by part of the model.

By input: a forecast from readings that are as usual at their times, and the effect of each part of
the real ones: the last hours, the day and the week before, holidays and events, other services. A
reading as usual is the cell's mean at the same time of the same weekday over the history. By part
of the model: the map that all cells share, and the effect of its calendar and events, of the cell's
own correction, of the network, of each forecast that is mixed in and of recent errors. A mixed
forecast adds its weight times its difference from the mixture of those before it, see
`stforecast.forecasting.mixture`, whose line and mean error at the time of day are recent errors.

All other parts are Shapley values: the mean effect of a part over all orders of adding the parts
(Shapley, "A value for n-person games", 1953; Štrumbelj, Kononenko, "Explaining prediction models
and individual predictions with feature contributions", 2014). They add up to the forecast for any
model. Linear parts have the same value in every order, so they are exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch

from data_prep.base.errors import four_digits
from stforecast.data.clock import Calendar
from stforecast.data.dates import DAY, WEEK
from stforecast.data.events import Events
from stforecast.data.series import Series
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import History
from stforecast.forecasting.fit import Predictor
from stforecast.forecasting.mixed_forecasts import Mixture
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.trained_method import TrainedMethod
from stforecast.methods.fedlean import OWN

MEAN, USUAL = "mean of the history", "usual at this time of the week"
AGES = ("last three hours", "day before", "week before", "earlier weeks")
EVENTS, SERVICES, LIMITS = "holidays and events", "other services", "limits of the service"
CALENDAR, CORRECTION, NETWORK = "calendar and events", "own correction", "network of all cells"
PROFILE, PRETRAINED, NEWEST = "weekly profile", "pretrained network", "newest reading"
ERRORS = "recent errors"
"""Names of parts."""

BAR = 20
"""Characters of the longest bar."""

Values = np.ndarray


@dataclass(frozen=True, eq=False)
class Explanation:
    """A cell's forecast as sums of parts, in the data's units.

    Attributes:
        forecast: `(steps,)` forecasts by time.
        read: parts (time × part) by input.
        model: parts (time × part) by part of the model; None for a model without such parts.
    """

    forecast: pd.Series
    read: pd.DataFrame
    model: pd.DataFrame | None

    def words(self, time: pd.Timestamp) -> str:
        """Say how far a forecast is from usual, and name the part that explains most of it."""
        parts, forecast = self.read.loc[time], self.forecast[time]
        change = parts.drop([MEAN, USUAL])
        total, usual = change.to_numpy().sum(), parts[[MEAN, USUAL]].to_numpy().sum()
        text = f"{four_digits(forecast)} at {time:%a %d %b %H:%M}, usual is {four_digits(usual)}"
        largest = str((change * np.sign(total)).idxmax()) if len(change) else ""
        if not largest or change[largest] * np.sign(total) < abs(total) / 2 or not total:
            return text
        return f"{text}: {'above' if total > 0 else 'below'} it mainly by {largest}"


def bar_rows(parts: pd.Series) -> list[dict[str, str]]:
    """Return a row for each part of a forecast, with a bar of its size."""
    most = parts.abs().max() or 1.0
    return [
        {
            "part": str(name),
            "adds": four_digits(value, "+"),
            "bar": ("█" if value > 0 else "░") * round(BAR * abs(value) / most),
        }
        for name, value in parts.to_dict().items()
    ]


def explain(
    model: FittedModel, series: Series, cells: np.ndarray, *, of_model: bool = True
) -> list[Explanation]:
    """Explain the forecasts after a series' end of `cells`, positions in the series.

    The number of forecasts doubles with each part, however many cells there are. Without
    `of_model` there are no parts of the model. Parts that are 0 at all steps are left out.
    """
    z = model.scaler.transform(series.values, at_end=True)
    calendar, predictor, window = model.scaler.calendar(series), model.latest, model.config.window
    usual, parts = _usual(z, calendar), _parts(z, calendar, window.horizon)

    def read(known: frozenset[str]) -> Values:
        given, own = usual.copy(), calendar if EVENTS in known else _without_events(calendar)
        for name, steps in parts.items():
            if name in known:
                given[steps] = z[steps]
        if own.covariates is not None and SERVICES not in known:
            observed = np.where(np.isfinite(own.covariates.observed), 0.0, np.nan)
            covariates = dataclasses.replace(own.covariates, observed=observed)
            own = dataclasses.replace(own, covariates=covariates)
        return _forecast(predictor, given, own, cells)

    has_events = calendar.events is not None or bool(window.holidays)
    players = [*parts, *[EVENTS] * has_events, *[SERVICES] * (calendar.covariates is not None)]
    mean = np.nan_to_num(np.nanmean(z[:, cells], axis=0))[:, None]
    base, added = shapley(read, players)
    mean = np.broadcast_to(mean, base.shape)
    by_read = {MEAN: mean, USUAL: base - mean, **added}
    by_model = _by_model(predictor, window, z, calendar, cells) if of_model else None
    return [_in_units(model, series, cell, i, by_read, by_model) for i, cell in enumerate(cells)]


def shapley(
    value: Callable[[frozenset[str]], Values], players: Sequence[str]
) -> tuple[Values, dict[str, Values]]:
    """Return the value of nobody, and the Shapley value of each player.

    >>> base, added = shapley(lambda of: np.array([1.0 + 2 * len(of)]), ["a", "b"])
    >>> base.tolist(), added["a"].tolist()
    ([1.0], [2.0])
    """
    n, found = len(players), {}
    worth = {
        frozenset(some): value(frozenset(some))
        for size in range(n + 1)
        for some in combinations(players, size)
    }
    for player in players:
        found[player] = np.sum(
            [
                (worth[others | {player}] - worth[others]) / (n * math.comb(n - 1, len(others)))
                for others in worth
                if player not in others
            ],
            axis=0,
        )
    return worth[frozenset()], found


def _by_model(
    predictor: Predictor, window: WindowSpec, z: Values, calendar: Calendar, cells: np.ndarray
) -> dict[str, Values] | None:
    """Return the parts of a model, `(cells, horizon)` each; None if it has none."""
    parts = [CALENDAR] * (window.calendar != "none" or window.n_special > 0)
    has_experts, steps = False, dict[str, int | None]()
    if isinstance(predictor, TrainedMethod):
        parts += [CORRECTION, NETWORK] * (OWN in predictor.snapshot.clients.memory)
        has_experts, steps = predictor.mixture.has_experts, _mixed_in(predictor.mixture, calendar)

    def with_parts(on: frozenset[str], n_mixed: int | None = int(has_experts)) -> Values:
        if isinstance(predictor, TrainedMethod):
            return _forecast(_part(predictor, {*parts} - on, n_mixed), z, calendar, cells)
        read = calendar if CALENDAR in on else _without_events(calendar, week=False)
        return _forecast(predictor, z, read, cells)

    base, added = shapley(with_parts, parts)
    found = {"map of all cells" if CORRECTION in parts else "trained model": base, **added}
    for name, n_mixed in steps.items():
        found[name] = with_parts(frozenset(parts), n_mixed) - sum(found.values())
    return found if len(found) > 1 else None


def _usual(z: Values, calendar: Calendar) -> Values:
    """Return readings `(steps, cells)` as usual: means of the same time of the week, or of day."""
    times, table = calendar.local_times(np.arange(len(z))), pd.DataFrame(z)
    of_day = times.hour * 60 + times.minute
    usual = table.groupby(times.day_of_week * 1440 + of_day).transform("mean")
    usual = usual.fillna(table.groupby(of_day).transform("mean"))
    return np.where(np.isnan(z), np.nan, usual)


def _parts(z: Values, calendar: Calendar, horizon: int) -> dict[str, slice]:
    """Return the steps of each part of a history."""
    hours = max(1, calendar.steps_in(pd.Timedelta("3h")))
    ends = [0, hours, calendar.steps_in(DAY), calendar.steps_in(WEEK) + horizon, len(z)]
    ends = [min(max(end, hours * (i > 0)), len(z)) for i, end in enumerate(ends)]
    pairs = zip(AGES, ends[1:], ends, strict=False)
    return {name: slice(len(z) - a, len(z) - b) for name, a, b in pairs if a > b}


def _forecast(predictor: Predictor, z: Values, calendar: Calendar, cells: np.ndarray) -> Values:
    """Return forecasts `(cells, horizon)`; other cells are forecast only if these need it."""
    start = np.array([len(z)])
    if isinstance(predictor, TrainedMethod) and predictor.clients.by_cell:
        own = predictor.of_cells(cells)
        found = own.predict(z[:, cells], start, calendar.of_cells(cells))[:, 0]
    else:
        found = predictor.predict(z, start, calendar)[cells, 0]
    return found.astype(float)  # In single precision, parts would not add up.


def _without_events(calendar: Calendar, *, week: bool = True) -> Calendar:
    """Return a calendar without holidays and events; without `week`, windows read nothing of it."""
    events = calendar.events and Events.none(calendar.events.kinds, calendar.events.at.shape[1])
    return dataclasses.replace(calendar, events=events, shows_week=week, shows_holidays=False)


@dataclass(frozen=True, eq=False)
class _Part(TrainedMethod):
    """A trained method that does not read the calendar, or mixes in fewer forecasts."""

    reads_calendar: bool = True
    n_mixed: int | None = None

    @property
    def mixture(self) -> Mixture:
        """The first ones that are mixed in."""
        return dataclasses.replace(super().mixture, n_mixed=self.n_mixed)

    def _outputs(self, history: History, *args: Any, **options: Any) -> Values:
        read = history.calendar
        read = read if self.reads_calendar else _without_events(read, week=False)
        return super()._outputs(dataclasses.replace(history, calendar=read), *args, **options)


def _mixed_in(mixture: Mixture, calendar: Calendar) -> dict[str, int | None]:
    """Return how many forecasts are mixed in with each part; recent errors are the last."""
    names = [PROFILE] * mixture.has_experts + [PRETRAINED] * mixture.reads_pretrained(calendar.step)
    places = {n: mixture.has_experts + i for i, n in enumerate([*names, NEWEST], 1)}
    return {**places, ERRORS: None} if names else {}


def _part(predictor: TrainedMethod, off: set[str], n_mixed: int | None) -> _Part:
    """Return a method without some parts, mixed with the weights that the whole method has."""
    state = predictor.snapshot
    server, memory = dict(state.server), dict(state.clients.memory)
    if CORRECTION in off:
        memory[OWN] = torch.zeros_like(memory[OWN])
    if NETWORK in off:
        server |= {n: torch.zeros_like(t) for n, t in server.items() if n.startswith("head.")}
    clients = dataclasses.replace(state.clients, memory=memory)
    held = {f.name: getattr(predictor, f.name) for f in dataclasses.fields(predictor)}
    held["snapshot"] = dataclasses.replace(state, server=server, clients=clients)
    held["former"] = predictor.former or predictor  # Its errors are what forecasts are weighed by.
    return _Part(**held, reads_calendar=CALENDAR not in off, n_mixed=n_mixed)


def _in_units(
    model: FittedModel,
    series: Series,
    cell: int,
    place: int,
    read: Mapping[str, Values],
    by_model: Mapping[str, Values] | None,
) -> Explanation:
    """Return the parts at a place in the data's units; the first has the mean of the scale."""
    scale = model.scaler.mean, model.scaler.std
    mean, std = (np.broadcast_to(of, len(series.cells))[cell] for of in scale)
    steps = model.step * np.arange(1, model.config.window.horizon + 1)
    times = series.zoned(pd.DatetimeIndex(series.times[-1] + steps, name="time"))

    def table(parts: Mapping[str, Values]) -> tuple[pd.Series, pd.DataFrame]:
        found = std * pd.DataFrame({n: v[place] for n, v in parts.items()}, times, dtype=float)
        found.iloc[:, 0] += mean
        uncut = found.sum(axis=1)
        forecast = uncut.clip(*model.limits)
        found = found.loc[:, (found != 0).any() | found.columns.isin([*found.columns[:1], USUAL])]
        cut = {LIMITS: forecast - uncut} if (forecast != uncut).any() else {}
        return forecast, found.assign(**cut)

    forecast, by_read = table(read)
    return Explanation(forecast, by_read, None if by_model is None else table(by_model)[1])
