"""Requests and answers of KServe's time-series protocol, `POST /v1/timeseries/forecast`.

An input is the newest readings of a cell: from `start_timestamp` on they replace the
history in service, or continue it, and the forecast follows the latest of all. An input without
readings asks for the forecast that follows the history. Quantiles follow from forecast and bounds
as probabilities do (`stforecast.forecasting.planning`): on either side of the forecast the value is
taken to be normal.
"""

import time
import uuid
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from annotated_types import Gt, Lt
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import ndtri

from data_prep.base.errors import InputError, choose, in_minutes
from stforecast.data.series import Series
from stforecast.forecasting.tables import Interval, in_digits

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
"""Lengths of the frequencies that have one; months and years have none."""

SHORT = {"S": "second", "T": "minute", "H": "hour", "D": "day", "W": "week"}

Frequency = Literal["second", "S", "minute", "T", "hour", "H", "day", "D", "week", "W"]
Univariate = Literal["univariate_time_series"]
Quantile = Annotated[float, Gt(0), Lt(1)]


class Extensible(BaseModel):
    """A part that may have further fields, which are ignored."""

    model_config = ConfigDict(extra="allow")


class CellReadings(Extensible):
    """The newest readings of a cell."""

    type: Univariate
    name: str = Field(description="The cell, see /cells.")
    series: list[float | None] = Field(description="Readings; null where one is missing.")
    frequency: Frequency = Field(description="Length of the model's step.")
    start_timestamp: str | None = Field(None, description="ISO 8601 time of the first reading.")


class Options(Extensible):
    """What to forecast."""

    horizon: int = Field(ge=1, description="Steps.")
    quantiles: list[Quantile] | None = None


class ForecastRequest(Extensible):
    """A request for forecasts of cells."""

    model: str = Field(description="A name of /v1/timeseries/models.")
    inputs: list[CellReadings] = Field(min_length=1)
    options: Options
    metadata: dict[str, Any] | None = None


class CellForecast(BaseModel):
    """The forecast of a cell; quantiles by their numbers, such as 0.95."""

    type: Univariate = "univariate_time_series"
    name: str
    mean_forecast: list[float]
    frequency: Frequency
    start_timestamp: str
    quantiles: dict[str, list[float]] | None = None


class Problem(BaseModel):
    """An error."""

    code: str
    message: str
    param: str | None = None
    type: str = "invalid_request"


class ProblemAnswer(BaseModel):
    """The answer to a bad request."""

    error: Problem


class Output(BaseModel):
    """The result of an input."""

    type: Literal["time_series_forecast"] = "time_series_forecast"
    id: str
    status: Literal["completed"] = "completed"
    content: list[CellForecast]
    error: Problem | None = None


class ForecastAnswer(BaseModel):
    """The forecasts, in the order of the inputs."""

    id: str
    created_at: int = Field(description="Seconds since 1970.")
    status: Literal["completed"] = "completed"
    error: Problem | None = None
    model: str
    outputs: list[Output]


class Tables(NamedTuple):
    """Forecasts (time × cell) and their bounds, None without; and limits, which cut neither yet."""

    forecast: pd.DataFrame
    interval: Interval | None
    limits: tuple[float, float]


def check_inputs(asked: ForecastRequest, series: Series) -> None:
    """Refuse inputs of unknown cells, of cells that come twice, or of another step."""
    step = series.calendar.step
    known = {str(cell) for cell in series.cells}
    names = [one.name for one in asked.inputs]
    for one in asked.inputs:
        if pd.Timedelta(seconds=SECONDS[SHORT.get(one.frequency, one.frequency)]) != step:
            raise InputError(
                f"frequency of input {one.name!r} is {one.frequency!r}, this model has steps of "
                f"{in_minutes(step)}; name its frequency if there is one, or ask /forecast"
            )
        if one.name not in known:
            raise choose("input", one.name, sorted(known)[:30])
        if names.count(one.name) > 1:
            raise InputError(f"input {one.name!r} comes more than once; keep one")


def with_readings(asked: ForecastRequest, series: Series) -> pd.DataFrame | None:
    """Return the history (time × cell) with the readings of a request; None if it has none."""
    history = pd.DataFrame(series.values, series.zoned(series.times), series.cells)
    history.columns = history.columns.astype(str)
    sent = {one.name: _placed(one, history.index, series) for one in asked.inputs if one.series}
    if not sent:
        return None
    history = pd.DataFrame(sent).combine_first(history)[history.columns]
    history.columns = series.cells
    history.columns.name, history.attrs = "cell", {"units": series.units}
    return history


def _placed(one: CellReadings, index: pd.Index, series: Series) -> pd.Series:
    """Return the readings of an input at their times, which follow or overlap the history."""
    times, step = pd.DatetimeIndex(index), series.calendar.step
    end = times[-1] + step
    where = f"start_timestamp of input {one.name!r}"
    if one.start_timestamp is None:
        raise InputError(f"{where} is missing; give the time of its first reading")
    try:
        start = pd.Timestamp(one.start_timestamp)
        start = start.tz_localize(times.tz) if start.tz is None else start.tz_convert(times.tz)
    except (ValueError, TypeError) as e:
        raise InputError(f"{where} is {one.start_timestamp!r}: {e}; give one like {end}") from e
    if not times[0] <= start <= end or (start - times[0]) % step:
        raise InputError(
            f"{where} is {one.start_timestamp!r}, expected a step from {times[0]} to {end}, where "
            "the history ends"
        )
    values = np.array(one.series, dtype=float)
    return pd.Series(values, pd.date_range(start, periods=len(values), freq=step))


def answer_request(asked: ForecastRequest, tables: Tables) -> ForecastAnswer:
    """Return the answer to a request.

    Raises:
        InputError: if quantiles are asked for and the model has no bounds.
    """
    start = str(tables.forecast.index[0]).replace(" ", "T")
    forecasts = tables.forecast.set_axis(tables.forecast.columns.astype(str), axis=1)
    outputs, cells = [], list(forecasts)
    for one in asked.inputs:
        values = [in_digits(value) for value in forecasts[one.name].clip(*tables.limits)]
        if not np.isfinite(values).all():
            raise InputError(f"input {one.name!r} has no forecast; send it readings")
        content = CellForecast(
            name=one.name,
            mean_forecast=values,
            frequency=one.frequency,
            start_timestamp=start,
            quantiles=_quantiles(asked.options.quantiles, tables, cells.index(one.name)),
        )
        outputs.append(Output(id=str(uuid.uuid4()), content=[content]))
    now = int(time.time())
    return ForecastAnswer(id=str(uuid.uuid4()), created_at=now, model=asked.model, outputs=outputs)


def _quantiles(
    asked: list[Quantile] | None, tables: Tables, place: int
) -> dict[str, list[float]] | None:
    """Return quantiles of a cell; None if none are asked for, or a bound is not finite."""
    if not asked:
        return None
    if tables.interval is None:
        raise InputError("this model has no bounds, so it has no quantiles; leave them out")
    both = (tables.forecast, *tables.interval)
    centre, lower, upper = (table.iloc[:, place].to_numpy() for table in both)
    if not np.isfinite(upper - lower).all():
        return None
    usual = ndtri((1 + tables.interval.upper.attrs["coverage"]) / 2)
    found = {}
    for share in asked:
        distance = ndtri(share) / usual
        values = centre + distance * (upper - centre if distance > 0 else centre - lower)
        found[str(share)] = [in_digits(value) for value in values.clip(*tables.limits)]
    return found
