"""The log of a federation's server, followed while the run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from data_prep.base.errors import InputError
from experiments.flower_processes import LocalFlower
from stforecast.flower.standing import read_events


def events_of(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the events of a name in a server's log; none before it has begun.

    Args:
        out: the server's folder.
        name: name of the event, such as `round`.
    """
    try:
        return [e for e in read_events(out) if e.get("event") == name]
    except InputError:
        return []


def follow(
    flower: LocalFlower,
    run: str,
    out: Path,
    seconds: float = 900.0,
    scenes: Mapping[int, Callable[[], str | None]] | None = None,
) -> dict[str, Any]:
    """Show the server's log until the run is done.

    Args:
        flower: the processes.
        run: Flower's number of the run.
        out: the server's folder.
        seconds: maximum time to wait.
        scenes: what to do once the log reports a round; a text is the run's new number.

    Returns:
        The server's `federation.json`.

    Raises:
        InputError: if the run fails or takes longer.
    """
    done, log, shown, look = out / "federation.json", out / "server.log", 0, 1
    end, waiting = time.monotonic() + seconds, dict(scenes or {})
    while not done.exists():
        time.sleep(0.5)
        shown = _show_new(log, shown)
        reported = {e["round"] for e in events_of(out, "round")} if waiting else set()
        for round in sorted(reported & waiting.keys()):
            run = waiting.pop(round)() or run
        look += 1
        # Asking Flower starts a process each time, so it is done rarely.
        ended = look % 60 == 0 and flower.status(run).startswith("finished")
        if time.monotonic() > end or (ended and not done.exists()):
            raise InputError(f"the run failed or takes too long; see {log} and {flower.folder}")
    _show_new(log, shown)
    about: dict[str, Any] = json.loads(done.read_text())
    return about


def _show_new(log: Path, shown: int) -> int:
    """Echo the whole lines of a log from a position on, in bytes; return the one reached."""
    if log.exists():
        with log.open("rb") as lines:
            lines.seek(shown)
            for line in lines:
                if line.endswith(b"\n"):
                    click.echo(f"  {line.decode().rstrip()}")
                    shown += len(line)
    return shown
