"""What a figure takes: finished runs, their folders, fitted forecasters and tables of errors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.errors import InputError
from stforecast.results import METRIC_COLUMNS, ROUND_COLUMNS, ForecastRun

if TYPE_CHECKING:
    from stforecast.data.series import Series
    from stforecast.forecaster import Forecaster

ERRORS = METRIC_COLUMNS[4:]
"""Columns of a table of errors that a figure needs."""

TAKEN = "a run, its folder, a fitted forecaster or a table of errors"


@dataclass(frozen=True)
class FittedRun(ForecastRun):
    """A fitted forecaster as a run that was never written.

    Attributes:
        forecaster: the forecaster.
        series: data to test it on; by default the test part of those that it was fitted on.
    """

    forecaster: Forecaster
    series: Series | None = None

    @classmethod
    def of(cls, forecaster: Forecaster, place: int) -> FittedRun:
        """Return the run of a forecaster; `place` distinguishes it from others.

        Raises:
            InputError: if the forecaster was loaded or is not fitted.
        """
        from stforecast.runs import facts_of

        about = {"label": forecaster.config.method, "data": forecaster.data_name}
        about |= facts_of(forecaster)
        return cls(Path(f"forecaster {place}"), about, forecaster)

    @classmethod
    def of_model(
        cls, folder: Path, history: str | os.PathLike[str], events: Any = None
    ) -> FittedRun:
        """Return the run of a saved model, tested on a history.

        Args:
            folder: folder of the model, whose name is the label.
            history: path of a cube, all of which is tested.
            events: table of its events, for a model that reads events.

        Raises:
            InputError: if the model or the history cannot be read, or do not suit each other.
        """
        from stforecast.forecaster import Forecaster

        forecaster = Forecaster.load(folder)
        series = forecaster.read(history, events)
        tested = [forecaster.config.window.reach, len(series.values) - 1]
        first, last = series.calendar.local_times(np.array(tested))
        about = {
            "settings": forecaster.asked.flat(),
            "label": folder.name,
            "data": str(history),
            "service": forecaster.service,
            "units": forecaster.units,
            "parts": {"test": {"first": str(first), "last": str(last)}},
        }
        return cls(folder, about, forecaster, series)

    @cached_property
    def _errors(self) -> pd.DataFrame:
        return self.forecaster.evaluate(self.series)

    @cached_property
    def _forecasts(self) -> xr.Dataset:
        return self.forecaster.test_forecasts(self.series)

    def metrics(self) -> pd.DataFrame:
        """Errors of the forecaster."""
        return self._errors

    def rounds(self) -> pd.DataFrame:
        """Rounds of the forecaster."""
        rounds = self.forecaster.rounds_
        return rounds if len(rounds) else pd.DataFrame(columns=list(ROUND_COLUMNS), dtype=float)

    def forecasts(self) -> xr.Dataset:
        """Forecasts of the test part."""
        return self._forecasts

    def open_forecasts(self) -> xr.Dataset:
        """Forecasts of the test part."""
        return self._forecasts


@dataclass(frozen=True)
class TableRun(ForecastRun):
    """A table of errors as a run without forecasts.

    Attributes:
        table: the errors.
    """

    table_of_errors: pd.DataFrame

    def metrics(self) -> pd.DataFrame:
        """Return the errors."""
        return self.table_of_errors

    def rounds(self) -> pd.DataFrame:
        """Return no rounds."""
        return pd.DataFrame(columns=list(ROUND_COLUMNS), dtype=float)

    def open_forecasts(self) -> xr.Dataset:
        """Raise, as a table has no forecasts.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{self.label}: a table of errors has no forecasts, which this figure needs; give runs "
            "or fitted forecasters"
        )

    def forecasts(self) -> xr.Dataset:
        """Raise, as `open_forecasts`."""
        return self.open_forecasts()


def as_runs(things: Any) -> list[ForecastRun]:
    """Return runs of whatever a figure takes.

    Args:
        things: one or several of: finished runs, folders of runs, fitted forecasters, tables of
            errors from `Forecaster.evaluate` or `ForecastRun.metrics`; or a dictionary of such by
            the names to draw them under.

    Raises:
        InputError: naming what is none of these.
    """
    if isinstance(things, Mapping):
        return [
            dataclasses.replace(run, about={**run.about, "label": str(name)})
            for place, (name, thing) in enumerate(things.items())
            for run in _runs_of(thing, place)
        ]
    single = isinstance(things, ForecastRun | str | os.PathLike | pd.DataFrame)
    several = [things] if single or not isinstance(things, Iterable) else list(things)
    return [run for place, thing in enumerate(several) for run in _runs_of(thing, place)]


def _runs_of(thing: Any, place: int) -> list[ForecastRun]:
    if isinstance(thing, ForecastRun):
        return [thing]
    if isinstance(thing, str | os.PathLike):
        return ForecastRun.find([thing])
    if isinstance(thing, pd.DataFrame):
        return _of_table(thing, place)
    from stforecast.forecaster import Forecaster

    if isinstance(thing, Forecaster):
        return [FittedRun.of(thing, place)]
    raise InputError(
        f"cannot draw a figure of an object of type {type(thing).__name__}; give {TAKEN}"
    )


def _of_table(table: pd.DataFrame, place: int) -> list[ForecastRun]:
    """Return a run for each method, data set, service and seed of a table."""
    if absent := [name for name in ERRORS if name not in table]:
        raise InputError(
            f"a table without column {absent[0]!r} is not a table of errors; give one from "
            "Forecaster.evaluate() or a run's metrics.csv"
        )
    keys = [name for name in ("label", *METRIC_COLUMNS[:4]) if name in table]
    parts = table.groupby(keys, sort=False, dropna=False) if keys else [((), table)]
    runs: list[ForecastRun] = []
    for values, part in parts:
        known = dict(zip(keys, values, strict=True))
        method = str(known.get("method", known.get("label", f"table {place + 1}")))
        selections = set(part["selection"])
        settings = {
            "method": method,
            "seed": int(str(known.get("seed", 1))),
            "select": "best" if "best" in selections else min(selections),
        }
        about = {
            "settings": settings,
            "label": str(known.get("label", method)),
            "data": str(known.get("data", "table")),
            "service": str(known.get("service", "traffic")),
            "units": "1",
        }
        text = {name: part[name].astype(str) for name in ("client", "horizon")}
        folder = Path(f"table {place}.{len(runs)}")
        runs.append(TableRun(folder, about, part.assign(**text)))
    return runs
