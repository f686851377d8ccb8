"""A federated method fitted to a series: windows in, forecasts out, state as plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from stforecast.config import Config
from stforecast.federated.data import ClientData
from stforecast.federated.device import pick_device
from stforecast.federated.method import Method, find_method
from stforecast.federated.population import Population, SplitModel
from stforecast.federated.rounds import Federation, RoundReport, predictions
from stforecast.federated.saving import from_arrays, to_arrays
from stforecast.federated.state import State
from stforecast.models import MODELS
from stforecast.splits import Split
from stforecast.task import ForecastTask, client_data
from stforecast.windows import Calendar, day_slots, input_windows, make_windows


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

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows, each from what lies before it.

        Args:
            series: `(steps, cells)`, z-scored, NaN where missing.
            starts: `(windows,)` first target steps; may be the step just after the series.
            calendar: the series' wall clock.

        Returns:
            `(cells, windows, horizon)` float32, z-scored.
        """
        x, _ = input_windows(series, starts, self.config.window, calendar)
        sizes = torch.full((len(x),), len(starts))
        device = next(iter({**self.state.server, **self.state.clients.params}.values())).device
        data = ClientData({"x": torch.from_numpy(x)}, sizes).to(device)
        cohorts, parts = [], []
        for _, forecasts in predictions(self.method, self.state, data, view=self.view):
            parts.append(forecasts.cpu())
            if sum(part.shape[1] for part in parts) == len(starts):
                cohorts.append(torch.cat(parts, dim=1))
                parts = []
        return torch.cat(cohorts).numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """What predicting needs of the state, as plain arrays."""
        return to_arrays(self.method, self.state)

    @classmethod
    def from_arrays(
        cls, config: Config, arrays: Mapping[str, np.ndarray], round: int
    ) -> FittedMethod:
        """The fitted method whose `arrays` these are, on the configured device."""
        state = from_arrays(arrays, round, config.run.seed, pick_device(config.run.device))
        return cls(config, build_method(config), state)


def build_method(config: Config) -> Method:
    """The configured method with a new model."""
    window = config.window

    def build() -> SplitModel:
        model = MODELS[config.run.model]
        return model(window, config.model_options)

    population = Population(build, config.run.seed)
    task = ForecastTask(window.period, config.loss)
    return find_method(config.method)(population, task, config.training, config.method_options)


def train(
    config: Config,
    series: np.ndarray,
    split: Split,
    calendar: Calendar,
    locations: np.ndarray | None = None,
    after_round: Callable[[RoundReport], None] | None = None,
) -> tuple[dict[str, FittedMethod], Federation]:
    """Train the configured method on the training part, watching the validation part.

    Args:
        config: settings.
        series: `(steps, cells)`, z-scored, NaN where missing.
        split: first target steps of each part.
        calendar: the series' wall clock.
        locations: `(cells, 2)` longitude and latitude, for methods that use them.
        after_round: called with each round's report.

    Returns:
        The method after the `last` and after the `best` round (the last one, if there is no
        validation part), with `last (global)` and the like for its other models; and the
        federation with its reports.
    """
    slots = day_slots(
        calendar.local_times(np.arange(len(series))), config.window.period, calendar.step
    )

    def samples(starts: np.ndarray) -> ClientData:
        return client_data(make_windows(series, starts, config.window, slots, calendar), locations)

    federation = Federation(
        build_method(config),
        samples(split.train),
        samples(split.validation) if len(split.validation) else None,
        seed=config.run.seed,
        device=pick_device(config.run.device),
        cohort_size=config.run.cohort or None,
        uplink=config.uplink,
        workers=config.run.workers or torch.get_num_threads(),
    )
    federation.run(after_round)
    last = federation.ready()
    states = {"last": last, "best": federation.best or last}
    method = federation.method
    fitted = {
        name if view == method.views[0] else f"{name} ({view})": FittedMethod(
            config, method, state, view
        )
        for name, state in states.items()
        for view in method.views
    }
    return fitted, federation
