"""The folder of a service: one complete state after each update, of which the last is `current`.

`RUN/service/current` is a link to the state after the last update, a folder with

- `model/`: the model in service, which `Forecaster.load(RUN)` prefers to that of the run;
- `history.nc`: the records that inputs, calibration and training need, a cube;
- `broken.csv`: readings of broken counters, which count as missing there;
- `issued.nc`: the forecasts made before, with what came, in the layout of a run's `forecasts.nc`;
- `forecast.csv`: the forecast of the coming span, with bounds;
- `service.csv`: a row for each update;
- `state.json`: when the model was trained, and the error that it promised.

An update writes a new folder and then moves the link: a killed one leaves everything as it was. The
state before the last is kept for readers that are still in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, reading
from data_prep.base.files import file_lock, naming_full_disk
from data_prep.cube import open_cube, write_cube
from data_prep.netcdf import dump, netcdf_target, open_netcdf
from stforecast.data.cubes import open_cube as open_data
from stforecast.federated.runs.model_files import IN_SERVICE
from stforecast.federated.runs.run_folder import read_csv, write_csv
from stforecast.forecasting.results import ForecastRun, data_of, is_model

AGAIN = "delete the folder service in the run to begin anew from the run"
"""Remedy for a damaged state."""

KEPT = 2
"""States that are kept."""

STATE = "state.json"
"""What an update remembers; written when records were taken last."""

BROKEN = "broken.csv"
"""Readings that are not believed: time on the clock of the history, cell and reading."""


@dataclass
class UpdateStanding:
    """What an update remembers; times are on the clock of the history.

    Attributes:
        promised: lowest MASE of a model in service in its trial, or of the run in its test part.
        trained: end of the history at the last training of a challenger, or of the run.
        anew: end of the history when one was last trained anew, or that of the run.
        lost: the way in which the last challenger was renewed, if it lost; else empty.
    """

    promised: float
    trained: str
    anew: str
    lost: str = ""


@dataclass
class ServiceState:
    """A state of a service in memory.

    Attributes:
        history: the records, a cube.
        issued: the forecasts made before, `(cell, time, horizon)`.
        standing: what else an update remembers.
        log: the rows of `service.csv`.
        broken: `(steps, cells of issued)` whether a reading is of a broken counter; None for none.
    """

    history: xr.Dataset
    issued: xr.Dataset
    standing: UpdateStanding
    log: pd.DataFrame
    broken: np.ndarray | None = None

    @property
    def end(self) -> pd.Timestamp:
        """Start of the history's last step."""
        return pd.Timestamp(self.history.indexes["time"][-1])

    @property
    def service(self) -> str:
        """Name of what is forecast."""
        return str(self.issued.attrs["service"])

    @property
    def believed(self) -> xr.Dataset:
        """The history without the readings of broken counters."""
        if self.broken is None or not self.broken.any():
            return self.history
        values, places = _values(self.history, self.issued)
        values[:, places] = np.where(self.broken, np.nan, values[:, places])
        return _with_values(self.history, self.service, values)


