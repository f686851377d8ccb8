"""Training of a federated method, and the trained method as a predictor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from stforecast.config import Config
from stforecast.data.anchors import with_anchors
from stforecast.data.pooling import Cells, Pooled, check_pooled, pool, unpool
from stforecast.data.prepared import PreparedSeries
from stforecast.data.windows import Calendar, input_windows
from stforecast.federated.data import ClientData
from stforecast.federated.device import pick_device
from stforecast.federated.method import Method
from stforecast.federated.population import Population, SplitModel
from stforecast.federated.predictions import predictions
from stforecast.federated.rounds import Federation
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.saving import check_shapes, from_arrays, to_arrays
from stforecast.federated.server import RoundReport
from stforecast.federated.sizing import parse_bytes
from stforecast.federated.state import State
from stforecast.methods import METHODS
from stforecast.models import build_model
from stforecast.task import ForecastTask, client_data


@dataclass(frozen=True, eq=False)
class TrainedMethod:
    """A method with its trained state; a `stforecast.predictor.Predictor`.

    Attributes:
        config: settings of the run.
        method: the method, with its model.
        snapshot: states of clients and server after the selected round.
        view: name of the method's model that predicts; by default its first.
    """

    config: Config
    method: Method
    snapshot: State
    view: str | None = None

    reads_windows: ClassVar[bool] = True

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the model forecasts; none if it forecasts one value."""
        return self.config.loss.levels

    @property
    def round(self) -> int:
        """Round of its state."""
        return self.snapshot.round

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast `(cells, windows, horizon)`; see `Predictor.predict`."""
        return self.quantiles(series, starts, calendar)[..., len(self.levels) // 2]

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast the quantiles of windows at `levels`, sorted in case the model's cross.

        Sorting never makes quantiles worse (Chernozhukov, Fernández-Val, Galichon, Econometrica
        78, 2010). Arguments and result are those of `Predictor.quantiles`.
        """
        outputs = self._outputs(series, starts, calendar)
        ordered = np.sort(outputs.reshape(*outputs.shape[:2], -1, self.config.loss.n_outputs))
        return with_anchors(ordered, series, starts, self.config.window.target, calendar)

    def _outputs(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Return the model's outputs for windows, `(cells, windows, horizon * n_outputs)`."""
        x = input_windows(series, starts, self.config.window, calendar)
        sizes = torch.full((len(x),), len(starts))
        state = self.snapshot
        device = next(iter({**state.server, **state.clients.params}.values())).device
        data = ClientData({"x": torch.from_numpy(x)}, sizes).to(device)
        data = pool(data) if self.method.pooled else data
        cohorts, parts = [], []
        for _, forecasts in predictions(self.method, state, data, view=self.view):
            parts.append(forecasts.cpu())
            if sum(part.shape[1] for part in parts) == len(starts):
                cohorts.append(torch.cat(parts, dim=1))
                parts = []
        forecasts = torch.cat(cohorts)
        return (unpool(forecasts, len(x)) if self.method.pooled else forecasts).numpy()

    def state(self) -> dict[str, np.ndarray]:
        """Return the state that prediction needs, as plain arrays."""
        return to_arrays(self.method, self.snapshot)

    @classmethod
    def from_state(
        cls, config: Config, arrays: Mapping[str, np.ndarray], round: int, n_cells: int = 1
    ) -> TrainedMethod:
        """Restore a trained method from its `state`, on the configured device.

        Args:
            config: settings of the run.
            arrays: arrays returned by `state`.
            round: round of the state.
            n_cells: number of cells it was trained on.

        Raises:
            InputError: if the arrays do not fit the configured model or are not finite.
        """
        snapshot = from_arrays(arrays, round, config.run.seed, pick_device(config.run.device))
        cells = Cells(n_cells, np.zeros((n_cells, n_cells)))  # The state holds the roads.
        method = build_method(config, cells)
        check_shapes(method, arrays, 1 if method.pooled else n_cells)
        return cls(config, method, snapshot)


def build_method(config: Config, cells: Cells | None = None) -> Method:
    """Build the configured method with a new model.

    Args:
        config: settings.
        cells: all cells, for a method that pools their data and trains one model for all.
    """
    window, method = config.window, METHODS[config.method]

    def build() -> SplitModel:
        outputs = dataclasses.replace(window, horizon=window.horizon * config.loss.n_outputs)
        held = (cells or Cells()) if method.pooled else None
        model = build_model(config.run.model, outputs, config.model_options, held)
        return Pooled(model, window.n_inputs) if method.pooled else model

    population = Population(build, config.run.seed, config.training.mixed_precision)
    task = ForecastTask(window.period, config.loss, window)
    return method(population, task, config.training, config.method_options)


def train(
    config: Config,
    data: PreparedSeries,
    after_round: Callable[[RoundReport], None] | None = None,
    checkpointer: Checkpointer | None = None,
) -> tuple[dict[str, TrainedMethod], Federation]:
    """Train the configured method on the training part and track its validation loss.

    Args:
        config: settings.
        data: the series.
        after_round: called with each round's report.
        checkpointer: writes checkpoints and resumes from the newest one.

    Returns:
        The method after the `last` and after the `best` round (the last one, if there is no
        validation part), and e.g. `last (global)` for its other models; and the federation with its
        reports.
    """
    method = build_method(config, Cells(data.z.shape[1], data.series.adjacency))
    if method.pooled:
        check_pooled(config.method, config.uplink, config.training)
    federation = federate(config, method, data, data.split.train, data.split.validation)
    if checkpointer:
        checkpointer.note_data(*data.series.identity())
        checkpointer.run(federation, after_round)
    else:
        federation.run(after_round)
    last = federation.ready()
    states = {"last": last, "best": federation.best or last}
    trained = {
        name if view == method.views[0] else f"{name} ({view})": TrainedMethod(
            config, method, state, view
        )
        for name, state in states.items()
        for view in method.views
    }
    return trained, federation


def federate(
    config: Config,
    method: Method,
    data: PreparedSeries,
    train: np.ndarray,
    validation: np.ndarray,
) -> Federation:
    """Build the federation of a method and its clients' samples, before the first round.

    Args:
        config: settings.
        method: the method, with its model.
        data: the series.
        train: `(windows,)` first target steps of the training windows.
        validation: `(windows,)` those of the validation windows; may be empty.
    """
    samples = client_samples(method, data, train, validation)
    return Federation(
        method,
        *samples,
        seed=config.run.seed,
        device=pick_device(config.run.device),
        cohort_size=config.run.cohort or None,
        uplink=config.uplink,
        robust=config.robust,
        workers=config.run.workers or torch.get_num_threads(),
        memory=parse_bytes(config.run.memory) if config.run.memory else None,
    )


def client_samples(
    method: Method, data: PreparedSeries, train: np.ndarray, validation: np.ndarray
) -> tuple[ClientData, ClientData | None]:
    """Return the clients' training and validation samples; arguments as in `federate`."""

    def samples(starts: np.ndarray, *, with_next: bool = False) -> ClientData:
        windows = data.windows(starts, with_next=with_next)
        samples = client_data(windows, data.series.locations)
        return pool(samples) if method.pooled else samples

    return (
        samples(train, with_next=method.reads_next),
        samples(validation) if len(validation) else None,
    )
