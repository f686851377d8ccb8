"""A SuperNode's side: a cube whose cells are clients of the federation, or all of them one client.

The node's configuration, set by its owner, gives the path of its data and their clients' numbers in
the federation; the server cannot change it:

    data            path of the cube
    first-client    number of its first client in the whole federation, from 0
    out             folder for the clients' state and results; by default beside the cube
    require-secure-aggregation      true: refuse runs whose server learns more than sums

At the end the folder holds `metrics.csv`, the errors of this node's cells, `clients.csv`, those of
its clients if they have several cells, and `model/`, the forecaster of this node's cells, which
`Forecaster.load` reads and which needs no server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.base.errors import InputError, Words, in_minutes
from stforecast.bench.run_groups import pooled, select
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import flatten
from stforecast.federated.core.state import Clients, State
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.masker import masker_beside
from stforecast.federated.nodes.messages import Message
from stforecast.federated.nodes.node import Node, behind_link
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import write_csv
from stforecast.flower.hand_over import SECURE_ONLY
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import Config, resolve, sections
from stforecast.forecasting.evaluate import Evaluation, error_table
from stforecast.forecasting.model import FittedModel
from stforecast.forecasting.trained_method import (
    TrainedMethod,
    build_method,
    cells_of_clients,
    client_samples,
)

log = logging.getLogger(__name__)

TOKEN = re.compile("[0-9a-f]{16}")
"""The server's name of a run, which is part of a path on the node."""

STATE = "checkpoints"
"""Folder of the clients' state, in that of a run."""

ALONE = "solo"
"""Method of a node's saved model, which has no server."""


class Place(NamedTuple):
    """Configuration of a node, see above."""

    data: Path
    first: int
    out: Path

    @classmethod
    def of(cls, node_config: Mapping[str, Any], token: object) -> Place:
        """Read a node's configuration.

        `token` is the server's name of the run, 16 hexadecimal digits. Flower's own number of a run
        changes when its server is started again.
        """
        try:
            data, first = Path(str(node_config["data"])), int(node_config["first-client"])
        except (KeyError, ValueError) as e:
            raise InputError(
                f"the node's configuration has no usable {e}; ",
                Words('start the node with {node_config:data="CUBE.nc" first-client=0}'),
            ) from e
        if not data.is_file():
            raise InputError(f"{data}: no such file; give the path of this node's cube as data")
        out = Path(str(node_config.get("out", data.with_suffix(".federation"))))
        return cls(data, first, out).of_run(token)

    def of_run(self, token: object) -> Place:
        """Return the place with the folder of a run in its `out`."""
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            raise InputError(
                f"the server calls the run {token!r:.40}; it may be of another version"
            )
        return self._replace(out=self.out / f"run-{token}")


class SecureAggregationRequired(InputError):
    """Raised for a run without secure aggregation, on a node that takes part in no other."""


def check_secure_only(run: RunSettings, node_config: Mapping[str, Any]) -> None:
    """Check that a run has secure aggregation if the node requires it."""
    if run.secure is None and node_config.get(SECURE_ONLY):
        raise SecureAggregationRequired(
            "the run has no secure aggregation, which this node requires; ",
            Words("ask the server's owner for {secure_aggregation} of federate, or leave out "),
            Words("{require_secure_aggregation}"),
        )


class FlowerNode:
    """Answers the server's messages with the clients of one cube; `before` is that of `Node`."""

    def __init__(self, run: RunSettings, place: Place, before: int | None = None) -> None:
        window = run.config.window
        if window.columns:
            raise InputError(
                f"static is {window.static!r}, but a node cannot scale columns over the cells of "
                "all nodes; ",
                Words("leave out {static}"),
            )
        series = as_series(place.data, run.config.data.service, window)
        if series.calendar.step != run.step:
            raise InputError(
                f"{place.data}: steps of {in_minutes(series.calendar.step)}, the federation's are "
                f"{in_minutes(run.step)}; ",
                Words("resample the cube, or give federate {step}"),
            )
        if run.units:
            series = series.in_units(run.units, "the federation")
        if run.time_zone:
            series = series.in_zone(run.time_zone, "the federation")
        else:
            log.info(
                "%s: calendar and lags follow the zone of this node's data (%s), as the federation "
                "names none",
                place.data,
                series.time_zone,
            )
        config, self.folder = run.config.at(run.step), place.out
        own = config.data
        data = prepare(series, config.window, own.split, own.scale, config.clients, own.outliers)
        self.config, self.data = config, data
        method = behind_link(build_method(config, cells_of_clients(config, data)))
        parts = (data.split.train, data.split.validation)
        train, validation = client_samples(method, data, *parts)
        trainer = Trainer(
            method,
            train,
            validation,
            seed=config.run.seed,
            device=pick_device(config.run.device),
            uplink=config.uplink,
            first=place.first,
            n_clients=run.n_clients,
        )
        cube = fingerprint(*series.identity())
        about = {"settings": config.flat(), "cube": cube, **data.identity()}
        whole = place._replace(out=place.out.parent)
        earlier = whole.of_run(run.after).out / STATE if run.after else None
        self.node = Node(trainer, place.out / STATE, about, before, run.secure, earlier)

    def current(self, before: int | None) -> bool:
        """Return whether this object alone changed its files, and has not seen round `before`."""
        return self.node.current and (before is None or self.node.rounds <= before)

    def answer(self, message: Message) -> Message:
        """Return the node's answer to a message."""
        task = message.about.get("task")
        if task == "join":
            return self.node.join()
        if task == "round":
            return self.node.round(message)
        if task == "finish":
            return self._finish(message)
        raise InputError(f"the server asks for {task!r}; it may be of another version")

    def _finish(self, message: Message) -> Message:
        """Evaluate and save the models; send the server only mean errors, not those of clients."""
        config, method = self.config, self.node.trainer.method
        states = self.node.finish(message)
        view = method.views[0]
        trained = {
            name: TrainedMethod(config, method, state, self.data.clients, view)
            for name, state in states.items()
        }
        models = {n: FittedModel.of(config, self.data, t) for n, t in trained.items()}
        evaluations = {n: Evaluation(model, self.data) for n, model in models.items()}
        table = error_table(evaluations)
        write_csv(table, self.folder / "metrics.csv")
        if not self.data.clients.by_cell:
            write_csv(error_table(evaluations, "client"), self.folder / "clients.csv")
        has_best = config.run.select in states
        selection = config.run.select if has_best else "last"
        # Then the server's message can be copied into the clients' models.
        saved = type(method).predict is Method.predict and not method.personalises
        if saved:
            self._save(states[selection])
        own = select(pooled(table), split="test", selection=selection)
        errors = dict(zip(own["metric"], own["value"].astype(float), strict=True))
        _, known = self.data.test_targets
        if not has_best:
            log.warning(
                "this node was not there for the best round, %d: its models and errors are those "
                "of the last, and do not count in the federation's",
                message.about["best"],
            )
        return self.node.report(message, errors, int(known.sum()), saved, has_best)

    def _save(self, state: State) -> None:
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
        FittedModel.of(config, self.data, predictor).save(self.folder / "model")


def in_sum(run: RunSettings, place: Place, message: Message) -> Message:
    """Return a node's answer to a message of a secure sum, for which it reads no data."""
    assert run.secure
    return masker_beside(place.out / STATE, place.first, run.secure).answer(message)


def alone(config: Config) -> Config:
    """Return the settings of a node's saved model: all but the method's."""
    types = sections(ALONE, config.run.model)
    parts = [getattr(config, name) for name in types if name != "method_options"]
    return resolve(ALONE, **flatten(*parts))
