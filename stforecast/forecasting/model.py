"""What was fitted: a model that forecasts histories, without the data that it was fitted on.

A saved one has two files, `forecaster.json` and `state.safetensors`; nothing is pickled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, counted
from data_prep.base.limits import check_size
from data_prep.readers.times import check_time_zone
from data_prep.readers.units import with_unit
from stforecast.data.anchors import reach_of
from stforecast.data.clients import Partition, one_per_cell
from stforecast.data.cubes import Data
from stforecast.data.dates import WEEK, in_words
from stforecast.data.prepared import PreparedSeries
from stforecast.data.scaling import Limits, Scaler
from stforecast.data.series import LOCAL, Series, zeros
from stforecast.data.splits import Split
from stforecast.federated.runs import model_files
from stforecast.federated.runs.model_files import AGAIN
from stforecast.forecasting import history as histories
from stforecast.forecasting.config import Config, read_by, resolve
from stforecast.forecasting.fit import Predictor, restore_predictor
from stforecast.forecasting.results import MODEL
from stforecast.forecasting.rolling import Rolling
from stforecast.forecasting.tables import Interval
from stforecast.forecasting.trained_method import TrainedMethod
from stforecast.intervals.bands import Bands, include_constant, raw_bands
from stforecast.intervals.calibration import PREFIX, Calibration

ENTRIES = {
    "service": str,
    "units": str,
    "non_negative": bool,
    "adapted": bool,
    "trained_on": dict,
    "time_zone": str,
    "preparation": dict,
    "zero_is_missing": bool,
}
"""Attributes of a model that its description holds as they are, and their types."""


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A predictor with its scaler, its calibration and what it needs to read a history.

    Attributes:
        config: settings, with windows in steps of the data.
        cells: `(cells,)` ids.
        step: length of a time step.
        service: name of the forecast variable.
        units: unit of the service.
        scaler: scaler fitted on the training part.
        predictor: forecasts z-scores.
        clients: the client of each cell.
        non_negative: whether no training value was below 0.
        time_zone: zone of its data, as `Series.time_zone`.
        calibration: what calibrates its bounds; None without intervals, or if it is not computed.
        adapted: whether it was adapted to new cells, whose histories may be short.
        trained_on: `data`, their name, and `first` and `last` target that it was trained on, in
            local time; empty if that is not known.
        preparation: how its data were prepared, see `data_prep.preparation`; histories that are no
            cubes are opened in this way.
        zero_is_missing: whether its data had values of 0 where nothing was recorded.
    """

    config: Config
    cells: np.ndarray
    step: pd.Timedelta
    service: str
    units: str
    scaler: Scaler
    predictor: Predictor
    clients: Partition
    non_negative: bool
    time_zone: str
    calibration: Calibration | None = None
    adapted: bool = False
    trained_on: Mapping[str, str] = field(default_factory=dict)
    preparation: Mapping[str, Any] = field(default_factory=dict)
    zero_is_missing: bool = False

    @classmethod
    def of(cls, config: Config, data: PreparedSeries, predictor: Predictor) -> Self:
        """Return the model of a predictor that was fitted on data; it is not calibrated."""
        series, trained = data.series, data.parts()["training"] or {}
        if isinstance(predictor, Rolling) and len(predictor.since):
            trained |= {"last": str(data.calendar.local_times(predictor.since[-1:] - 1)[0])}
        return cls(
            config, series.cells, series.calendar.step, series.service, series.units, data.scaler,
            predictor, data.clients, data.non_negative, series.time_zone,
            trained_on={"data": series.name, **trained}, preparation=series.preparation,
            zero_is_missing=series.zero_is_missing,
        )  # fmt: skip

    @property
    def limits(self) -> Limits:
        """Lowest and highest value of its forecasts and bounds, in the data's units."""
        return self.config.data.limits(non_negative=self.non_negative)

    @property
    def reach(self) -> int:
        """Number of steps back that it reads."""
        return reach_of(self.config.window, self.step)

    @property
    def latest(self) -> Predictor:
        """What forecasts after the data: of a model that was refitted, its last state."""
        return self.predictor.models[-1] if isinstance(self.predictor, Rolling) else self.predictor

    @property
    def unread(self) -> tuple[str, ...]:
        """Further services that no client's model reads, so that a history need not hold them."""
        latest = self.latest
        return latest.unread if isinstance(latest, TrainedMethod) else ()

    def prepared(self, series: Series, split: Split) -> PreparedSeries:
        """Return a series of its cells, scaled as its training data were."""
        z = self.scaler.transform(series.values)
        return PreparedSeries(series, self.config.window, split, self.scaler, z, self.clients)

    def read(self, history: Data | Series, events: str | os.PathLike[str] | None = None) -> Series:
        """Read the series of its cells from a history; see `Forecaster.read`."""
        return histories.read_history(history, self, events)

    def outlook(
        self, series: Series, steps: int | None = None, limits: Limits | None = None
    ) -> tuple[pd.DataFrame, Interval | None]:
        """Return what `predict` and `bounds` return, by forecasting once."""
        raw = self.raw_bands(series)
        return self.predict(series, steps, limits, raw), self.bounds(series, steps, limits, raw)

    def raw_bands(self, series: Series) -> Bands:
        """Return the forecasts of the horizon after a history, `(cells, 1, horizon)`, z-scored."""
        z = self.scaler.transform(series.values, at_end=True)
        calendar, coverages = self.scaler.calendar(series), self.config.coverages
        return raw_bands(self.predictor, z, np.array([len(z)]), calendar, coverages)

    def predict(
        self,
        series: Series,
        steps: int | None = None,
        limits: Limits | None = None,
        raw: Bands | None = None,
    ) -> pd.DataFrame:
        """Forecast what follows a history from `read`; see `Forecaster.predict`.

        The first horizon is from the `raw` bands, by default `raw_bands(series)`.
        """
        steps = self._n_steps(steps)
        missing, unknown = self._missing(series)
        histories.warn_of_missing(series, missing, unknown)
        histories.warn_of_late(series, self, np.asarray(missing.any(axis=0)))
        histories.warn_of_past_events(series)
        calendar, found = (
            self.scaler.calendar(series),
            (raw or self.raw_bands(series)).centre[:, 0].T,
        )
        while len(found) < steps:
            z = np.concatenate([self.scaler.transform(series.values, at_end=True), found])
            y_hat = self.predictor.predict(z, np.array([len(z)]), calendar)
            found = np.concatenate([found, y_hat[:, 0].T])
        table = self._table(found[:steps], series, unknown)
        odd = ~np.isfinite(table.to_numpy()).all(axis=0) & ~unknown
        if odd.any():
            raise InputError(
                f"{series.name}: the forecast of cell {self.cells[odd][0]} is not finite; look for "
                "readings that are far too large, or fit the model again"
            )
        limits = limits or self.limits
        table.attrs["limits"] = tuple(limits)
        return table.clip(*limits)

    def bounds(
        self,
        series: Series,
        steps: int | None = None,
        limits: Limits | None = None,
        raw: Bands | None = None,
    ) -> Interval | None:
        """Return bounds of the values of `predict`, with its arguments; None if not calibrated."""
        config, calibration = self.config, self.calibration
        if calibration is None:
            return None
        coverage, horizon = config.coverage, config.window.horizon
        n_steps = self._n_steps(steps)
        _, unknown = self._missing(series)
        z, raw = self.scaler.transform(series.values, at_end=True), raw or self.raw_bands(series)
        widest = Bands(raw.centre, {coverage: raw.bounds[coverage]})
        tables = []
        start, calendar = np.array([len(z)]), self.scaler.calendar(series)
        bands = calibration.calibrated(widest, z, start, calendar)
        include_constant(bands, z)
        for bound in bands.bounds[coverage]:
            values = np.full((n_steps, len(self.cells)), np.nan)
            values[:horizon] = bound[:, 0].T[: len(values)]
            table = self._table(values, series, unknown)
            table.attrs["coverage"] = coverage
            tables.append(table.clip(*(limits or self.limits)))
        interval = Interval(*tables)
        lowest, highest = interval.lower.min().to_numpy(), interval.upper.max().to_numpy()
        histories.warn_of_far_bounds(series, lowest, highest)
        return interval

    def _n_steps(self, steps: int | None) -> int:
        """Return the number of steps to forecast, by default the horizon."""
        if steps is None:
            return self.config.window.horizon
        if not isinstance(steps, Integral) or steps < 1:
            raise InputError(f"steps is {steps}; forecast at least 1, a whole number")
        return int(steps)

    def _missing(self, series: Series) -> tuple[np.ndarray, np.ndarray]:
        """Return the missing inputs `(inputs, cells)`, and the cells without a forecast `(cells,)`.

        An adapted model forecasts cells without any input, too.
        """
        missing = histories.missing_inputs(series, self)
        return missing, np.asarray(missing.all(axis=0)) & (not self.adapted)

    def _table(self, z: np.ndarray, series: Series, unknown: np.ndarray) -> pd.DataFrame:
        """Return forecast z-scores `(steps, cells)` after a series as a table in the data's units.

        Those of `unknown` cells `(cells,)`, without any observed input, become NaN.
        """
        steps = self.step * np.arange(1, len(z) + 1)
        times = pd.DatetimeIndex(series.times[-1] + steps, name="time")
        table = pd.DataFrame(
            np.where(unknown, np.nan, self.scaler.inverse(z, cell_axis=1)),
            series.zoned(times),
            pd.Index(self.cells, name="cell"),
        )
        table.attrs = {"service": self.service, "units": self.units}
        return table

    def save(self, folder: Path) -> None:
        """Write both files, each atomically."""
        extra = {f"scaler/{name}": a for name, a in self.scaler.state().items()}
        if self.calibration is not None:
            extra |= self.calibration.state()
        about = {
            "settings": self.config.flat(),
            "step": str(self.step),
            "cells": self.cells.tolist(),
            "round": self.predictor.round,
            **{name: kind(getattr(self, name)) for name, kind in ENTRIES.items()},
        }
        if not self.clients.by_cell:
            about["clients"] = self.clients.labels
        model_files.write_model(folder, MODEL, about, {**self.predictor.state(), **extra})

    @classmethod
    def load(cls, folder: Path, device: str = "auto", *, mapped: bool = False) -> Self:
        """Read a saved model from its folder or that of its run; see `Forecaster.load`.

        It forecasts once, unless its files are as these versions of the packages wrote them.
        """
        saved = model_files.read_model(folder, MODEL, "Forecaster.save", mapped=mapped)
        folder, about, arrays = saved
        with model_files.restoring(folder):
            settings = {**about["settings"], "device": device}
            config = resolve(**read_by(settings["method"], settings))
            model = cls._restored(config, about, arrays)
            if not model_files.as_written(about):
                model._rehearse()
        return model

    @classmethod
    def _restored(
        cls, config: Config, about: Mapping[str, Any], arrays: dict[str, np.ndarray]
    ) -> Self:
        """Restore a model from the contents of its files."""
        scaler = _saved_scaler(arrays)
        of_bounds = {n: arrays.pop(n) for n in list(arrays) if n.startswith(PREFIX)}
        step, cells, clients = _saved_cells(about)
        config = config.at(step)
        predictor = restore_predictor(config, arrays, int(about["round"]), clients)
        calibration = None
        if config.has_intervals:
            shape = len(cells), config.window.horizon
            calibration = Calibration.from_state(of_bounds, config.interval.intervals, *shape)
        return cls(
            config, cells, step, scaler=scaler, predictor=predictor, clients=clients,
            calibration=calibration, **_saved_entries(about),
        )  # fmt: skip

    def _rehearse(self) -> None:
        """Forecast once from zeros, so that arrays that do not fit the settings fail here."""
        # Forecasters that read no windows look back a week at most.
        season = 0 if self.predictor.reads_windows else math.ceil(WEEK / self.step)
        n_steps = max(2, self.reach, season)
        check_size(64 * n_steps * len(self.cells), f"{n_steps} steps of {len(self.cells)} cells")
        times = pd.date_range("2013-11-01", periods=n_steps, freq=self.step)
        empty = zeros(
            times, self.cells, self.service, self.config.window, self.units, self.time_zone
        )
        with np.errstate(all="ignore"):
            forecast = self.predict(self.read(empty))
        if not np.isfinite(forecast.to_numpy()).all():
            raise InputError(f"its forecasts are not finite; {AGAIN}")


