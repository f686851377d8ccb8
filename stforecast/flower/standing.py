"""How a federation stands, from the events in the server's log.

The server appends its log as lines of JSON to `server.jsonl` in its results. Whoever reads them in
order knows rounds, nodes and failures, also those before the server was started again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_prep.base.errors import InputError, Words
from stforecast.federated.runs.run_folder import AGAIN, LINES, read_csv

RESULTS = "federation.json"
"""Name of the file that a server writes at the end of its run."""

JOURNAL = "server.jsonl"
"""Name of the file of events in the server's results."""

WAITING, RUNNING, FINISHED, FAILED = "waiting for nodes", "running", "finished", "failed"
"""States of a run."""

log = logging.getLogger(__name__)


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
        rounds: reports of the rounds, see `stforecast.federated.engine.rounds.RoundReport`.
        nodes: nodes that joined, by Flower's number.
        refused: why nodes were not let in, by Flower's number.
        errors_left_out: why nodes do not count in the test errors, by Flower's number.
        errors_doubtful: why nodes that count in them are doubtful.
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
    errors_doubtful: dict[int, str] = field(default_factory=dict)
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
        with contextlib.suppress(KeyError, TypeError):  # An event of another version.
            self._apply_named(event.get("event"), event)
        self.since = event.get("time", self.since)

    def _apply_named(self, name: Any, event: Mapping[str, Any]) -> None:
        match name:
            case "start":
                self.method, self.planned = event["method"], event["rounds"]
                self.clients, self.starts = event["clients"], self.starts + 1
                self.state, self.reason = WAITING, ""
                for node in self.nodes.values():
                    node.connected = False
            case "joined":
                node = self._node(event)
                node.first, node.last, node.connected = event["first"], event["last"], True
                node.joins, node.suspended = node.joins + 1, False
                self.refused.pop(event["node"], None)
            case "lost":
                self._node(event).connected = False
            case "refused":
                self.refused[event["node"]] = event["reason"]
            case "expelled":
                self._node(event).connected = False
                self.refused[event["node"]] = event["reason"]
            case "suspended":
                node = self._node(event)
                node.connected, node.suspended = False, True
            case "left_out" | "did_not_finish" | "left_sum":
                reason, node = event["reason"], self._node(event)
                if name == "left_sum":
                    reason = f"left the sum at {event['task']}: {reason}"
                node.failures, node.reason = node.failures + 1, reason
                node.strikes = event.get("strikes", node.strikes)
            case "answered":
                self.nodes[event["node"]].strikes = 0
            case "errors_left_out":
                self.errors_left_out[event["node"]] = event["reason"]
            case "errors_doubtful":
                self.errors_doubtful[event["node"]] = event["reason"]
            case "bounded":
                self._node(event).reason = event["reason"]
            case "round_lost":
                self.rounds_lost, self.lost_because = self.rounds_lost + 1, event["reason"]
            case "resumed":
                self.rounds = {n: of for n, of in self.rounds.items() if n <= event["round"]}
            case "sum_recovered":
                self.sums_recovered += 1
            case "sum_lost":
                self.sums_lost, self.lost_because = self.sums_lost + 1, event["reason"]
            case "gathered":
                self.state = RUNNING
            case "round":
                self.rounds[event["round"]] = dict(event)
            case "failed":
                self.state, self.reason = FAILED, event["reason"]
            case "finished":
                self.state, self.test = FINISHED, event["test"]
                self.best_round = event["best_round"]

    def _node(self, event: Mapping[str, Any]) -> NodeStanding:
        return self.nodes.setdefault(event["node"], NodeStanding())


def read_event_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a server's results; a damaged line is passed over with a notice.

    So is a last line that is still being written, without one.
    """
    path = folder / JOURNAL
    if not path.is_file():
        raise InputError(
            f"{folder}: no {JOURNAL} here; ",
            Words("give the {results} of a federation whose run has begun"),
        )
    with path.open(errors="replace") as lines:
        for i, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                yield found
            elif line.endswith("\n"):
                log.warning("%s: line %d is damaged; what it told is not shown", path, i)


def read_results(folder: Path) -> dict[str, Any] | None:
    """Read what a server wrote at the end of its run; None before it.

    Raises:
        InputError: if it, or a table beside it, is damaged.
    """
    path = folder / RESULTS
    if not path.exists():
        return None
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"{path}: damaged ({type(e).__name__}); {AGAIN}") from e
    lines = about.get(LINES) if isinstance(about, dict) else None
    if not isinstance(lines, dict):
        raise InputError(f"{path}: no results of a federation in it; {AGAIN}")
    for name, n in lines.items():
        read_csv(folder / name, (), lines=n)
    return dict(about)


def status_text(standing: Standing) -> str:
    """Describe the standing in words and tables."""
    refused = (f"node {n} is not let in: {_short(why)}" for n, why in standing.refused.items())
    tables = (_nodes(standing), _rounds(standing))
    parts = ["\n".join(_facts(standing)), *tables, "\n".join(refused)]
    return "\n\n".join(filter(None, parts))


def _facts(s: Standing) -> list[str]:
    lines = [
        f"{s.method}: {s.state}{f' ({s.reason})' if s.reason else ''}",
        f"rounds: {max(s.rounds, default=0)} of {s.planned} complete",
        f"clients connected: {s.connected_clients} of {s.clients} on {len(s.connected)} nodes",
    ]
    if s.starts > 1:
        lines.append(f"the server was started {s.starts} times")
    if s.rounds_lost:
        lines.append(f"rounds repeated: {s.rounds_lost} (the last: {_short(s.lost_because, 90)})")
    if s.sums_recovered:
        lines.append(f"secure sums completed although nodes left: {s.sums_recovered}")
    if s.sums_lost:
        lines.append(f"secure sums lost: {s.sums_lost} (the last: {_short(s.lost_because, 90)})")
    if s.test:
        lines.append("test errors: " + ", ".join(f"{n} {v:.4g}" for n, v in s.test.items()))
    for n, why in s.errors_left_out.items():
        lines.append(f"without those of node {n}: {_short(why)}")
    for n, why in s.errors_doubtful.items():
        lines.append(f"node {n} is doubtful: {_short(why, 90)}")
    if s.since and s.state in (WAITING, RUNNING):
        ago = (datetime.now(UTC) - datetime.fromisoformat(s.since)).total_seconds()
        lines.append(f"last event: {ago:.0f} s ago")
    return lines


def _nodes(s: Standing) -> str:
    rows = []
    for n, v in sorted(s.nodes.items(), key=lambda item: item[1].first):
        there = "silent" if v.suspended else "yes" if v.connected else "no"
        counts = v.joins, v.failures, v.strikes
        rows.append([n, f"{v.first} to {v.last}", there, *counts, _short(v.reason)])
    headers = ["node", "clients", "connected", "joins", "failures", "strikes", "last failure"]
    return _table(rows, headers, disable_numparse=True)


def _rounds(s: Standing) -> str:
    shown = ("round", "train_loss", "validation_loss", "participants", "failed", "seconds")
    rows = [[s.rounds[i].get(name) for name in shown] for i in sorted(s.rounds)[-5:]]
    headers = ["round", "train loss", "validation loss", "clients", "left out", "seconds"]
    return _table(rows, headers, floatfmt=".4g")


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str], **style: Any) -> str:
    from tabulate import tabulate

    return tabulate(rows, headers, **style) if rows else ""


def _short(text: str, most: int = 60) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
