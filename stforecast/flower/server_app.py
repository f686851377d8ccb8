"""Flower's `ServerApp`, which runs beside the SuperLink."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.base.errors import CommandFormatter, for_command
from data_prep.base.files import atomic_path
from stforecast.federated.engine.server import RoundReport
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.membership import Reported, bounded_mean, event, sound_errors
from stforecast.federated.nodes.messages import Finished
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.uploads.uplink import guarantee
from stforecast.flower.gate import check_superlink_of
from stforecast.flower.settings import RunSettings
from stforecast.flower.standing import EVENTS, JsonLines, MetricsFile, show_log
from stforecast.flower.wire import GridLink
from stforecast.trained_method import build_method

log = logging.getLogger(__name__)

SERIES = "a client's whole training series"


def make_server_app() -> Any:
    """Return Flower's `ServerApp`, which runs the rounds."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        show_log()
        serve(GridLink(grid), RunSettings.from_run_config(context.run_config))

    return app


def serve(link: Any, run: RunSettings) -> dict[str, Any]:
    """Run the federation; write the logs, then `rounds.csv`, and last `federation.json`.

    A run that was ended goes on from `checkpoints/`, which is removed at the end.

    Args:
        link: link to the nodes.
        run: settings of the run.

    Returns:
        The contents of `federation.json`.

    Raises:
        InputError: if strangers can use the SuperLink, clients are missing at the start, no node
            answers any more, or the folder holds an unfinished run with other settings.
    """
    config, out = run.config.at(run.step), Path(run.out)
    method = build_method(config)
    with logged(out):
        log.info(
            "%s: %d rounds, %d clients", config.method, config.training.rounds, run.n_clients,
            extra=event("start", method=config.method, rounds=config.training.rounds,
                        clients=run.n_clients, answer=run.patience.answer),
        )  # fmt: skip
        if not run.unsafe_open:
            check_superlink_of(sys.argv)
        coordinator = _kind(run)(
            method,
            link,
            run.n_clients,
            seed=config.run.seed,
            uplink=config.uplink,
            robust=config.robust,
            patience=run.patience,
            owners=run.owners,
            folder=out / "checkpoints",
            run={
                "settings": config.flat(), "clients": run.n_clients, "secure": bool(run.secure),
            },
        )  # fmt: skip
        # Asked first, so that a missing accountant does not end a long run.
        guarantee(config.uplink, 1, SERIES)
        finished = coordinator.run(_log_round)
        rounds = pd.DataFrame([dataclasses.asdict(r) for r in coordinator.server.reports])
        write_csv(rounds, out / "rounds.csv")
        numbers = {} if run.secure else coordinator.membership.numbers
        test, left_out = pooled_errors({n: finished[n] for n in finished if n in numbers}, numbers)
        about = {
            "settings": config.flat(),
            "clients": run.n_clients,
            "best_round": coordinator.server.best_round,
            "nodes": len(finished),
            "left_out": left_out,
            "models": sum(f.model for f in finished.values()),
            "test": coordinator.test_errors or test,
            **guarantee(config.uplink, coordinator.uploads, SERIES),
        }
        if "privacy" in about:
            log.info("differential privacy: %s", about["privacy"])
        log.info(
            "test errors of all nodes: %s", about["test"],
            extra=event("finished", best_round=about["best_round"], test=about["test"]),
        )  # fmt: skip
        with atomic_path(out / "federation.json") as part:
            part.write_text(json.dumps(about, indent=2) + "\n")
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return about


def _kind(run: RunSettings) -> Callable[..., Coordinator]:
    """Return what makes the server's side of a run."""
    if run.secure is None:
        return Coordinator
    from stforecast.federated.nodes.secure_coordinator import SecureCoordinator

    return functools.partial(SecureCoordinator, settings=run.secure)


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Write this package's log and an error's message also to files within the context.

    They are `server.log` for people, `server.jsonl` for programs and `metrics.prom`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = logging.FileHandler(folder / EVENTS)
    lines.setFormatter(JsonLines())
    text = logging.FileHandler(folder / "server.log")
    text.setFormatter(CommandFormatter())
    handlers = [text, lines, MetricsFile(folder)]
    package = logging.getLogger("stforecast")
    level = package.level
    package.setLevel(logging.INFO)
    for handler in handlers:
        package.addHandler(handler)
    try:
        yield
    except Exception as e:
        log.error("the run ends: %s", e, extra=event("failed", reason=str(for_command(e))))
        raise
    finally:
        package.setLevel(level)
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()


def pooled_errors(
    finished: Mapping[int, Finished], numbers: Mapping[int, range]
) -> tuple[dict[str, float], dict[int, str]]:
    """Return test MSE and MAE over the nodes' targets, and why some nodes' are left out.

    Args:
        finished: the nodes' last answers, see `sound_errors`.
        numbers: the nodes' clients.
    """
    names = ("mse", "mae")
    errors = {node: f.errors if f.targets else {} for node, f in finished.items()}
    counted, left_out = sound_errors(errors, names)
    for node, why in left_out.items():
        log.warning(
            "node %d does not count in the test errors: %s", node, why,
            extra=event("errors_left_out", node=node, reason=why),
        )  # fmt: skip
    sums: dict[str, list[Reported]] = {name: [] for name in names}
    for node in counted:
        n = finished[node].targets
        for name, reported in sums.items():
            reported.append(Reported(errors[node][name] * n, n, len(numbers[node])))
    return {name: bounded_mean(reported) for name, reported in sums.items() if reported}, left_out


def _log_round(report: RoundReport) -> None:
    log.info(
        "round %d: %d of %d clients, training loss %.4f, validation loss %.4f, %d bytes down, "
        "%d up, %.1f s", report.round, report.participants - report.failed, report.participants,
        report.train_loss, report.validation_loss, report.bytes_down, report.bytes_up,
        report.seconds, extra=event("round", **dataclasses.asdict(report)),
    )  # fmt: skip
