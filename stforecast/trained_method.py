"""A federated method fitted to a series: windows in, forecasts out, state as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from stforecast.config import Config
from stforecast.data.pooling import Cells, Pooled, check_pooled, pool, unpool
from stforecast.data.splits import Split
from stforecast.data.windows import Calendar, day_slots, input_windows, make_windows
from stforecast.federated.data import ClientData
from stforecast.federated.device import pick_device
from stforecast.federated.method import Method
from stforecast.federated.population import Population, SplitModel
from stforecast.federated.predictions import predictions
from stforecast.federated.rounds import Federation
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.saving import from_arrays, to_arrays
from stforecast.federated.server import RoundReport
from stforecast.federated.sizing import parse_bytes
from stforecast.federated.state import State
from stforecast.methods import METHODS
from stforecast.models import build_model
from stforecast.task import ForecastTask, client_data

DESCRIPTION = "forecaster.json"
"""File of a saved forecaster that says what it is."""


@dataclass(frozen=True)
class FittedMethod:
    """A method with the state that training left it.

    Attributes:
        config: settings of the run.
        method: the method, with its model.
        state: clients and server after the chosen round.
        view: which of the method's models predicts; by default its first.
    """

    config: Config
    method: Method
    state: State
    view: str | None = None

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the model forecasts; none if it forecasts one value."""
        return self.config.loss.levels

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows, each from what lies before it; of quantiles, the median.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing.
            starts: `(windows,)` first target steps; may be the step just after the series.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)` float32, z-scored.
        """
        if self.levels:
            return self.quantiles(series, starts, calendar)[..., len(self.levels) // 2]
        return self._outputs(series, starts, calendar)

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast `levels` of windows, in order where the model lets them cross.

        Sorting never makes quantiles worse (Chernozhukov, Fernández-Val, Galichon, Econometrica
        78, 2010).

        Args:
            series: as for `predict`, like the others.
            starts: first target steps.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon, levels)` float32, z-scored.
        """
        outputs = self._outputs(series, starts, calendar)
        return np.sort(outputs.reshape(*outputs.shape[:2], -1, len(self.levels)), axis=-1)

    def _outputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """What the model gives for windows, `(cells, windows, horizon * n_outputs)`."""
        x, _ = input_windows(series, starts, self.config.window, calendar)
        sizes = torch.full((len(x),), len(starts))
        device = next(iter({**self.state.server, **self.state.clients.params}.values())).device
        data = ClientData({"x": torch.from_numpy(x)}, sizes).to(device)
        data = pool(data) if self.method.pooled else data
        cohorts, parts = [], []
        for _, forecasts in predictions(self.method, self.state, data, view=self.view):
            parts.append(forecasts.cpu())
            if sum(part.shape[1] for part in parts) == len(starts):
                cohorts.append(torch.cat(parts, dim=1))
                parts = []
        forecasts = torch.cat(cohorts)
        return (unpool(forecasts, len(x)) if self.method.pooled else forecasts).numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """What predicting needs of the state, as plain arrays."""
        return to_arrays(self.method, self.state)

    @classmethod
    def from_arrays(
        cls, config: Config, arrays: Mapping[str, np.ndarray], round: int, n_cells: int = 1
    ) -> FittedMethod:
        """The fitted method whose `arrays` these are, on the configured device.

        Args:
            config: settings of the run.
            arrays: what `arrays` gave.
            round: the round of the state.
            n_cells: how many cells it was fitted on.
        """
        state = from_arrays(arrays, round, config.run.seed, pick_device(config.run.device))
        cells = Cells(n_cells, np.zeros((n_cells, n_cells)))  # The roads are in the state.
        return cls(config, build_method(config, cells), state)


def build_method(config: Config, cells: Cells | None = None) -> Method:
    """The configured method with a new model.

    Args:
        config: settings.
        cells: all cells, which a method that pools their data has one model for.
    """
    window, method = config.window, METHODS[config.method]

    def build() -> SplitModel:
        outputs = dataclasses.replace(window, horizon=window.horizon * config.loss.n_outputs)
        held = (cells or Cells()) if method.pooled else None
        model = build_model(config.run.model, outputs, config.model_options, held)
        return Pooled(model, window.n_inputs) if method.pooled else model

    population = Population(build, config.run.seed, config.training.mixed_precision)
    task = ForecastTask(window.period, config.loss)
    return method(population, task, config.training, config.method_options)


def train(
    config: Config,
    series: np.ndarray,
    split: Split,
    calendar: Calendar,
    locations: np.ndarray | None = None,
    after_round: Callable[[RoundReport], None] | None = None,
    adjacency: np.ndarray | None = None,
    checkpointer: Checkpointer | None = None,
) -> tuple[dict[str, FittedMethod], Federation]:
    """Train the configured method on the training part, watching the validation part.

    Args:
        config: settings.
        series: `(steps, cells)`, z-scored, NaN where missing.
        split: first target steps of each part.
        calendar: the series' wall clock.
        locations: `(cells, 2)` longitude and latitude, for methods that use them.
        after_round: called with each round's report.
        adjacency: `(cells, cells)` weights of the roads, for models that use them.
        checkpointer: takes checkpoints, and goes on from the newest that it has.

    Returns:
        The method after the `last` and after the `best` round (the last one, if there is no
        validation part), with `last (global)` and the like for its other models; and the
        federation with its reports.
    """
    method = build_method(config, Cells(series.shape[1], adjacency))
    if method.pooled:
        check_pooled(config.method, config.uplink, config.training)
    parts = (split.train, split.validation)
    federation = federate(config, method, series, parts, calendar, locations)
    if checkpointer:
        checkpointer.run(federation, after_round)
    else:
        federation.run(after_round)
    last = federation.ready()
    states = {"last": last, "best": federation.best or last}
    fitted = {
        name if view == method.views[0] else f"{name} ({view})": FittedMethod(
            config, method, state, view
        )
        for name, state in states.items()
        for view in method.views
    }
    return fitted, federation


def federate(
    config: Config,
    method: Method,
    series: np.ndarray,
    parts: tuple[np.ndarray, np.ndarray],
    calendar: Calendar,
    locations: np.ndarray | None = None,
) -> Federation:
    """A method before its first round, with its clients' samples.

    Args:
        config: settings.
        method: the method, with its model.
        series: `(steps, cells)`, z-scored, NaN where missing.
        parts: `(windows,)` first target steps of the training and the validation part, which may
            be empty.
        calendar: the series' wall clock.
        locations: `(cells, 2)` longitude and latitude, for methods that use them.
    """
    train, validation = client_samples(config, method, series, parts, calendar, locations)
    return Federation(
        method,
        train,
        validation,
        seed=config.run.seed,
        device=pick_device(config.run.device),
        cohort_size=config.run.cohort or None,
        uplink=config.uplink,
        robust=config.robust,
        workers=config.run.workers or torch.get_num_threads(),
        memory=parse_bytes(config.run.memory) if config.run.memory else None,
    )


def client_samples(
    config: Config,
    method: Method,
    series: np.ndarray,
    parts: tuple[np.ndarray, np.ndarray],
    calendar: Calendar,
    locations: np.ndarray | None = None,
) -> tuple[ClientData, ClientData | None]:
    """The clients' training and validation samples; takes what `federate` takes."""
    slots = day_slots(
        calendar.local_times(np.arange(len(series))), config.window.period, calendar.step
    )

    def samples(starts: np.ndarray) -> ClientData:
        windows = make_windows(series, starts, config.window, slots, calendar)
        data = client_data(windows, locations)
        return pool(data) if method.pooled else data

    train, validation = parts
    return samples(train), samples(validation) if len(validation) else None
