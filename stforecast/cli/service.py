"""The commands of a run in service, and for other programs: update, monitor, serve and export."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from data_prep.base.errors import InputError, counted, no_file
from data_prep.base.progress import doing
from stforecast.cli.commands import command, say_json
from stforecast.cli.options import EVENTS, check_ending, check_history, check_run
from stforecast.cli.predict import read_threshold

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@command(EVENTS)
def update_command(
    ctx: click.Context,
    run: Path,
    *,
    new: Path,
    events: Path | None,
    accept: bool = False,
    factor: float = 1.0,
    now: str | None = None,
) -> None:
    """Take new records in, score the forecasts made before, forecast, and renew the model.

    The records are opened as the run's own data were prepared, and are kept beside the run. The
    same records twice change nothing; corrected ones replace. The forecast of the coming span, with
    bounds, is in RUN/service/current/forecast.csv, and each update is a row of service.csv beside
    it. Prints one line of JSON. RUN/service.toml holds the rule that decides whether the bounds are
    calibrated again, or a challenger is trained further or anew, which must then win on the last
    days.

    A delivery that is odd as a whole, such as one in another unit, is kept aside in
    RUN/service/held with a line that says why; the service goes on without it.

    Exit codes: 0 forecast with the same model, 10 nothing new, 11 calibrated, 12 replaced by the
    model trained further, 13 by one trained anew, 14 a challenger lost, 15 held back, 2 bad input.

    Options:
        new: records since the last update: a cube, or a table or raw days as they were prepared.
        accept: take the records in however odd they are.
        factor: what to multiply the values by, such as 0.001 for records in kB of a run in MB.
        now: the present, after which no record can be, in UTC unless it has an offset, such as
            2024-05-01T06:00; by default the machine's.
    """
    check_run(run)
    check_history(new)
    doing(f"taking in {new}")
    from stforecast.service.update import CODES, update

    done = update(run, new, events, accept=accept, times=factor, now=_time(now))
    say_json(done.about, indent=None)
    ctx.exit(CODES[done.action])


@command()
def monitor_command(
    ctx: click.Context,
    run: Path,
    *,
    now: str | None = None,
    page: Path | None = None,
    threshold: str | None = None,
) -> None:
    """Watch a run in service: errors, broken counters, anomalies, and late or odd records.

    Prints one line of JSON with MASE, bias and coverage over 1, 7 and 28 days, the cells whose
    counters are broken, and the alarms, each of which is also a warning in the log. Writes
    monitor.csv, a row for each cell, anomalies.csv, a row for each anomaly of the last day, and
    metrics.prom for Prometheus into RUN/service. The thresholds are in RUN/service.toml.

    Exit codes: 0 no alarm, 22 a delivery is held back, 20 other alarms, 21 only that counters are
    broken, 2 bad input.

    Options:
        now: time that all is about, and at which records may be late, in UTC unless it has an
            offset, such as 2024-05-01T06:00; by default now.
        page: HTML file to write of all this, with the coming span; it opens without a network.
        threshold: capacity or limit for --page, in the data's units: a number for each cell, or a
            CSV with columns cell and threshold. Adds the plan and its probabilities.
    """
    check_run(run)
    if page is not None:
        check_ending(page, ".html")
    elif threshold is not None:
        raise click.UsageError("--threshold goes with --page.", ctx)
    from stforecast.service.monitor import monitor

    limit = None if threshold is None else read_threshold(threshold)
    watch = monitor(run, _time(now), page, limit)
    for alarm in watch.alarms:
        log.warning("%s: %s", run, alarm)
    say_json(watch.as_json(), indent=None)
    ctx.exit(watch.code)


def _time(now: str | None) -> pd.Timestamp | None:
    """Return a time as it is typed, in UTC without a zone."""
    import pandas as pd

    if now is None:
        return None
    read = pd.to_datetime(now, format="ISO8601", errors="coerce", utc=True)
    if not isinstance(read, pd.Timestamp):
        raise InputError(f"now is {now!r}, expected a time such as 2024-05-01T06:00")
    return read.tz_localize(None)


@command()
def serve_command(
    run: Path,
    *,
    history: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    groups: str | None = None,
    token_file: Path | None = None,
) -> None:
    """Serve the forecasts of a run over HTTP, as JSON and CSV.

    /forecast, /cells, /health and /metrics; /openapi.json describes them. What `stforecast update`
    or a new run in the same folder replaces is read anew. Ctrl-C or SIGTERM ends it.

    Options:
        history: cube or table to forecast from; by default that of the run's last update, or the
            run's data.
        host: address to listen at; another than the loopback needs a token.
        port: port to listen at.
        groups: sums to serve, too, at /forecast?level=site: a CSV with a column cell and one for
            each level, such as cell,site,sector, or columns of the cube, such as site,sector.
        token_file: file with a token of 16 characters or more, which clients send as
            Authorization: Bearer TOKEN.
    """
    check_run(run)
    try:
        from stforecast.service.serve import serve
    except ImportError as e:
        raise InputError(f"serve needs {e.name}; pip install 'stforecast[serve]'") from e
    if token_file is not None and not token_file.is_file():
        raise no_file(token_file, "token", "write one: openssl rand -hex 16 > FILE")
    token = "" if token_file is None else token_file.read_text().strip()
    if token_file is not None and not token:
        raise InputError(f"{token_file}: is empty, expected a token; openssl rand -hex 16 > FILE")
    serve(run, history, host, port, token, groups)


@command()
def export(
    source: Path,
    *,
    onnx: Path | None = None,
    steps: int = 0,
    fev: Path | None = None,
    out: Path | None = None,
    fill_missing: float | None = None,
) -> None:
    """Write a run's model as an ONNX graph, its test part for fev, or a cube for FedDA's code.

    The graph's inputs are raw readings (steps × cells) in the data's units and the wall clock of
    each step; its outputs are forecasts and bounds (steps × cells) in the data's units.

    SOURCE is the folder of a run, or a Telecom Italia cube.

    Options:
        onnx: ONNX graph to write of a run's model.
        steps: steps of history that the graph reads; 0 takes what the model needs.
        fev: folder for a run's test part as a task of the benchmark fev, with its forecasts.
        out: file to write of a cube, e.g. milano.h5.
        fill_missing: value of a cube's missing entries; refused by default.
    """
    if sum(target is not None for target in (onnx, fev, out)) != 1:
        raise InputError(
            "give --onnx FILE.onnx for the model of a run, --fev FOLDER for its test part, or "
            "--out FILE.h5 for a cube"
        )
    if out is not None:
        from data_prep.cube import open_cube
        from data_prep.sets.fedda_h5 import write

        check_ending(out, ".h5", ".hdf5")
        with open_cube(source) as ds:
            click.echo(write(ds, out, fill_missing=fill_missing))
        return
    check_run(source)
    if fev is not None:
        from stforecast.forecasting.fev import TASK, export_fev
        from stforecast.forecasting.results import ForecastRun

        n_windows = export_fev(ForecastRun.open(source), fev)
        click.echo(f"{fev}: {counted(n_windows, 'window')}; fev.Benchmark.from_yaml reads {TASK}")
        return
    assert onnx is not None
    check_ending(onnx, ".onnx")
    from stforecast.forecasting.export import export_onnx
    from stforecast.forecasting.model import FittedModel

    model = FittedModel.load(source, device="cpu")
    n_steps = export_onnx(model, onnx, steps)
    bounds = ", lower and upper" if model.calibration else ""
    click.echo(
        f"{onnx}: reads history ({n_steps} × {len(model.cells)}) and clock "
        f"({n_steps + model.config.window.horizon}), returns forecast{bounds}; its metadata names "
        "cells, step and unit"
    )
