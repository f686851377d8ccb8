"""Flower's `ServerApp`, which runs beside the SuperLink."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.base.errors import CommandFormatter, InputError, Words, for_command
from data_prep.base.files import file_lock
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.nodes import reported
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.disclosure import uploads_in_words
from stforecast.federated.nodes.masker import METRICS
from stforecast.federated.nodes.membership import event, tell_left_out
from stforecast.federated.nodes.messages import Finished
from stforecast.federated.nodes.run_settings import FederationSettings
from stforecast.federated.runs.checkpoint import load_checkpoint, newest_first
from stforecast.federated.runs.run_folder import (
    CHECKPOINTS,
    LINES,
    lines_of_tables,
    write_csv,
    write_json,
)
from stforecast.federated.runs.unfinished_run import LOCK
from stforecast.federated.uploads.uplink import guarantee
from stforecast.flower.gate import check_superlink_of
from stforecast.flower.settings import RunSettings, read_run
from stforecast.flower.standing import JOURNAL, RESULTS
from stforecast.flower.telemetry import JsonLines, MetricsFile, show_log
from stforecast.flower.totals import learn_totals
from stforecast.flower.wire import GridLink

log = logging.getLogger(__name__)

LAST, BEFORE = "last", "before"
"""Folders in the results of the checkpoint after the last round, and of that of the run before."""


def make_server_app() -> Any:
    """Return Flower's `ServerApp`, which runs the rounds."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        show_log()
        end_with_superlink(sys.argv)
        serve(GridLink(grid), read_run(context.run_config))

    return app


def serve(link: Any, run: FederationSettings) -> dict[str, Any]:
    """Run the federation; write the logs, then `rounds.csv`, and last `federation.json`.

    A run that was ended goes on from `checkpoints/`, of which `last/` is left at the end: another
    run may begin with it, as its `before/`. Returns what `federation.json` holds.

    Raises:
        InputError: also if another process writes in the folder of the results, or it holds those
            of a finished run.
    """
    config, out, method = run.chosen, Path(run.out), run.build_method()
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_unfinished(out)
    wait = Words("wait for it or choose another {results}")
    with file_lock(out / LOCK, out, wait), logged(out):
        plan = {"rounds": planned_rounds(run), "clients": run.n_clients}
        known = event("start", method=config.method, **plan, answer=run.patience.answer)
        log.info("%s: %d rounds, %d clients", config.method, *plan.values(), extra=known)
        for words in uploads_in_words(run):
            log.info("%s", words, extra=event("uploads", secure=bool(run.secure)))
        if not run.unsafe_open:
            check_superlink_of(sys.argv)
        coordinator = Coordinator(
            method,
            link,
            run.n_clients,
            seed=config.run.seed,
            uplink=config.uplink,
            robust=config.robust,
            patience=run.patience,
            secure=run.secure,
            metrics=run.metrics,
            owners=run.owners,
            folder=out / CHECKPOINTS,
            run={"settings": config.flat(), "clients": run.n_clients, "secure": bool(run.secure)},
            begin=load_checkpoint(out / BEFORE).state.server if run.after else None,
            refits=run.refits,
        )
        # Asked first, so that a missing accountant does not end a long run.
        guarantee(config.uplink, 1, run.covered)
        finished = coordinator.run(_log_round)
        write_rounds(out, run, coordinator)
        about, shared = _results(run, coordinator, finished), []
        if isinstance(run, RunSettings) and run.totals:
            about["totals"] = learn_totals(run, coordinator, out)
            shared = ["totals: sums over nodes of test readings and forecasts"]
        about[LINES] = lines_of_tables(out)
        about |= guarantee(config.uplink, coordinator.uploads, run.covered, shared)
        if "privacy" in about:
            log.info("differential privacy: %s", about["privacy"])
        known = event("finished", best_round=about["best_round"], test=about["test"])
        log.info("test errors of all nodes: %s", about["test"], extra=known)
        write_json(out / RESULTS, about)
        shutil.rmtree(out / LAST, ignore_errors=True)
        newest_first(out / CHECKPOINTS)[0].rename(out / LAST)
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    return about


def planned_rounds(run: FederationSettings) -> int:
    """Return the most rounds of a run, with those of its refits."""
    rounds, refits, method = int(run.config.training.rounds), run.refits, run.method
    if refits is None or method is None:
        return rounds
    return rounds + len(refits.names) * (refits.rounds + method.sums_first)


def write_rounds(out: Path, run: FederationSettings, coordinator: Coordinator) -> None:
    """Write `rounds.csv`, and `refits.csv` with the rounds of each refit."""
    rounds = pd.DataFrame([dataclasses.asdict(r) for r in coordinator.server.reports])
    begun = coordinator.begun
    write_csv(rounds[: begun[0] if begun else None], out / "rounds.csv")
    if run.refits and begun:
        ends = [*begun[1:], len(rounds)]
        parts = [
            rounds[first:end].assign(refit=name)
            for name, first, end in zip(run.refits.names, begun, ends, strict=True)
        ]
        write_csv(pd.concat(parts), out / "refits.csv")


