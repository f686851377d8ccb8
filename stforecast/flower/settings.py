"""Settings of a federation of nodes, and the Flower app that carries them.

The app is the folder that `flwr run` takes. It has no code of its own: nodes run their owners'
installation of `stforecast`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.base.errors import InputError, Words, counted, reading
from data_prep.base.files import atomic_path
from data_prep.readers.times import check_time_zone
from stforecast.bench import LOCAL
from stforecast.data.anchors import CHOSEN
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.uploads.masking import SecureSums
from stforecast.forecasting.config import Config, resolve
from stforecast.forecasting.rolling import RATES
from stforecast.forecasting.trained_method import build_method
from stforecast.methods import METHODS

LIMITS = ("start", "answer", "enough", "strikes", "min_parties")
"""Fields of `Patience` in the run's configuration."""

HOUR = pd.Timedelta(hours=1)

TRAINING = pd.Timedelta(weeks=4)
"""Length of a training part for which lags and calendar are chosen."""


@dataclass(frozen=True)
class RunSettings:
    """Settings in the run's configuration, the same for the server and all nodes.

    Attributes:
        config: settings of the forecast. Lags and calendar that are `auto` become those of a
            training part of four weeks, as the server does not know the nodes' data. Rounds are
            those for `n_clients` cells, if clients are cells.
        n_clients: number of clients of all nodes together: cells, or, with `clients` `all`, nodes.
        patience: time limits of the server.
        out: folder on the server for its results.
        step: length of a step of every node's data, from which the server, which has none, computes
            the steps of a day.
        owners: clients of each of Flower's nodes; empty admits any node.
        secure: settings of secure aggregation; None for none.
        time_zone: IANA name of the zone whose wall clock all nodes follow; empty if each follows
            that of its own data.
        units: unit to which all nodes convert their data; empty if each has its own.
        unsafe_open: run although strangers can run apps at the server's address.
        after: the server's name of the finished run from which nodes go on; empty for none.
    """

    config: Config
    n_clients: int
    patience: Patience
    out: str
    step: pd.Timedelta = HOUR
    owners: Mapping[int, range] = field(default_factory=dict)
    secure: SecureSums | None = None
    time_zone: str = ""
    units: str = ""
    unsafe_open: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        """Choose lags, calendar and rounds."""
        window = self.config.window.chosen(self.step, TRAINING // self.step)
        config = dataclasses.replace(self.config, window=window)
        if config.clients == "cell":
            config = config.for_cells(self.n_clients)
        object.__setattr__(self, "config", config)

    def as_run_config(self) -> dict[str, Any]:
        """Return flat values for Flower's run configuration."""
        return {
            "settings": json.dumps(self.config.flat()),
            "clients": self.n_clients,
            **{name: getattr(self.patience, name) for name in LIMITS},
            "out": self.out,
            "step": str(self.step),
            "owners": json.dumps({n: [r.start, r.stop] for n, r in self.owners.items()}),
            "time-zone": self.time_zone,
            "units": self.units,
            "secure-threshold": self.secure.secure_threshold if self.secure else 0.0,
            "unsafe-open": self.unsafe_open,
            "after": self.after,
        }

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> RunSettings:
        """Read the values of `as_run_config`."""
        try:
            settings = json.loads(values["settings"])
            limits = {name: values[name] for name in LIMITS}
            n_clients, out = int(values["clients"]), str(values["out"])
            step = parse_step(str(values["step"]))
            owners = {int(n): range(*r) for n, r in json.loads(values["owners"]).items()}
            config, threshold = resolve(**settings), float(values["secure-threshold"])
            zone, units = str(values["time-zone"]), str(values["units"])
            unsafe_open, after = bool(values["unsafe-open"]), str(values["after"])
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(
                f"the run's configuration cannot be used ({e!r}); create it again"
            ) from e
        if zone:
            check_time_zone(zone)
        patience = Patience(**limits)
        check_config(config.at(step))
        if n_clients < 1:
            raise InputError(f"clients is {n_clients}; a federation has at least one")
        if patience.enough > n_clients:
            raise InputError(
                f"enough is {patience.enough}, but the federation has {n_clients} clients; "
                f"give at most {n_clients}"
            )
        # A node has one client at least.
        if patience.min_parties > n_clients:
            raise InputError(
                f"min_parties is {patience.min_parties}, but the federation has {n_clients} "
                f"clients, and so no more nodes; give at most {n_clients}"
            )
        check_owners(owners, n_clients)
        secure = SecureSums(threshold) if threshold else None
        if secure:
            from stforecast.federated.nodes.node_sums import check_sums

            check_sums(METHODS[config.method], config.uplink, config.robust)
        further = secure, zone, units, unsafe_open, after
        return cls(config, n_clients, patience, out, step, owners, *further)

    def continued(self, after: str, out: Path, rounds: int) -> RunSettings:
        """Return the settings of some further rounds at the learning rate of refits."""
        training, config = self.config.training, self.config
        training = dataclasses.replace(
            training,
            rounds=rounds + METHODS[config.method].sums_first,
            schedule="constant",
            lr=RATES[training.schedule] * training.lr,
        )
        config = dataclasses.replace(config, training=training)
        return dataclasses.replace(self, config=config, after=after, out=str(out.resolve()))


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


def check_owners(owners: Mapping[int, range], n_clients: int) -> None:
    """Check that the nodes' clients are those of the federation, each once."""
    claimed = [i for numbers in owners.values() for i in numbers]
    if owners and sorted(claimed) != list(range(n_clients)):
        odd = next(
            i for i in (*range(n_clients), *claimed) if claimed.count(i) != 1 or i >= n_clients
        )
        raise InputError(
            Words("{node}"),
            f" gives client {odd} to {counted(claimed.count(odd), 'node')}; each of the clients 0 "
            f"to {n_clients - 1} belongs to one node",
        )


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
    """Check that nodes support the settings: no other node's data, and no steps besides rounds."""
    if not config.federated or METHODS[config.method].pooled:
        raise InputError(
            f"{config.method} does not train in rounds of clients, so nodes cannot run it; ",
            Words("choose another {method}"),
        )
    if config.data.scale != "cell":
        raise InputError(
            f"scale is {config.data.scale!r}: no node knows the others' values; take scale 'cell'"
        )
    if config.clients.startswith(("kmeans:", "grid:")) or config.clients.endswith(".csv"):
        raise InputError(
            f"clients is {config.clients!r}: no node knows the others' cells; give each node the "
            "cells of one client and clients 'all', or 'cell', or a column of the nodes' cubes"
        )
    if config.rolling.refit != "never" or config.interval.intervals != "none":
        raise InputError(
            Words("nodes neither refit nor calibrate intervals; leave out {refit} and {intervals}")
        )
    if config.window.events:
        raise InputError(
            f"events is {config.window.events!r}: nodes read no table of events; leave it out"
        )
    if config.run.engine != LOCAL:
        raise InputError(
            f"engine is {config.run.engine!r}: each node trains its clients in one process; leave "
            "it out"
        )
    if config.window.target == CHOSEN:
        raise InputError(
            f"target is {CHOSEN!r}: the server has no validation data to choose it; ",
            Words("give a {target}"),
        )
    if config.training.slow_share or config.training.mixing:
        raise InputError(
            Words(
                "slow clients are simulated in one process only; leave out {slow_share} and "
                "{mixing}"
            )
        )
    config.robust.check(METHODS[config.method])
    if config.uplink.private and (
        METHODS[config.method].sends_counts
        or any(
            not t.is_floating_point() for t in build_method(config).population.buffers(1).values()
        )
    ):
        raise InputError(
            f"{config.method} with model {config.run.model} also sends counters, which the "
            "Gaussian mechanism does not cover; ",
            Words("leave out {clip}, or choose another {method} or {model}"),
        )
    if config.uplink.delta_coding:
        raise InputError(
            Words("nodes may lose an upload, so they do not support {delta_coding}; leave it out")
        )


PACKAGE = "stforecast_app"

CLIENT = """from stforecast.flower.client_app import make_client_app

app = make_client_app()
"""

SERVER = """from stforecast.flower.server_app import make_server_app

app = make_server_app()
"""

PROJECT = """[project]
name = "stforecast-app"
version = "1.0.0"
description = "Federated forecasting with {method}"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.flwr.app]
publisher = "stforecast"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, run: RunSettings) -> Path:
    """Write the app into a folder, which is returned; files of an earlier one are replaced."""
    config = "\n".join(f"{name} = {_toml(v)}" for name, v in run.as_run_config().items())
    files: Mapping[str, str] = {
        "pyproject.toml": PROJECT.format(method=run.config.method, package=PACKAGE, config=config),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/client.py": CLIENT,
        f"{PACKAGE}/server.py": SERVER,
    }
    for name, text in files.items():
        with atomic_path(folder / name) as part:
            part.write_text(text)
    return folder


def read_app(folder: Path) -> RunSettings:
    """Read the settings that `write_app` wrote."""
    path = folder / "pyproject.toml"
    with reading(path, "as a Flower app", "give the folder that `stforecast federate` wrote"):
        project = tomllib.loads(path.read_text())
        return RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"])


def _toml(value: Any) -> str:
    """Format a value as TOML; texts are in single quotes, as JSON has double ones."""
    if not isinstance(value, str):
        return repr(value).lower()
    if "'" not in value and "\n" not in value:
        return f"'{value}'"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
