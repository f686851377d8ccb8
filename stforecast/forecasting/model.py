"""Files of a saved forecaster: `forecaster.json` and `state.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.readers.times import check_time_zone
from stforecast.data.clients import Partition, one_per_cell
from stforecast.data.scaling import Limits, Scaler
from stforecast.data.series import LOCAL
from stforecast.federated.runs.model_files import AGAIN, check_finite, write_model
from stforecast.forecasting.config import Config
from stforecast.forecasting.fit import restore
from stforecast.forecasting.predictor import Predictor
from stforecast.forecasting.results import MODEL
from stforecast.intervals.calibration import PREFIX, Calibration


@dataclass(frozen=True, eq=False)
class SavedForecaster:
    """A fitted forecaster without the data that it was fitted on.

    Attributes:
        config: settings, with windows in steps of the data.
        cells: `(cells,)` ids.
        step: length of a time step.
        service: name of the forecast variable.
        units: unit of the service.
        scaler: scaler fitted on the training part.
        predictor: the selected model.
        calibration: what calibrates its bounds; None without intervals.
        non_negative: whether no training value was below 0.
        clients: the client of each cell; None if each cell is a client.
        adapted: whether it was adapted to new cells, whose histories may be short.
        trained_on: `data`, their name, and `first` and `last` target of the training part in local
            time; empty if that is not known.
        time_zone: zone of its data, as `Series.time_zone`; None if it was saved without it.
    """

    config: Config
    cells: np.ndarray
    step: pd.Timedelta
    service: str
    units: str
    scaler: Scaler
    predictor: Predictor
    calibration: Calibration | None = None
    non_negative: bool = False
    clients: Partition | None = None
    adapted: bool = False
    trained_on: Mapping[str, str] = field(default_factory=dict)
    time_zone: str | None = None

    @property
    def limits(self) -> Limits:
        """Lowest and highest value of its forecasts and bounds."""
        return self.config.data.limits(self.non_negative)

    def write(self, folder: Path) -> None:
        """Write both files, each atomically."""
        extra = {f"scaler/{name}": a for name, a in self.scaler.state().items()}
        if self.calibration is not None:
            extra |= self.calibration.state()
        about = {
            "settings": self.config.flat(),
            "service": self.service,
            "units": self.units,
            "step": str(self.step),
            "cells": self.cells.tolist(),
            "round": self.predictor.round,
            "non_negative": self.non_negative,
            **({"adapted": True} if self.adapted else {}),
            **({"trained_on": dict(self.trained_on)} if self.trained_on else {}),
            **({} if self.time_zone is None else {"time_zone": self.time_zone}),
        }
        if self.clients is not None and not self.clients.by_cell:
            about["clients"] = self.clients.labels
        write_model(folder, MODEL, about, {**self.predictor.state(), **extra})

    @classmethod
    def of_files(
        cls, config: Config, about: Mapping[str, Any], arrays: dict[str, np.ndarray]
    ) -> SavedForecaster:
        """Restore a forecaster from the contents of its files.

        Args:
            config: its settings.
            about: contents of `forecaster.json`.
            arrays: contents of `state.safetensors`.

        Raises:
            InputError: if an array does not fit the settings.
            KeyError: if an array is missing.
        """
        saved = ["scaler/mean", "scaler/std"]
        saved += [name for name in arrays if name.startswith("scaler/") and name not in saved]
        scaler = {name.removeprefix("scaler/"): arrays.pop(name) for name in saved}
        check_finite({f"scaler/{name}": values for name, values in scaler.items()})
        for name, values in scaler.items():
            if name.endswith("std") and not (values > 0).all():
                raise InputError(f"scaler/{name} has values that are not above 0; {AGAIN}")
        of_bounds = {n: arrays.pop(n) for n in list(arrays) if n.startswith(PREFIX)}
        step, cells = pd.Timedelta(about["step"]), np.asarray(about["cells"])
        if step <= pd.Timedelta(0):
            raise InputError(f"step is {about['step']}, expected a time above 0; {AGAIN}")
        if (twice := pd.Index(cells).duplicated()).any():
            raise InputError(f"cell {cells[twice][0]} occurs more than once; {AGAIN}")
        zone = about.get("time_zone")
        if zone not in (None, "", LOCAL):
            check_time_zone(str(zone))
        config = config.at(step)
        labels = about.get("clients")
        clients = one_per_cell(cells) if labels is None else Partition.from_labels(labels)
        if (n := len(clients.client_of)) != len(cells):
            raise InputError(f"clients of {n} cells, there are {len(cells)}; {AGAIN}")
        predictor = restore(config, arrays, int(about["round"]), clients)
        shape, calibration = (len(cells), config.window.horizon), None
        if config.has_intervals:
            calibration = Calibration.from_state(of_bounds, config.interval.intervals, *shape)
        return cls(
            config, cells, step, str(about["service"]), str(about["units"]),
            Scaler.from_state(scaler), predictor, calibration, about.get("non_negative") is True,
            clients, about.get("adapted") is True, about.get("trained_on", {}), zone,
        )  # fmt: skip
