"""The commands of a run in service, and for other programs: update, monitor, serve and export."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from data_prep.base.errors import InputError, counted, no_file
from data_prep.base.progress import doing
from stforecast.cli.commands import command, to_json
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
    click.echo(to_json(done.about, indent=None))
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
        now: time at which records may be late, in UTC unless it has an offset, such as
            2024-05-01T06:00; by default now.
        page: HTML file to write of all this, with the coming span; it opens without a network.
    """
    check_run(run)
    if page is not None:
        check_ending(page, ".html")
    import pandas as pd

    from stforecast.service.monitor import monitor

    at = None
    if now is not None:
        read = pd.to_datetime(now, format="ISO8601", errors="coerce", utc=True)
        if not isinstance(read, pd.Timestamp):
            raise InputError(f"now is {now!r}, expected a time such as 2024-05-01T06:00")
        at = read.tz_localize(None)
    watch = monitor(run, at, page)
    for alarm in watch.alarms:
        log.warning("%s: %s", run, alarm)
    click.echo(to_json(watch.as_json(), indent=None))
    ctx.exit(ALARM if watch.alarms else 0)


@command()
def serve_command(
    run: Path,
    *,
    history: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
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
    serve(run, history, host, port, token)


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