def saved_scaler(folder: Path) -> Scaler:
    """Read the scaler alone of a saved model, from its folder or that of its run."""
    folder, _, arrays = model_files.read_model(folder, MODEL, "Forecaster.save")
    with model_files.restoring(folder):
        return _saved_scaler(arrays)


def _saved_scaler(arrays: dict[str, np.ndarray]) -> Scaler:
    """Take a scaler's arrays out of those of a saved model."""
    names = ["scaler/mean", "scaler/std"]
    names += [name for name in arrays if name.startswith("scaler/") and name not in names]
    saved = {name: arrays.pop(name) for name in names}
    model_files.check_finite_arrays(saved)
    for name, values in saved.items():
        if name.endswith("std") and not (values > 0).all():
            raise InputError(f"{name} has values that are not above 0; {AGAIN}")
    return Scaler.from_state({name.removeprefix("scaler/"): v for name, v in saved.items()})


def _saved_cells(about: Mapping[str, Any]) -> tuple[pd.Timedelta, np.ndarray, Partition]:
    """Return the step, the cells and the clients that a description says."""
    step, cells = pd.Timedelta(about["step"]), np.asarray(about["cells"])
    if step <= pd.Timedelta(0):
        raise InputError(f"step is {about['step']}, expected a time above 0; {AGAIN}")
    if (twice := pd.Index(cells).duplicated()).any():
        raise InputError(f"cell {cells[twice][0]} occurs more than once; {AGAIN}")
    labels = about.get("clients")
    clients = one_per_cell(cells) if labels is None else Partition.from_labels(labels)
    if (n := len(clients.client_of)) != len(cells):
        raise InputError(f"clients of {n} cells, there are {len(cells)}; {AGAIN}")
    return step, cells, clients


