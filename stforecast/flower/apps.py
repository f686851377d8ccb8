"""Flower's `ServerApp`, which runs beside the SuperLink, and `ClientApp`, which runs on nodes."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.cube import atomic_path
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.messages import Message
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.server import RoundReport
from stforecast.flower import kept_nodes
from stforecast.flower.settings import RunSettings
from stforecast.flower.wire import GridLink, pack, unpack
from stforecast.trained_method import build_method

log = logging.getLogger(__name__)


def make_client_app() -> Any:
    """Return Flower's `ClientApp`, which answers for a node."""
    import flwr.app
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def answer(message: Any, context: Any) -> Any:
        _show_log()
        run, asked = RunSettings.from_run_config(context.run_config), unpack(message.content)
        answer = kept_nodes.answer(run, context.node_config, context.run_id, asked)
        return flwr.app.Message(pack(answer), reply_to=message)

    return app


def make_server_app() -> Any:
    """Return Flower's `ServerApp`, which runs the rounds."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        _show_log()
        serve(GridLink(grid), RunSettings.from_run_config(context.run_config))

    return app


def serve(link: Any, run: RunSettings) -> dict[str, Any]:
    """Run the federation; write `server.log`, then `rounds.csv`, and last `federation.json`.

    Args:
        link: link to the nodes.
        run: settings of the run.

    Returns:
        The contents of `federation.json`.

    Raises:
        InputError: if clients are missing at the start, or no node answers any more.
    """
    config, out = run.config.at(run.step), Path(run.out)
    method = build_method(config)
    coordinator = Coordinator(
        method,
        link,
        run.n_clients,
        seed=config.run.seed,
        uplink=config.uplink,
        robust=config.robust,
        patience=run.patience,
    )
    with logged(out / "server.log"):
        last_messages = coordinator.run(_log_round)
        rounds = pd.DataFrame([dataclasses.asdict(r) for r in coordinator.server.reports])
        write_csv(rounds, out / "rounds.csv")
        about = {
            "settings": config.flat(),
            "clients": run.n_clients,
            "best_round": coordinator.server.best_round,
            "nodes": len(last_messages),
            "models": sum(bool(message.about.get("model")) for message in last_messages.values()),
            "test": pooled_errors(last_messages),
        }
        log.info("test errors of all nodes: %s", about["test"])
        with atomic_path(out / "federation.json") as part:
            part.write_text(json.dumps(about, indent=2) + "\n")
    return about


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write this package's log and an error's message also to a file within the context."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    package = logging.getLogger("stforecast")
    level = package.level
    package.setLevel(logging.INFO)
    package.addHandler(handler)
    try:
        yield
    except Exception as e:
        log.error("the run ends: %s", e)
        raise
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()


def pooled_errors(last_messages: Mapping[int, Message]) -> dict[str, float]:
    """Return test MSE and MAE over all nodes' targets; nodes without valid errors are left out."""
    sums: dict[str, list[tuple[float, int]]] = {}
    for node, message in last_messages.items():
        try:
            n, errors = int(message.about["targets"]), message.about["errors"]
            of_node = {name: float(errors[name]) for name in ("mse", "mae")}
            if n < 1 or not all(map(math.isfinite, of_node.values())):
                raise ValueError(f"{of_node} of {n} targets")
        except (KeyError, TypeError, ValueError) as e:
            log.warning("node %d sent no valid errors (%r)", node, e)
            continue
        for name, value in of_node.items():
            sums.setdefault(name, []).append((value, n))
    return {
        name: math.fsum(v * n for v, n in values) / max(1, sum(n for _, n in values))
        for name, values in sums.items()
    }


def _log_round(report: RoundReport) -> None:
    log.info(
        "round %d: %d of %d clients, training loss %.4f, validation loss %.4f, %d bytes down, "
        "%d up, %.1f s", report.round, report.participants - report.failed, report.participants,
        report.train_loss, report.validation_loss, report.bytes_down, report.bytes_up,
        report.seconds,
    )  # fmt: skip


def _show_log() -> None:
    """Show this package's log in Flower's processes."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("stforecast").setLevel(logging.INFO)
