"""How a federation stands, from the events in the server's log.

The server appends its log as lines of JSON to `server.jsonl` in its results. Whoever reads them in
order knows rounds, nodes and failures, also those before the server was started again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.errors import InputError

EVENTS = "server.jsonl"
"""Name of the file of events in the server's results."""

WAITING, RUNNING, FINISHED, FAILED = "waiting for nodes", "running", "finished", "failed"
"""States of a run."""


@dataclass
class NodeStanding:
    """How a node stands.

    Attributes:
        first: number of its first client.
        last: number of its last client.
        connected: whether it is connected.
        joins: how often it joined.
        failures: messages of a round that it did not answer usably.
        reason: why, the last time.
        strikes: failures since its last usable answer.
        suspended: whether nobody waits for it until it answers again.
    """

    first: int = -1
    last: int = -1
    connected: bool = False
    joins: int = 0
    failures: int = 0
    reason: str = ""
    strikes: int = 0
    suspended: bool = False


@dataclass
class Standing:
    """How a federation stands.

    Attributes:
        state: one of `WAITING`, `RUNNING`, `FINISHED` and `FAILED`.
        method: name of the method.
        planned: rounds that the settings ask for.
        clients: clients of the whole federation.
        starts: how often the server was started.
        rounds: reports of the rounds, see `stforecast.federated.server.RoundReport`.
        nodes: nodes that joined, by Flower's number.
        refused: why nodes were not let in, by Flower's number.
        errors_left_out: why nodes do not count in the test errors, by Flower's number.
        rounds_lost: rounds that were repeated, as no aggregate of their uploads was sound.
        sums_recovered: secure sums that were complete though nodes left them.
        sums_lost: secure sums that were lost, so that their rounds were repeated.
        lost_because: why a round or a sum was lost, the last time.
        reason: why the run failed.
        test: test errors over all nodes, at the end.
        best_round: the best round, at the end.
        since: time of the last event.
    """

    state: str = WAITING
    method: str = ""
    planned: int = 0
    clients: int = 0
    starts: int = 0
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[int, NodeStanding] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    errors_left_out: dict[int, str] = field(default_factory=dict)
    rounds_lost: int = 0
    sums_recovered: int = 0
    sums_lost: int = 0
    lost_because: str = ""
    reason: str = ""
    test: dict[str, float] = field(default_factory=dict)
    best_round: int | None = None
    since: str = ""

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Standing:
        """Return the standing after all events."""
        standing = cls()
        for each in events:
            standing.apply(each)
        return standing

    @property
    def connected(self) -> list[NodeStanding]:
        """Return the nodes that are connected."""
        return [node for node in self.nodes.values() if node.connected]

    @property
    def connected_clients(self) -> int:
        """Return the number of clients of the connected nodes."""
        return sum(node.last - node.first + 1 for node in self.connected)

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event into account; records without one are passed over."""
        if handle := getattr(self, f"_on_{event.get('event')}", None):
            with contextlib.suppress(KeyError, TypeError):  # An event of another version.
                handle(event)
        self.since = event.get("time", self.since)

    def _on_start(self, event: Mapping[str, Any]) -> None:
        self.method, self.planned = event["method"], event["rounds"]
        self.clients, self.starts = event["clients"], self.starts + 1
        self.state, self.reason = WAITING, ""
        for node in self.nodes.values():
            node.connected = False

    def _on_joined(self, event: Mapping[str, Any]) -> None:
        node = self.nodes.setdefault(event["node"], NodeStanding())
        node.first, node.last, node.connected = event["first"], event["last"], True
        node.joins, node.suspended = node.joins + 1, False
        self.refused.pop(event["node"], None)

    def _on_lost(self, event: Mapping[str, Any]) -> None:
        self.nodes.setdefault(event["node"], NodeStanding()).connected = False

    def _on_refused(self, event: Mapping[str, Any]) -> None:
        self.refused[event["node"]] = event["reason"]

    def _on_expelled(self, event: Mapping[str, Any]) -> None:
        self._on_lost(event)
        self.refused[event["node"]] = event["reason"]

    def _on_suspended(self, event: Mapping[str, Any]) -> None:
        self._on_lost(event)
        self.nodes[event["node"]].suspended = True

    def _on_left_out(self, event: Mapping[str, Any]) -> None:
        node = self.nodes.setdefault(event["node"], NodeStanding())
        node.failures, node.reason = node.failures + 1, event["reason"]
        node.strikes = event.get("strikes", node.strikes)

    def _on_answered(self, event: Mapping[str, Any]) -> None:
        self.nodes[event["node"]].strikes = 0

    _on_did_not_finish = _on_left_out

    def _on_left_sum(self, event: Mapping[str, Any]) -> None:
        reason = f"left the sum at {event['task']}: {event['reason']}"
        self._on_left_out({**event, "reason": reason})

    def _on_errors_left_out(self, event: Mapping[str, Any]) -> None:
        self.errors_left_out[event["node"]] = event["reason"]

    def _on_round_lost(self, event: Mapping[str, Any]) -> None:
        self.rounds_lost, self.lost_because = self.rounds_lost + 1, event["reason"]

    def _on_resumed(self, event: Mapping[str, Any]) -> None:
        self.rounds = {n: of for n, of in self.rounds.items() if n <= event["round"]}

    def _on_sum_recovered(self, event: Mapping[str, Any]) -> None:
        self.sums_recovered += 1

    def _on_sum_lost(self, event: Mapping[str, Any]) -> None:
        self.sums_lost, self.lost_because = self.sums_lost + 1, event["reason"]

    def _on_gathered(self, event: Mapping[str, Any]) -> None:
        self.state = RUNNING

    def _on_round(self, event: Mapping[str, Any]) -> None:
        self.rounds[event["round"]] = dict(event)

    def _on_failed(self, event: Mapping[str, Any]) -> None:
        self.state, self.reason = FAILED, event["reason"]

    def _on_finished(self, event: Mapping[str, Any]) -> None:
        self.state, self.test = FINISHED, event["test"]
        self.best_round = event["best_round"]


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a server's results; a line that was cut off is passed over.

    Args:
        folder: the server's results.

    Raises:
        InputError: if there are none.
    """
    path = folder / EVENTS
    if not path.is_file():
        raise InputError(
            f"{folder}: no {EVENTS} here; give the --results of a federation whose run has begun"
        )
    with path.open(errors="replace") as lines:
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found
