"""The commands that give models, forecasts and cubes to other programs: export and serve."""

from __future__ import annotations

from pathlib import Path

import click

from data_prep.base.errors import InputError, counted, no_file
from stforecast.cli.commands import command
from stforecast.cli.options import check_ending, check_run


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
