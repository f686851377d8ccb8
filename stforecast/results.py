"""A run on disk: settings, errors, rounds, forecasts and the model, in open formats.

A run folder holds

- `run.json`: settings, data, versions, seconds; written last, so its presence says "complete";
- `metrics.csv`: one row an error, long form, columns `METRIC_COLUMNS`;
- `rounds.csv`: one row a round (`stforecast.federated.server.RoundReport`);
- `refits.csv`: with `--refit`, one row a refit: what it knew and what it cost;
- `forecasts.nc`: forecasts of the test part, and bounds if there are any, beside what was observed,
  in the data's units;
- `model/`: what `Forecaster.load` reads.

Until it is finished it holds `settings.json` and `checkpoints/`, which `resume` goes on from.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from data_prep.cube import atomic_path, check_axes, check_values
from data_prep.errors import InputError, reading
from data_prep.hdf5 import open_hdf5
from data_prep.netcdf import dump, netcdf_target
from stforecast.federated.runs.run_folder import (
    AGAIN,
    check_begun,
    check_new,
    find_folders,
    finish,
    is_finished,
    read_about,
    read_begun,
    read_csv,
    write_about,
    write_csv,
    writing,
)
from stforecast.federated.runs.run_lock import locked

if TYPE_CHECKING:  # Figures of finished runs need no torch, which takes seconds to import.
    from stforecast.federated.server import RoundReport
    from stforecast.forecaster import Forecaster

METRIC_COLUMNS = (
    "method", "data", "service", "seed", "client", "horizon", "split", "selection", "metric",
    "value",
)  # fmt: skip
"""Columns of `metrics.csv`."""

ROUND_COLUMNS = ("round", "train_task_loss", "validation_loss", "bytes_down", "bytes_up")
"""Columns of `rounds.csv` that figures and tables read."""

ENTRIES: dict[str, type] = {"data": str, "service": str}
"""Entries of `run.json` that name a run besides its settings, and their types."""

REFIT_COLUMNS = ("windows", "rounds", "bytes_down", "bytes_up", "seconds")
"""Numbers in `refits.csv`, beside `time`."""

COMMAND = "stforecast run"
"""That writes run folders."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where it lies.
        about: contents of `run.json`.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.about["settings"]["method"])

    @property
    def label(self) -> str:
        """What to call the run in a legend."""
        return str(self.about.get("label", self.method))

    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`; clients and horizons are text."""
        return read_csv(self.folder / "metrics.csv", ("value",), METRIC_COLUMNS[4:-1])

    def rounds(self) -> pd.DataFrame:
        """`rounds.csv`; empty for reference forecasters."""
        return read_csv(self.folder / "rounds.csv", ROUND_COLUMNS)

    def refits(self) -> pd.DataFrame:
        """`refits.csv`; empty where nothing was refitted."""
        path = self.folder / "refits.csv"
        return read_csv(path, REFIT_COLUMNS) if path.exists() else pd.DataFrame()

    def forecasts(self) -> xr.Dataset:
        """`forecasts.nc`: `y_hat` and `y` with dimensions `(cell, time, horizon)`."""
        with self.open_forecasts() as ds, reading(ds.encoding["source"], "whole", AGAIN):
            return ds.load()

    def open_forecasts(self) -> xr.Dataset:
        """`forecasts`, lazily: values are read when they are used."""
        path = self.folder / "forecasts.nc"
        with open_hdf5(path, "as netCDF4", AGAIN) as file:
            check_axes(file, path)
            ds = xr.open_dataset(path, engine="h5netcdf")
        for name in ("y_hat", "y"):
            if name not in ds or ds[name].dims != ("cell", "time", "horizon"):
                raise InputError(
                    f"{path}: no {name!r} with dimensions (cell, time, horizon); {AGAIN}"
                )
            check_values(ds[name], str(path))
        return ds

    def score(self, metric: str = "mse", selection: str = "best", split: str = "test") -> float:
        """One pooled error, over all clients and the whole horizon."""
        table = self.metrics()
        row = table[
            (table["metric"] == metric)
            & (table["selection"] == selection)
            & (table["split"] == split)
            & (table["client"] == "all")
            & (table["horizon"] == "all")
        ]
        return float(row["value"].iloc[0]) if len(row) else float("nan")


def run(
    method: str,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    label: str | None = None,
    after_round: Callable[[RoundReport], None] | None = None,
) -> Run:
    """Fit a forecaster, judge it and write the run folder.

    Args:
        method: name of a method.
        data: path of a cube.
        out: run folder; made if it is not there.
        settings: flat settings, see `stforecast.config`.
        label: what to call the run in tables and legends; by default the method.
        after_round: called with each round's report.

    Raises:
        InputError: if data or settings do not fit, or `out` is a file or holds a finished run.
    """
    from stforecast.forecaster import Forecaster

    out = Path(out)
    with locked(out):
        check_new(out, COMMAND)
        forecaster = Forecaster(method, **settings)
        about = {
            "settings": forecaster.asked.flat(),
            **_places(data),
            "label": label or method,
        }
        return _run(out, about, forecaster, after_round)


def _places(data: str | os.PathLike[str]) -> dict[str, str]:
    """The cube's path as it was typed, and from the root."""
    return {"data": str(data), "data_path": str(Path(data).absolute())}


def data_of(about: Mapping[str, Any]) -> Path:
    """Where the cube of a run lies, whatever the working folder.

    Args:
        about: contents of `run.json` or `settings.json`. Those of older versions have nothing but
            the path as it was typed.
    """
    typed = Path(str(about["data"]))
    full = Path(str(about.get("data_path", typed)))
    # In words that the user knows, where they still mean the same.
    return typed if typed.absolute() == full or not full.exists() else full


def resume(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    after_round: Callable[[RoundReport], None] | None = None,
) -> Run:
    """Go on with a run that was stopped, from its newest sound checkpoint.

    Numbers are those of a run that is never stopped, bit for bit, on the same machine.

    Args:
        folder: the run's; that of a finished run is opened.
        data: path of the cube, if it has moved.
        after_round: called with each round's report.

    Raises:
        InputError: if no run was begun there, or results cannot be written.
        Stopped: on SIGINT or SIGTERM, after the round.
    """
    from stforecast.forecaster import Forecaster

    out = Path(folder)
    check_begun(out, COMMAND)
    with locked(out):
        if is_finished(out):
            finish(out)
            return open_run(out)
        begun = read_begun(out, COMMAND, ("data", "label"))
        forecaster = Forecaster(**begun["settings"])
        begun = begun if data is None else {**begun, **_places(data)}
        return _run(out, begun, forecaster, after_round)


def _run(
    out: Path,
    begun: dict[str, Any],
    forecaster: Forecaster,
    after_round: Callable[[RoundReport], None] | None,
) -> Run:
    """Do what was begun, or the rest of it."""
    from stforecast.federated.runs.checkpointing import Checkpointer

    start, data = time.perf_counter(), data_of(begun)
    again = f"go on with: {COMMAND} --resume {out}"
    with Checkpointer(out, begun, forecaster.config.run.checkpoint_every, again) as checkpointer:
        forecaster.fit(data, after_round, checkpointer)
        with writing(out, "free some space, then do the same again"):
            _write_results(forecaster, data.stem, out)
            seconds = round(time.perf_counter() - start, 3)
            write_about(out, {**_about(forecaster, begun), "seconds": seconds})
    finish(out)
    return open_run(out)


def _about(forecaster: Forecaster, begun: dict[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run."""
    return {
        "settings": forecaster.asked.flat(),
        "window": dataclasses.asdict(forecaster.config.window),
        "label": begun["label"],
        "data": begun["data"],
        "data_path": str(data_of(begun).absolute()),
        "parts": forecaster.parts(),
        "service": forecaster.service,
        "units": forecaster.units,
        "clients": len(forecaster.cells),
        "step_minutes": forecaster.step / pd.Timedelta(minutes=1),
        "federated": forecaster.config.federated,
        **_privacy(forecaster),
    }


def _privacy(forecaster: Forecaster) -> dict[str, Any]:
    """What the Gaussian mechanism on uploads guarantees, where it was used."""
    from stforecast.federated.uploads.privacy import epsilon

    uplink, refits = forecaster.config.uplink, forecaster.refits_
    uploads = len(forecaster.rounds_) + (int(refits["rounds"].sum()) if len(refits) else 0)
    if not uplink.private or not uploads:
        return {}
    guarantee = {"epsilon": epsilon(uplink, uploads), "delta": uplink.privacy_delta}
    return {"privacy": {**guarantee, "of": "a client's whole training series", "uploads": uploads}}


def _write_results(forecaster: Forecaster, data: str, out: Path) -> None:
    """Everything but `run.json`."""
    forecaster.save(out / "model")
    metrics = forecaster.evaluate().assign(
        method=forecaster.config.method,
        data=data,
        service=forecaster.service,
        seed=forecaster.config.run.seed,
    )
    write_csv(metrics[list(METRIC_COLUMNS)], out / "metrics.csv")
    rounds = forecaster.rounds_
    write_csv(rounds if len(rounds) else _no_rounds(), out / "rounds.csv")
    if len(forecaster.refits_):
        write_csv(forecaster.refits_, out / "refits.csv")
    with atomic_path(out / "forecasts.nc") as part, netcdf_target(part) as target:
        dump(forecaster.test_forecasts(), target)


def open_run(folder: str | os.PathLike[str]) -> Run:
    """A finished run.

    Raises:
        InputError: if the folder is none.
    """
    return Run(Path(folder), read_about(Path(folder), COMMAND, ENTRIES))


def find_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Every finished run in the given folders and below them, in order of name.

    Raises:
        InputError: naming a folder that holds none.
    """
    return [open_run(folder) for folder in find_folders(map(Path, folders), COMMAND)]


def _no_rounds() -> pd.DataFrame:
    from stforecast.federated.server import RoundReport

    return pd.DataFrame(columns=list(RoundReport.__dataclass_fields__))
