"""A SuperNode's side: some clients of the federation, whose data stay here.

The node's configuration, set by its owner, gives the path of its data and their clients' numbers in
the federation (`stforecast.flower.node_settings.NodeSettings`); the server cannot change it.

At the end the folder holds the results of this node's clients, see `OwnClients`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from data_prep.base.errors import InputError, Words
from stforecast.federated.nodes.disclosure import check_node, fewest_of_sums, warn_owner
from stforecast.federated.nodes.masker import Masker, masker_beside
from stforecast.federated.nodes.messages import Message
from stforecast.federated.nodes.node import Node
from stforecast.federated.nodes.run_settings import FederationSettings
from stforecast.federated.runs.run_folder import CHECKPOINTS, writing
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.cube_clients import CubeClients
from stforecast.flower.node_settings import ALLOW, GROUPS, SECURE_ONLY, SHARE_TOTALS
from stforecast.flower.settings import RunSettings
from stforecast.flower.totals import groups_of_node, part_of_node

log = logging.getLogger(__name__)


class NodePlace(NamedTuple):
    """Configuration of a node, see above."""

    data: Path
    first: int
    out: Path
    allow_disclosure: bool = False
    model: str = ""
    share_totals: bool = False
    groups: str = ""

    @classmethod
    def of(cls, node_config: Mapping[str, Any], token: object) -> NodePlace:
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
        if not data.exists():
            raise InputError(
                f"{data}: no such file; give the path of this node's cube or images as data"
            )
        out = Path(str(node_config.get("out", data.with_suffix(".federation"))))
        allowed, model = bool(node_config.get(ALLOW)), str(node_config.get("model", ""))
        shares, groups = bool(node_config.get(SHARE_TOTALS)), str(node_config.get(GROUPS, ""))
        return cls(data, first, out, allowed, model, shares, groups).of_run(token)

    def of_run(self, token: object) -> NodePlace:
        """Return the place with the folder of a run in its `out`."""
        if not isinstance(token, str) or not re.fullmatch("[0-9a-f]{16}", token):
            raise InputError(
                f"the server calls the run {token!r:.40}; it may be of another version"
            )
        return self._replace(out=self.out / f"run-{token}")


class SecureAggregationRequired(InputError):
    """Raised for a run without secure aggregation, on a node that takes part in no other."""


def check_allowed(run: FederationSettings, node_config: Mapping[str, Any]) -> None:
    """Check that a run discloses no more than the node's owner allows."""
    if run.secure is None and node_config.get(SECURE_ONLY):
        raise SecureAggregationRequired(
            "the run has no secure aggregation, which this node requires; ",
            Words("ask the server's owner for {secure_aggregation} of federate, or leave out "),
            Words("{require_secure_aggregation}"),
        )
    check_node(run, allowed=bool(node_config.get(ALLOW)))


class FlowerNode:
    """Answers the server's messages with a node's clients; `before` is that of `Node`."""

    def __init__(
        self, run: FederationSettings, place: NodePlace, before: int | None = None
    ) -> None:
        self.run, self.folder = run, place.out
        self.own = run.clients_at(place.data, place.first, place.model)
        if isinstance(self.own, CubeClients):  # A fault of the table is found before training.
            groups_of_node(place, self.own.data.series)
        with writing(place.out):
            place.out.mkdir(parents=True, exist_ok=True)
        about = {"settings": run.chosen.flat(), **self.own.identity}
        whole = place._replace(out=place.out.parent)
        earlier = whole.of_run(run.after).out / CHECKPOINTS if run.after else None
        self.allowed = place.allow_disclosure
        self.node = Node(
            self.own.trainer,
            place.out / CHECKPOINTS,
            about,
            before,
            run.secure,
            earlier,
            fewest_of_sums(run, allowed=self.allowed),
            self.own.refit_trainer,
            self.own.select,
        )

    def current(self, before: int | None) -> bool:
        """Return whether this object alone changed its files, and has not seen round `before`."""
        return self.node.current and (before is None or self.node.rounds <= before)

    def answer(self, message: Message) -> Message:
        """Return the node's answer to a message."""
        task = message.about.get("task")
        if task == "join":
            clients = self.own.trainer.train_data
            n_cells = clients.cells_of(torch.arange(len(clients)))
            warn_owner(self.run, n_cells, allowed=self.allowed)
            return self.node.join(message.about.get("refit", ""))
        if task == "round":
            return self.node.round(message)
        if task == "finish":
            return self._finish(message)
        raise InputError(f"the server asks for {task!r}; it may be of another version")

    def _finish(self, message: Message) -> Message:
        """Evaluate and save the models; send the server only mean errors, not those of clients."""
        states = self.node.finish(message)
        has_best = self.own.select in states
        errors, targets = self.own.finish(states, self.folder)
        if not has_best:
            log.warning(
                "this node was not there for the best round, %d: its models and errors are those "
                "of the last, and do not count in the federation's",
                message.about["best"],
            )
        log.info("the run has ended; %s holds metrics.csv and model/", self.folder)
        metrics = self.run.metrics
        return self.node.report(message, errors, targets, has_best=has_best, metrics=metrics)


def in_sum(run: FederationSettings, place: NodePlace, message: Message) -> Message:
    """Return a node's answer to a message of a secure sum, for which it reads no data."""
    return _masker(run, place).answer(message)


def in_totals(run: FederationSettings, place: NodePlace, message: Message) -> Message:
    """Return a node's answer to a message of totals, for which it trains no clients."""
    if not (isinstance(run, RunSettings) and run.totals):
        raise InputError("the server asks for totals, which are not among the run's settings")
    return part_of_node(place, _masker(run, place), message)


def _masker(run: FederationSettings, place: NodePlace) -> Masker:
    """Return the masker of a node's sums, also of a run whose uploads are plain."""
    fewest = fewest_of_sums(run, allowed=place.allow_disclosure)
    return masker_beside(place.out / CHECKPOINTS, place.first, run.secure or SecureSums(), fewest)
