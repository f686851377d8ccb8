"""The commands of a run in service: update and monitor."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click

from data_prep.base.errors import InputError
from data_prep.base.progress import doing
from stforecast.cli.commands import command, without_nan
from stforecast.cli.options import ALARM, EVENTS, check_ending, check_history, check_run

log = logging.getLogger(__name__)


@command(EVENTS)
def update_command(ctx: click.Context, run: Path, *, new: Path, events: Path | None) -> None:
    """Take new records in, score the forecasts made before, forecast, and renew the model.

    The records are opened as the run's own data were prepared, and are kept beside the run. The
    same records twice change nothing; corrected ones replace. The forecast of the coming span, with
    bounds, is in RUN/service/current/forecast.csv, and each update is a row of service.csv beside
    it. Prints one line of JSON. RUN/service.toml holds the rule that decides whether the bounds are
    calibrated again, or a challenger is trained further or anew, which must then win on the last
    days.

    Exit codes: 0 forecast with the same model, 10 nothing new, 11 calibrated, 12 replaced by the
    model trained further, 13 by one trained anew, 14 a challenger lost, 2 bad input.

    Options:
        new: records since the last update: a cube, or a table or raw days as they were prepared.
    """
    check_run(run)
    check_history(new)
    doing(f"taking in {new}")
    from stforecast.service.update import CODES, update

    done = update(run, new, events)
    click.echo(json.dumps(without_nan(done.about)))
    ctx.exit(CODES[done.action])


@command()
def monitor_command(
    ctx: click.Context, run: Path, *, now: str | None = None, page: Path | None = None
) -> None:
    """Watch a run in service: errors, coverage, drift, and missing, stuck and late records.

    Prints one line of JSON with MASE, bias and coverage over 1, 7 and 28 days, and the alarms, each
    of which is also a warning in the log. Writes RUN/service/monitor.csv, a row for each cell, and
    RUN/service/metrics.prom for Prometheus. The thresholds are in RUN/service.toml.

    Exit codes: 0 no alarm, 20 alarms, 2 bad input.

    Options:
        now: time in UTC at which records may be late, such as 2024-05-01T06:00; by default now.
        page: HTML file to write of all this, with the coming span; it opens without a network.
    """
    check_run(run)
    if page is not None:
        check_ending(page, ".html")
    import pandas as pd

    from stforecast.service.monitor import monitor

    try:
        at = None if now is None else pd.Timestamp(now)
    except ValueError as e:
        raise InputError(f"now is {now!r}, expected a time such as 2024-05-01T06:00") from e
    watch = monitor(run, at, page)
    for alarm in watch.alarms:
        log.warning("%s: %s", run, alarm)
    click.echo(json.dumps(without_nan(watch.as_json())))
    ctx.exit(ALARM if watch.alarms else 0)
