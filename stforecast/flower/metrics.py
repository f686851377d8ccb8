"""Metrics of a federation in Prometheus's text format, for node-exporter's textfile collector.

See https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.atomic import atomic_path
from stforecast.flower.json_lines import JsonLines
from stforecast.flower.standing import (
    EVENTS,
    FAILED,
    FINISHED,
    RUNNING,
    WAITING,
    Standing,
    read_events,
)

METRICS = "metrics.prom"
"""Name of the file of metrics in the server's results."""


def metrics_text(standing: Standing) -> str:
    """Return the standing in Prometheus's text format."""
    rounds = standing.rounds.values()
    newest = standing.rounds[max(standing.rounds)] if standing.rounds else {}
    nodes = {f'{{node="{number}"}}': node for number, node in standing.nodes.items()}
    tables: dict[tuple[str, str, str], Mapping[str, Any]] = {
        ("state", "gauge", "State of the run: 1 for the one it is in."): {
            f'{{state="{s}"}}': int(s == standing.state)
            for s in (WAITING, RUNNING, FINISHED, FAILED)
        },
        ("rounds_planned", "gauge", "Rounds that the settings ask for."): {"": standing.planned},
        ("round", "gauge", "Last complete round."): {"": newest.get("round", 0)},
        ("train_loss", "gauge", "Mean training loss of the last complete round."): {
            "": newest.get("train_loss")
        },
        ("validation_loss", "gauge", "Validation loss of the last complete round."): {
            "": newest.get("validation_loss")
        },
        ("round_seconds", "gauge", "Seconds of the last complete round."): {
            "": newest.get("seconds")
        },
        ("clients_failed", "gauge", "Clients left out of the last complete round."): {
            "": newest.get("failed")
        },
        ("sent_bytes_total", "counter", "Bytes of the payloads sent to nodes."): {
            "": sum(r["bytes_down"] for r in rounds)
        },
        ("received_bytes_total", "counter", "Bytes of the payloads received from nodes."): {
            "": sum(r["bytes_up"] for r in rounds)
        },
        ("clients_connected", "gauge", "Clients of the connected nodes."): {
            "": standing.connected_clients
        },
        ("node_connected", "gauge", "1 if the node is connected."): {
            label: int(node.connected) for label, node in nodes.items()
        },
        ("node_joins_total", "counter", "How often the node joined."): {
            label: node.joins for label, node in nodes.items()
        },
        ("node_failures_total", "counter", "Messages of a round without its answer."): {
            label: node.failures for label, node in nodes.items()
        },
        ("node_strikes", "gauge", "Failures of the node since its last usable answer."): {
            label: node.strikes for label, node in nodes.items()
        },
        ("node_suspended", "gauge", "1 if nobody waits for the node until it answers again."): {
            label: int(node.suspended) for label, node in nodes.items()
        },
        ("nodes_refused", "gauge", "Nodes that are not let in."): {"": len(standing.refused)},
        ("rounds_lost_total", "counter", "Rounds repeated, as no aggregate was sound."): {
            "": standing.rounds_lost
        },
        ("sums_recovered_total", "counter", "Complete secure sums that nodes left."): {
            "": standing.sums_recovered
        },
        ("sums_lost_total", "counter", "Secure sums that were lost."): {"": standing.sums_lost},
        ("starts_total", "counter", "Starts of the server."): {"": standing.starts},
    }
    return "".join(_family(*about, values) for about, values in tables.items())


def _family(name: str, kind: str, text: str, values: Mapping[str, Any]) -> str:
    lines = [
        f"stforecast_{name}{label} {value}" for label, value in values.items() if value is not None
    ]
    name = f"stforecast_{name}"
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
        earlier = read_events(folder) if (folder / EVENTS).exists() else ()
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