def _values(history: xr.Dataset, issued: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy of the values `(steps, cells)`, and the places of forecast cells in it."""
    service = str(issued.attrs["service"])
    values = history[service].transpose("time", "cell").to_numpy().astype(np.float64, copy=True)
    return values, pd.Index(history["cell"].to_numpy()).get_indexer(issued["cell"].to_numpy())


def _with_values(history: xr.Dataset, service: str, values: np.ndarray) -> xr.Dataset:
    return history.assign({service: (("time", "cell"), values, history[service].attrs)})


def open_run(folder: Path) -> ForecastRun:
    """Open the run of a service; a model alone is refused."""
    if is_model(folder):
        raise InputError(
            f"{folder}: a model alone, such as `stforecast adapt` writes; a service begins with "
            "the data and the test errors of a run: `stforecast run` on records of all cells "
            "makes one. In Python, Forecaster.update renews a model"
        )
    return ForecastRun.open(folder)


@contextmanager
def update_lock(run: Path) -> Iterator[None]:
    """Let only one process update a run at a time."""
    with file_lock(run / ".service.lock", run, "wait for it"):
        yield


def last_state(run: Path) -> Path | None:
    """Return the folder of the last state; None before the first update."""
    link = run / IN_SERVICE.parent
    if link.exists() and not link.is_symlink():
        raise InputError(
            f"{link}: a folder, expected a link to the last state, as a copy that follows links "
            f"makes it; `cd {quote(str(link.parent))} && mv current 1 && ln -s 1 current` mends it"
        )
    return link.resolve() if link.exists() else None


def read_state(folder: Path) -> ServiceState:
    """Read a state.

    Raises:
        InputError: if a file is missing or damaged.
    """
    with reading(folder, "as the state of a service", AGAIN):
        standing = UpdateStanding(**json.loads((folder / STATE).read_text()))
        with open_cube(folder / "history.nc") as cube:
            history = cube.load()
        with open_netcdf(folder / "issued.nc") as ds:
            issued = ds.load()
        state = ServiceState(history, issued, standing, read_csv(folder / "service.csv", ()))
        return _with_broken(state, folder / BROKEN)


def _with_broken(state: ServiceState, path: Path) -> ServiceState:
    """Return a state with the readings that are not believed, and whether each is one."""
    table = pd.read_csv(path, dtype={"cell": str}) if path.exists() else pd.DataFrame()
    if not len(table):
        return state
    values, places = _values(state.history, state.issued)
    names = pd.Index([str(cell) for cell in state.issued["cell"].to_numpy()])
    at = state.history.indexes["time"].get_indexer(pd.DatetimeIndex(table["time"]))
    cells = names.get_indexer(pd.Index(table["cell"]))
    broken = np.zeros((len(values), len(places)), bool)
    broken[at, cells] = True
    values[at, places[cells]] = table["reading"].to_numpy()
    history = _with_values(state.history, state.service, values)
    return replace(state, history=history, broken=broken)


def _broken_table(state: ServiceState) -> pd.DataFrame:
    if state.broken is None:
        return pd.DataFrame({"time": [], "cell": [], "reading": []})
    values, places = _values(state.history, state.issued)
    at, cells = np.nonzero(state.broken & np.isfinite(values[:, places]))
    return pd.DataFrame({
        "time": state.history.indexes["time"][at], "cell": state.issued["cell"].to_numpy()[cells],
        "reading": values[at, places[cells]],
    })  # fmt: skip


def write_state(state: ServiceState, folder: Path) -> None:
    """Write a state without its model."""
    write_cube(state.believed, folder / "history.nc")
    _broken_table(state).to_csv(folder / BROKEN, index=False)
    with netcdf_target(folder / "issued.nc") as target:
        dump(state.issued, target)
    write_csv(state.log, folder / "service.csv")
    (folder / STATE).write_text(json.dumps(asdict(state.standing), indent=2) + "\n")


@contextmanager
def next_state(run: Path) -> Iterator[Path]:
    """Yield the folder of the next state, which becomes the current one if the block succeeds."""
    service, before = run / IN_SERVICE.parts[0], last_state(run)
    number = int(before.name) + 1 if before else 1
    part = service / f".{number}.part"
    shutil.rmtree(part, ignore_errors=True)
    with naming_full_disk(service):
        part.mkdir(parents=True)
        yield part
    shutil.rmtree(service / str(number), ignore_errors=True)  # Of an update that was killed.
    part.rename(service / str(number))
    link = service / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(str(number))
    link.replace(service / IN_SERVICE.parts[1])
    for old in service.iterdir():
        if old.name.isdigit() and int(old.name) <= number - KEPT:
            shutil.rmtree(old, ignore_errors=True)


def state_before(run: ForecastRun) -> ServiceState:
    """Return the state before the first update: the run's data and the scales of its errors.

    Raises:
        InputError: if the run's data are gone.
    """
    further = str(run.settings.get("inputs") or "").split(",")
    services = [run.about["service"], *(name.strip() for name in further if name.strip())]
    try:
        with open_data(data_of(run.about)) as cube:
            kept = [name for name, v in cube.data_vars.items() if "time" not in v.dims]
            history = cube[[*services, *kept]].load()
    except InputError as e:
        raise InputError(
            e,
            f"; the first update begins with the data of {run.folder}: put them back at this path",
        ) from e
    with run.open_forecasts() as found, run.reading(found):
        keep = [n for n in ("y_hat", "y", "lower", "upper", "seasonal_naive") if n in found]
        scales = [str(name) for name, v in found.items() if v.dims == ("cell",)]
        issued = found[keep + scales].isel(time=slice(0)).load()
    end = str(history.indexes["time"][-1])
    return ServiceState(
        history, issued, UpdateStanding(run.score("mase"), end, end), pd.DataFrame()
    )
