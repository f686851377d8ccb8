"""Settings of a federation of nodes, and the Flower app that carries them.

The app is the folder that `flwr run` takes. It has no code of its own: nodes run their owners'
installation of `stforecast`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.base.errors import InputError, Words, reading
from data_prep.base.files import atomic_path
from data_prep.readers.times import check_time_zone
from stforecast.bench import LOCAL
from stforecast.bench.kind import DEFAULT, kind_named
from stforecast.data.anchors import CHOSEN
from stforecast.data.partition import parse_partition
from stforecast.data.splits import parse_split
from stforecast.federated.core.method import Method
from stforecast.federated.nodes.masker import METRICS
from stforecast.federated.nodes.messages import FEW
from stforecast.federated.nodes.run_settings import FederationSettings, Refits
from stforecast.flower.cube_clients import BEFORE_TEST, ON_ALL, CubeClients
from stforecast.forecasting.config import Config, resolve
from stforecast.forecasting.groups import check_adds_up
from stforecast.forecasting.trained_method import build_method
from stforecast.methods import METHODS

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class RunSettings(FederationSettings):
    """Settings of forecasts on nodes: clients are cells, or with `clients` `all`, nodes.

    Attributes:
        config: settings of the forecast. Lags and calendar that are `auto` become those of a
            training part of four weeks, as the server does not know the nodes' data. Rounds are
            those for `n_clients` cells, if clients are cells.
        step: length of a step of every node's data, from which the server, which has none, computes
            the steps of a day.
        time_zone: IANA name of the zone whose wall clock all nodes follow; empty if each follows
            that of its own data.
        units: unit to which all nodes convert their data; empty if each has its own.
        totals: whether the server learns at the end what the cells of all nodes carry together.
    """

    task = DEFAULT
    metrics = METRICS
    protected = "a client's whole training series"

    config: Config
    step: pd.Timedelta = HOUR
    time_zone: str = ""
    units: str = ""
    totals: bool = False

    def __post_init__(self) -> None:
        """Choose lags, calendar and rounds."""
        window = self.config.window.chosen(self.step, pd.Timedelta(weeks=4) // self.step)
        config = dataclasses.replace(self.config, window=window)
        if config.clients == "cell":
            config = config.for_cells(self.n_clients)
        object.__setattr__(self, "config", config)

    @property
    def method(self) -> type[Method] | None:
        """Class of the method; None for a reference forecaster."""
        return METHODS[self.config.method] if self.config.federated else None

    @property
    def chosen(self) -> Config:
        """Settings of the forecast, with times in steps."""
        return self.config.at(self.step)

    @property
    def refits(self) -> Refits | None:
        """Refits before the test part, for the errors there, and after it, for the forecasts."""
        rolling, training = self.config.rolling, self.config.training
        if rolling.refit == "never":
            return None
        # Without a validation part, nothing is new before the test part.
        before = (BEFORE_TEST,) if parse_split(self.config.data.split).has_validation else ()
        after = (ON_ALL,) if rolling.refit == "final" else ()
        # A run that goes on trains as refits do.
        training = training if self.after else training.further
        return Refits(before + after, training, rolling.refit_rounds, self.config.run.select)

    @property
    def most_cells(self) -> float:
        """Number of cells in a round at most; clients other than cells may have any number."""
        return super().most_cells if self.config.clients == "cell" else math.inf

    def build_method(self) -> Method:
        """Return the method with a new model."""
        return build_method(self.chosen)

    def clients_at(self, data: Path, first: int, model: str = "") -> CubeClients:
        """Return the clients of a node's cube."""
        return CubeClients(self, data, first, model)

    @classmethod
    def read(cls, settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the forecast, step, zone and units."""
        own = {"time_zone": str(values["time-zone"]), "units": str(values["units"])}
        step, totals = parse_step(str(values["step"])), bool(values.get("totals", False))
        return {"config": resolve(**settings), "step": step, "totals": totals, **own}

    def as_run_config(self) -> dict[str, Any]:
        """Return flat values for Flower's run configuration."""
        own = {"step": str(self.step), "time-zone": self.time_zone, "units": self.units}
        return super().as_run_config() | own | {"totals": self.totals}

    def check(self) -> None:
        """Refuse also what needs other nodes' data, and steps besides rounds."""
        super().check()
        if self.time_zone:
            check_time_zone(self.time_zone)
        check_config(self.chosen)
        if self.totals:
            checks = self.units, self.time_zone, self.config.has_intervals
            if not all(checks) or self.patience.min_parties < FEW:
                raise InputError(
                    Words(
                        "{totals} adds forecasts with bounds over three nodes or more; also give "
                        "{units}, {time_zone}, {intervals:conformal} and {min_parties:3} or more"
                    )
                )
            check_adds_up(self.config.data.service or "", self.units)


def read_run(values: Mapping[str, Any]) -> FederationSettings:
    """Read the run's configuration of any kind of run; of forecasts if it names none."""
    task = str(values.get("task", DEFAULT))
    # Importing a kind takes a while, as its tables and figures come with it.
    kind = RunSettings if task == DEFAULT else kind_named({"task": task}).node_settings()
    return kind.from_run_config(values)


def parse_owner(text: str) -> tuple[int, range]:
    """Read a node's number at the SuperLink and its clients, such as 1234567=0-11."""
    found = re.fullmatch(r"(\d+)=(\d+)-(\d+)", text)
    if found is None or int(found[2]) > int(found[3]):
        raise InputError(
            Words("{node}"),
            f" is {text!r}; give the number that `flwr supernode register` printed, and the node's "
            "first and last client, like 1234567=0-11",
        )
    return int(found[1]), range(int(found[2]), int(found[3]) + 1)


def parse_step(text: str) -> pd.Timedelta:
    """Read the length of a step, such as 10min or 1h."""
    try:
        step = pd.Timedelta(text)
    except ValueError as e:
        raise InputError(f"step is {text!r}; give a length of time like 10min or 1h") from e
    if not step > pd.Timedelta(0):  # NaT is not either.
        raise InputError(f"step is {text!r}; give a positive length of time like 10min or 1h")
    return step


def check_config(config: Config) -> None:
    """Check that a forecast needs no other node's data, and no steps besides rounds."""
    given, window = config.flat(), config.window
    divided = parse_partition(config.clients) or config.clients.endswith(".csv")
    refits = Words("take {refit:once}, {refit:final} or {refit:never}")
    for name, odd, *why in (
        ("scale", config.data.scale != "cell", "no node knows the others' values; take 'cell'"),
        ("clients", divided, "no node knows the others' cells; give each node the cells of one "
         "client and clients 'all', or 'cell', or a column of the nodes' cubes"),
        ("refit", config.rolling.refit not in ("once", "final", "never"),
         "nodes refit before the test part and after it; ", refits),
        ("events", window.events, "nodes read no table of events; leave it out"),
        ("engine", config.run.engine != LOCAL,
         "each node trains its clients in one process; leave it out"),
        ("target", window.target == CHOSEN, "the server has no validation data to choose it; ",
         Words("give a {target}")),
    ):  # fmt: skip
        if odd:
            raise InputError(f"{name} is {given[name]!r}: ", *why)


PROJECT = """[project]
name = "stforecast-app"
version = "1.0.0"
description = "Federated {task} with {method}"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.flwr.app]
publisher = "stforecast"

[tool.flwr.app.components]
serverapp = "stforecast_app.server:app"
clientapp = "stforecast_app.client:app"

[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, run: FederationSettings) -> Path:
    """Write the app into a folder, which is returned; files of an earlier one are replaced."""
    config = "\n".join(f"{name} = {_toml(v)}" for name, v in run.as_run_config().items())
    files = {
        "pyproject.toml": PROJECT.format(task=run.task, method=run.config.method, config=config),
        "stforecast_app/__init__.py": "",
    }
    for side in ("client", "server"):
        make = f"make_{side}_app"
        text = f"from stforecast.flower.{side}_app import {make}\n\napp = {make}()\n"
        files[f"stforecast_app/{side}.py"] = text
    for name, text in files.items():
        with atomic_path(folder / name) as part:
            part.write_text(text)
    return folder


def read_app(folder: Path) -> FederationSettings:
    """Read the settings that `write_app` wrote."""
    path = folder / "pyproject.toml"
    with reading(path, "as a Flower app", "give the folder that `stforecast federate` wrote"):
        project = tomllib.loads(path.read_text())
        return read_run(project["tool"]["flwr"]["app"]["config"])


def _toml(value: Any) -> str:
    """Format a value as TOML; texts are in single quotes, as JSON has double ones."""
    if not isinstance(value, str):
        return repr(value).lower()
    if "'" not in value and "\n" not in value:
        return f"'{value}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
