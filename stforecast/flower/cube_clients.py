"""A node's cube: its cells are clients of the federation, or all of them are one client.

At the end the node's folder is that of a run of its clients, as `stforecast run` writes it, whose
`rounds.csv` is empty: `metrics.csv` has the errors of its cells, and `model/` is the forecaster of
its cells, which `Forecaster.load` reads and which needs no server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, in_minutes
from stforecast.bench.run_groups import pooled, select
from stforecast.data.prepared import PreparedSeries, prepare
from stforecast.data.series import Series, as_series
from stforecast.federated.core.method import Method
from stforecast.federated.core.mixed_models import models_of_node
from stforecast.federated.core.state import State
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.received import behind_link
from stforecast.federated.nodes.run_settings import OwnClients
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import write_about
from stforecast.forecasting.fit import Predictor, check_calibration
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.rolling import Rolling, known_windows
from stforecast.forecasting.runs import UnfinishedForecastRun, places
from stforecast.forecasting.trained_method import (
    TrainedMethod,
    build_method,
    cells_of_clients,
    client_samples,
)
from stforecast.models.mixed import MixedOptions, unread_services, with_own_inputs

if TYPE_CHECKING:
    from stforecast.flower.settings import RunSettings

BEFORE_TEST, ON_ALL = "before the test part", "on all data"
"""Names of the refits, in messages."""


class CubeClients(OwnClients):
    """The clients of a cube, see `stforecast.federated.nodes.run_settings.OwnClients`."""

    def __init__(self, run: RunSettings, path: Path, first: int, model: str = "") -> None:
        config, unread = run.chosen, tuple[str, ...]()
        if model and isinstance(config.model_options, MixedOptions):
            options = with_own_inputs(config.model_options, model)
            config = dataclasses.replace(config, model_options=options)
            unread = unread_services([model], config.window)
        series = _read(run, path, unread)
        own = config.data
        data = prepare(series, config.window, own.split, own.scale, config.clients, own.outliers)
        models = models_of_node(config, model, first, len(data.clients))
        if any(models):
            divided = dataclasses.replace(data.clients, models=tuple(models))
            data = dataclasses.replace(data, divided=divided)
        check_calibration(config, data)
        self.config, self.data, self.path = config, data, path
        self.select: str = config.run.select
        self._run, self._first = run, first
        method = build_method(config, cells_of_clients(config, data))
        self.trainer = self._trainer(method, data, data.split.train, data.split.validation)
        cube = fingerprint(*series.identity())
        own_model = {"model": model} if model else {}
        self.identity: Mapping[str, Any] = {"cube": cube, **own_model, **data.identity()}

    def _trainer(
        self, method: Method, data: PreparedSeries, train: np.ndarray, validation: np.ndarray
    ) -> Trainer:
        """Return a trainer of the clients on some windows, by their first target steps."""
        config = self.config
        return Trainer(
            behind_link(method),
            *client_samples(method, data, train, validation),
            seed=config.run.seed,
            device=pick_device(config.run.device),
            uplink=config.uplink,
            first=self._first,
            n_clients=self._run.n_clients,
        )

    def refit_trainer(self, name: str) -> Trainer:
        """Return the clients' trainer on all windows before the test part, or on all."""
        refits, data = self._run.refits, self.data
        if refits is None or name not in refits.names:
            return super().refit_trainer(name)
        method = build_method(self.config, cells_of_clients(self.config, data))
        method.training = refits.training
        known = known_windows(data, self._cut(name))
        return self._trainer(method, data.until(self._cut(name)), known, known[:0])

    def _cut(self, refit: str) -> int:
        """Return the step before which a refit knows all."""
        return int(self.data.split.test[0]) if refit == BEFORE_TEST else len(self.data.z)

    def finish(self, states: Mapping[str, State], folder: Path) -> tuple[dict[str, float], int]:
        """Write the run of these clients; return their mean test errors, and their targets."""
        data, method = self.data, self.trainer.method
        has_chosen = self.select == "best" and "best" in states
        chosen: Literal["best", "last"] = "best" if has_chosen else "last"
        run = dataclasses.replace(self.config.run, select=chosen)
        config = dataclasses.replace(self.config, run=run)
        trained = {
            name: TrainedMethod(config, method, state, data.clients, of_node=True)
            for name, state in states.items()
            if name in ("last", "best")
        }
        found: dict[str, Predictor] = {**trained}
        if refits := [name for name in states if name not in trained]:
            models = [trained[chosen]]
            for name in refits:
                models.append(models[-1].refitted(states[name]))
            since = np.array([self._cut(name) for name in refits])
            found[chosen] = Rolling(models, since, data.calendar.start)
        forecaster = Forecaster.of(config, data, found)
        begun = {"settings": config.flat(), **places(self.path), "label": config.method}
        of_node = RunOfNode(folder, begun, forecaster)
        of_node.write_results()
        write_about(folder, of_node.describe())
        own = select(pooled(forecaster.evaluate()), split="test", selection=chosen)
        errors = dict(zip(own["metric"], own["value"].astype(float), strict=True))
        _, known = data.test_targets
        return errors, int(known.sum())


class RunOfNode(UnfinishedForecastRun):
    """Writes the run of a node's clients, which knows nothing of the others and of the rounds."""

    def check(self, errors: pd.DataFrame) -> None:
        """Accept all errors: a node may be without readings in its test part."""

    def privacy(self) -> dict[str, Any]:
        """Return nothing: the server says what all uploads together disclose."""
        return {}


def _read(run: RunSettings, path: Path, unread: Sequence[str]) -> Series:
    """Return the series of a cube, in the unit and the zone of the federation if it has any.

    The cube need not hold further services that are `unread`.
    """
    window = run.chosen.window
    if window.columns:
        raise InputError(
            f"static is {window.static!r}, but a node cannot scale columns over the cells of "
            "all nodes; ",
            Words("leave out {static}"),
        )
    series = as_series(path, run.config.data.service, window, unread)
    if series.calendar.step != run.step:
        raise InputError(
            f"{path}: steps of {in_minutes(series.calendar.step)}, the federation's are "
            f"{in_minutes(run.step)}; ",
            Words("resample the cube, or give federate {step}"),
        )
    if run.units:
        series = series.in_units(run.units, "the federation")
    if run.time_zone:
        return series.in_zone(run.time_zone, "the federation")
    return series