def _results(
    run: FederationSettings, coordinator: Coordinator, finished: Mapping[int, Finished]
) -> dict[str, Any]:
    """Return the results of a run, given the nodes' last answers."""
    test, left_out = coordinator.test_errors, coordinator.left_out
    doubtful: dict[int, str] = {}
    if not run.secure:
        sizes, numbers = coordinator.membership.sizes, coordinator.membership.numbers
        test, odd, doubtful = mean_test_errors(
            {n: f for n, f in finished.items() if n not in left_out},
            {n: int(sizes[numbers[n].start : numbers[n].stop].sum()) for n in finished},
            run.metrics,
        )
        left_out = left_out | odd
    return {
        "settings": run.chosen.flat(),
        "clients": run.n_clients,
        "best_round": coordinator.server.best_round,
        "nodes": len(finished),
        "left_out": left_out,
        "doubtful": doubtful,
        "test": test,
    }


def check_unfinished(out: Path) -> None:
    """Check that a folder does not hold the results of a finished run."""
    if (out / LAST).exists() and not (out / CHECKPOINTS).exists():
        raise InputError(
            f"{out} holds a finished run; go on with it by `stforecast federate update`, or ",
            Words("choose another {results} or delete it"),
        )


def end_with_superlink(arguments: list[str]) -> None:
    """End this process, if it is a `flwr-serverapp`, soon after the SuperLink that started it.

    Flower raises a signal then, which Python does not handle while it waits for the answer of the
    SuperLink: forever.
    """
    if "--parent-pid" not in arguments:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def prepare_continuation(run: FederationSettings, out: Path, rounds: int) -> FederationSettings:
    """Return the settings of further rounds after a finished run; copy its last state to `out`.

    Raises:
        InputError: if the run has not finished here, or `out` holds results already.
    """
    last = Path(run.out) / LAST
    if not last.is_dir():
        raise InputError(
            f"{last}: no state of a finished federation; finish it with `flwr run`, on the "
            "machine of its server"
        )
    if (out / JOURNAL).exists():
        raise InputError(f"{out}: holds results already; ", Words("choose another {results}"))
    found = load_checkpoint(last)
    continued = run.continued(found.notes["token"], out, rounds)
    shutil.copytree(last, out / BEFORE, dirs_exist_ok=True)
    return continued


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Write this package's log and an error's message also to files within the context.

    They are `server.log` for people, `server.jsonl` for programs and `metrics.prom`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = logging.FileHandler(folder / JOURNAL)
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


def mean_test_errors(
    finished: Mapping[int, Finished],
    samples: Mapping[int, int],
    names: Sequence[str] = METRICS,
) -> tuple[dict[str, float], dict[int, str], dict[int, str]]:
    """Return test errors over the nodes' targets, and which nodes' are left out or doubtful.

    With three nodes or more, a node's targets count at most `MOST_TARGETS` times as much per
    training sample as the median node's. A node that claims more, or without which an error would
    be another by a factor of more than `MOVED`, counts but is doubtful.
    """
    errors = {node: f.errors if f.targets else {} for node, f in finished.items()}
    counted, left_out = reported.sound_errors(errors, names)
    tell_left_out(left_out)
    test: dict[str, float] = {}
    doubtful: dict[int, list[str]] = {node: [] for node in counted}
    for name in names if counted else ():
        sums = {
            node: reported.Reported(errors[node][name] * n, n, samples[node])
            for node in counted
            for n in [finished[node].targets]
        }
        farthest = math.inf if name in reported.HIGHEST else reported.FARTHEST
        limits = reported.MOST_TARGETS, farthest
        test[name] = reported.bounded_mean([*sums.values()], *limits)
        for node, why in reported.bounded_nodes(sums, *limits).items():
            doubtful[node] += [why] if name == names[0] else []
        for node, (mean, rest) in reported.moved_by(sums, *limits).items():
            doubtful[node].append(f"without it the test {name} would be {rest:.4g}, not {mean:.4g}")
    reasons = {node: "; ".join(why) for node, why in doubtful.items() if why}
    for node, why in reasons.items():
        known = event("errors_doubtful", node=node, reason=why)
        log.warning("node %d counts in the test errors, but %s", node, why, extra=known)
    return test, left_out, reasons


def _log_round(report: RoundReport) -> None:
    facts, loss = dataclasses.asdict(report), report.validation_loss
    validated = "" if math.isnan(loss) else f"validation loss {loss:.4f}, "
    log.info(
        "round %(round)d: %(trained)d of %(participants)d clients, training loss %(train_loss).4f, "
        "%(validated)s%(bytes_down)d bytes down, %(bytes_up)d up, %(seconds).1f s",
        {**facts, "trained": report.participants - report.failed, "validated": validated},
        extra=event("round", **facts),
    )
