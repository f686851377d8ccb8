"""What programs read of a running federation: events as lines of JSON, and Prometheus's metrics.

The metrics are in Prometheus's text format, for node-exporter's textfile collector; see
https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_prep.base.errors import CommandFormatter, log_text, plain
from data_prep.base.files import atomic_path
from stforecast.flower.standing import (
    FAILED,
    FINISHED,
    JOURNAL,
    RUNNING,
    WAITING,
    Standing,
    read_event_log,
)


class JsonLines(CommandFormatter):
    """Formats a record as one line of JSON.

    It holds the time (UTC), level, logger and message, and the fields that the log call passed as
    `extra={"fields": …}`. Numbers that are not finite, which JSON has not, are null.

    >>> record = logging.LogRecord("a", logging.INFO, "", 1, "lost %d", (7,), None)
    >>> record.created = 0
    >>> line = JsonLines().format(record)
    >>> line.partition(", ")[2]
    '"level": "info", "logger": "a", "message": "lost 7"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": log_text(record),
            **getattr(record, "fields", {}),
        }
        found = {name: _finite(value) for name, value in line.items()}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


def _finite(value: Any) -> Any:
    """Return a value as JSON can hold it, with texts that fit a line."""
    if isinstance(value, dict):
        return {plain(str(name)): _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, str):
        return plain(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


METRICS = "metrics.prom"
"""Name of the file of metrics in the server's results."""


def metrics_text(standing: Standing) -> str:
    """Return the standing in Prometheus's text format."""
    rounds = standing.rounds.values()
    newest = standing.rounds[max(standing.rounds)] if standing.rounds else {}
    last = newest.get
    states = (WAITING, RUNNING, FINISHED, FAILED)

    def of_nodes(name: str) -> dict[str, int]:
        return {f'{{node="{n}"}}': int(getattr(of, name)) for n, of in standing.nodes.items()}

    table: list[tuple[str, str, Any]] = [
        ("state", "State of the run: 1 for the one it is in.",
         {f'{{state="{state}"}}': int(state == standing.state) for state in states}),
        ("rounds_planned", "Rounds that the settings ask for.", standing.planned),
        ("round", "Last complete round.", last("round", 0)),
        ("train_loss", "Mean training loss of the last complete round.", last("train_loss")),
        ("validation_loss", "Validation loss of the last complete round.", last("validation_loss")),
        ("round_seconds", "Seconds of the last complete round.", last("seconds")),
        ("clients_failed", "Clients left out of the last complete round.", last("failed")),
        ("sent_bytes_total", "Bytes of the payloads sent to nodes.",
         sum(r["bytes_down"] for r in rounds)),
        ("received_bytes_total", "Bytes of the payloads received from nodes.",
         sum(r["bytes_up"] for r in rounds)),
        ("clients_connected", "Clients of the connected nodes.", standing.connected_clients),
        ("node_connected", "1 if the node is connected.", of_nodes("connected")),
        ("node_joins_total", "How often the node joined.", of_nodes("joins")),
        ("node_failures_total", "Messages of a round without its answer.", of_nodes("failures")),
        ("node_strikes", "Failures of the node since its last usable answer.", of_nodes("strikes")),
        ("node_suspended", "1 if nobody waits for the node until it answers again.",
         of_nodes("suspended")),
        ("nodes_refused", "Nodes that are not let in.", len(standing.refused)),
        ("rounds_lost_total", "Rounds repeated, as no aggregate was sound.", standing.rounds_lost),
        ("sums_recovered_total", "Complete secure sums that nodes left.", standing.sums_recovered),
        ("sums_lost_total", "Secure sums that were lost.", standing.sums_lost),
        ("starts_total", "Starts of the server.", standing.starts),
    ]  # fmt: skip
    return "".join(family(f"stforecast_{name}", text, of) for name, text, of in table)


def family(name: str, text: str, of: Any) -> str:
    """Return the lines of a metric: one value, or values by label; none if there is none."""
    values = of if isinstance(of, dict) else {"": of}
    lines = [f"{name}{label} {value}" for label, value in values.items() if value is not None]
    kind = "counter" if name.endswith("_total") else "gauge"
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return "\n".join([*head, *lines, ""]) if lines else ""


class MetricsFile(logging.Handler):
    """Writes `metrics.prom` after each event, whole or not at all.

    Args:
        folder: the server's results; events of earlier starts are read from there.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / METRICS
        earlier = read_event_log(folder) if (folder / JOURNAL).exists() else ()
        self.standing = Standing.of(earlier)
        self._lines = JsonLines()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the file anew, if the record is an event."""
        if not hasattr(record, "fields"):
            return
        self.standing.apply(json.loads(self._lines.format(record)))
        try:
            with atomic_path(self.path) as part:
                part.write_text(metrics_text(self.standing))
        except OSError:  # A full disk does not end the run.
            self.handleError(record)


def show_log() -> None:
    """Show this package's log from the level of information on, others' from warnings on."""
    notices = logging.StreamHandler()
    notices.setFormatter(CommandFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[notices])
    logging.getLogger("stforecast").setLevel(logging.INFO)
