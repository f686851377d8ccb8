"""A node's cube: its cells are clients of the federation, or all of them are one client.

At the end the node's folder holds `metrics.csv`, the errors of its cells, `clients.csv`, those of
its clients if they have several cells, and `model/`, the forecaster of its cells, which
`Forecaster.load` reads and which needs no server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.base.errors import InputError, Words, in_minutes
from stforecast.bench.run_groups import pooled, select
from stforecast.data.prepared import prepare
from stforecast.data.series import Series, as_series
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import flatten
from stforecast.federated.core.state import Clients, State
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.node import behind_link
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.config import Config, resolve, sections
from stforecast.forecasting.evaluate import Evaluation, error_table
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.trained_method import (
    TrainedMethod,
    build_method,
    cells_of_clients,
    client_samples,
)

if TYPE_CHECKING:
    from stforecast.flower.settings import RunSettings

log = logging.getLogger(__name__)

ALONE = "solo"
"""Method of a node's saved model, which has no server."""


class CubeClients:
    """The clients of a cube, see `stforecast.federated.nodes.run_settings.OwnClients`."""

    def __init__(self, run: RunSettings, path: Path, first: int) -> None:
        config, series = run.chosen, _read(run, path)
        own = config.data
        data = prepare(series, config.window, own.split, own.scale, config.clients, own.outliers)
        self.config, self.data = config, data
        self.select: str = config.run.select
        method = behind_link(build_method(config, cells_of_clients(config, data)))
        train, validation = client_samples(method, data, data.split.train, data.split.validation)
        self.trainer = Trainer(
            method,
            train,
            validation,
            seed=config.run.seed,
            device=pick_device(config.run.device),
            uplink=config.uplink,
            first=first,
            n_clients=run.n_clients,
        )
        cube = fingerprint(*series.identity())
        self.identity: Mapping[str, Any] = {"cube": cube, **data.identity()}

    def finish(
        self, states: Mapping[str, State], folder: Path
    ) -> tuple[dict[str, float], int, bool]:
        """Evaluate and save the models; return mean test errors, targets and if one was saved."""
        config, method = self.config, self.trainer.method
        view = method.views[0]
        trained = {
            name: TrainedMethod(config, method, state, self.data.clients, view)
            for name, state in states.items()
        }
        models = {n: FittedModel.of(config, self.data, t) for n, t in trained.items()}
        evaluations = {n: Evaluation(model, self.data) for n, model in models.items()}
        table = error_table(evaluations)
        write_csv(table, folder / "metrics.csv")
        if not self.data.clients.by_cell:
            write_csv(error_table(evaluations, "client"), folder / "clients.csv")
        selection = self.select if self.select in states else "last"
        # Then the server's message can be copied into the clients' models.
        saved = type(method).predict is Method.predict and not method.personalises
        if saved:
            self._save(states[selection], folder / "model")
        own = select(pooled(table), split="test", selection=selection)
        errors = dict(zip(own["metric"], own["value"].astype(float), strict=True))
        _, known = self.data.test_targets
        return errors, int(known.sum()), saved

    def _save(self, state: State, folder: Path) -> None:
        """Save the clients' models with the server's last message as a forecaster."""
        config = alone(self.config)
        method = build_method(config, cells_of_clients(config, self.data))
        whole = {**state.clients.params, **state.clients.buffers, **state.server}
        clients = Clients(
            params={name: whole[name] for name in method.population.parameters(1)},
            buffers={name: whole[name] for name in method.population.buffers(1)},
            moments={},
            sizes=state.clients.sizes,
        )
        alone_state = State(clients, {}, state.round, state.seed)
        predictor = TrainedMethod(config, method, alone_state, self.data.clients)
        FittedModel.of(config, self.data, predictor).save(folder)


def _read(run: RunSettings, path: Path) -> Series:
    """Return the series of a cube, in the unit and the zone of the federation if it has any."""
    window = run.chosen.window
    if window.columns:
        raise InputError(
            f"static is {window.static!r}, but a node cannot scale columns over the cells of "
            "all nodes; ",
            Words("leave out {static}"),
        )
    series = as_series(path, run.config.data.service, window)
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
    log.info(
        "%s: calendar and lags follow the zone of this node's data (%s), as the federation "
        "names none",
        path,
        series.time_zone,
    )
    return series


def alone(config: Config) -> Config:
    """Return the settings of a node's saved model: all but the method's."""
    types = sections(ALONE, config.run.model)
    parts = [getattr(config, name) for name in types if name != "method_options"]
    return resolve(ALONE, **flatten(*parts))