def _saved_entries(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that a description holds as they are."""
    about = {"zero_is_missing": False, **about}  # Models that were saved earlier lack it.
    entries = {name: about[name] for name in ENTRIES}
    for name, value in entries.items():
        if not isinstance(value, ENTRIES[name]):
            expected = {str: "text", bool: "true or false", dict: "entries by name"}
            raise InputError(f"{name} is {value!r}, expected {expected[ENTRIES[name]]}; {AGAIN}")
    if entries["time_zone"] not in ("", LOCAL):
        check_time_zone(entries["time_zone"])
    return entries


def _call(params: Mapping[str, Any]) -> str:
    """Return the call that makes a forecaster of these parameters.

    >>> _call({"method": "fuels", "rounds": 3})
    "Forecaster('fuels', rounds=3)"
    """
    method, *settings = params.items()
    texts = [repr(method[1]), *(f"{name}={value!r}" for name, value in settings)]
    return f"Forecaster({', '.join(texts)})"


def call_in_one_line(params: Mapping[str, Any], model: FittedModel | None) -> str:
    """Return one line: the call, and what it was fitted on."""
    if model is None:
        return _call(params)
    return f"<{_call(params)}, fitted: {_fitted(model)}>"


def _fitted(model: FittedModel) -> str:
    horizon = model.config.window.horizon
    return (
        f"{with_unit(model.service, model.units)} of {counted(len(model.cells), 'cell')}, "
        f"steps of {in_words(1, model.step)}, "
        f"{in_words(horizon, model.step)} ahead"
    )


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
            "forecasts": with_unit(model.service, model.units),
            "cells": f"{len(model.cells)}: {', '.join(map(str, model.cells[:5]))}"
            + (", …" if len(model.cells) > 5 else ""),
            "step": in_words(1, model.step),
            "time zone": model.time_zone or "none",
            "horizon": f"{counted(horizon, 'step')}, {in_words(horizon, model.step)}",
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
