"""Runs of a forecaster: start, resume, training and results."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from data_prep.netcdf import netcdf_target
from stforecast.bench import LOCAL
from stforecast.bench.run_groups import pooled, select
from stforecast.data.anchors import CHOSEN
from stforecast.data.clients import partition_cells
from stforecast.data.partition import parse_partition
from stforecast.data.prepared import PreparedSeries
from stforecast.data.series import Series
from stforecast.data.window_spec import AUTO, AUTO_DAYS, AUTO_WEEKDAYS
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.runs.unfinished_run import (
    AfterRound,
    Checkpointer,
    UnfinishedRun,
    new_folder,
)
from stforecast.federated.uploads.uplink import Sent, Uplink, guarantee
from stforecast.forecasting.config import read_by
from stforecast.forecasting.evaluate import By
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.results import METRIC_COLUMNS, ForecastRun, data_of
from stforecast.tracking import Callback

NOTES = ("table", "fold", "backtest", "swept")
"""Notes in `run.json` on a run's place in a benchmark: the table of its row, and the number of its
fold in a backtest, with a description of the folds; and what was swept to choose its settings."""


def run(
    method: str,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    label: str | None = None,
    notes: Mapping[str, Any] | None = None,
    after_round: AfterRound | None = None,
    callbacks: Sequence[Callback] = (),
) -> ForecastRun:
    """Fit a forecaster, evaluate it and write the run folder.

    Args:
        method: name of a method.
        data: path of a cube or of a table.
        out: run folder; created if it does not exist.
        settings: flat settings, see `stforecast.forecasting.config`.
        label: name of the run in tables and legends; by default the method.
        notes: further entries of `run.json`, see `NOTES`.
        after_round: called with each round's report.
        callbacks: as for `Forecaster.fit`.

    Raises:
        InputError: if data or settings do not fit, or `out` is a file or holds a finished run.
    """
    out = Path(out)
    with new_folder(out, ForecastRun.command):
        forecaster = Forecaster(method, **settings)
        asked = forecaster.asked.flat()
        begun = {"settings": asked, **places(data), "label": label or method, **(notes or {})}
        unfinished = UnfinishedForecastRun(out, begun, forecaster, callbacks)
        return unfinished.complete(after_round)


def resume(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    after_round: AfterRound | None = None,
) -> ForecastRun:
    """Resume a stopped run from its newest intact checkpoint.

    On the same machine, the results equal those of an uninterrupted run, bit for bit.

    Args:
        folder: the run folder; a finished run is only opened.
        data: path of the cube, if it has moved.
        after_round: called with each round's report.

    Raises:
        InputError: if the folder holds no run, or results cannot be written.
        Stopped: on SIGINT or SIGTERM, after the round.
    """
    changes = {} if data is None else places(data)
    return UnfinishedForecastRun.resume(Path(folder), after_round, changes)


def places(data: str | os.PathLike[str]) -> dict[str, str]:
    """Return the cube's path as typed and as an absolute path."""
    return {"data": str(data), "data_path": str(Path(data).absolute())}


class UnfinishedForecastRun(UnfinishedRun[ForecastRun]):
    """An unfinished run of a forecaster.

    Args:
        folder: the run folder.
        begun: contents of `settings.json`.
        forecaster: a forecaster of these settings; by default a new one.
        callbacks: as for `Forecaster.fit`.
    """

    kind = ForecastRun
    needed = ("data", "label")

    def __init__(
        self,
        folder: Path,
        begun: dict[str, Any],
        forecaster: Forecaster | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(folder, begun)
        self.forecaster = forecaster or Forecaster.recorded(begun["settings"])
        self.data, self.callbacks = data_of(begun), callbacks
        self._checkpointer: Checkpointer | None = None

    def complete(self, after_round: AfterRound | None = None) -> ForecastRun:
        """Finish the run; Ray is started once for its rounds and its shards of cells."""
        options = self.forecaster.asked.run
        if options.engine == LOCAL:
            return super().complete(after_round)
        from stforecast.bench.ray import cluster  # Importing it takes a while.

        with cluster(options.actors * (options.workers or 1) or None):
            return super().complete(after_round)

    def train(self, checkpointer: Checkpointer, after_round: AfterRound | None) -> None:
        """Fit the forecaster."""
        self._checkpointer = checkpointer
        self.forecaster.fit(self.data, after_round, checkpointer, callbacks=self.callbacks)

    def write_results(self) -> None:
        """Write the model, the errors, the rounds and the forecasts."""
        forecaster, out = self.forecaster, self.folder
        # Forecasts come first: errors are summed, and bounds calibrated, on the way.
        with atomic_path(out / "forecasts.nc") as part, netcdf_target(part) as target:
            forecaster.dump_forecasts(target, self._checkpointer)
            self._write_errors("cell", out / "metrics.csv")  # It refuses results without errors.
        if not forecaster.data_.clients.by_cell:
            self._write_errors("client", out / "clients.csv")
        forecaster.save(out / "model")
        rounds = forecaster.rounds_
        no_rounds = pd.DataFrame(columns=list(RoundReport.__dataclass_fields__))
        write_csv(rounds if len(rounds) else no_rounds, out / "rounds.csv")
        if len(forecaster.refits_):
            write_csv(forecaster.refits_, out / "refits.csv")

    def _write_errors(self, by: By, path: Path) -> None:
        forecaster = self.forecaster

        def tables() -> Iterator[pd.DataFrame]:
            for errors in forecaster.errors(by):
                self.check(errors)
                errors = errors.assign(
                    method=forecaster.config.method,
                    data=self.data.stem,
                    service=forecaster.data_.series.service,
                    seed=forecaster.config.run.seed,
                )
                # Only errors of swept settings have this column.
                swept = {"swept": self.begun["swept"]} if "swept" in self.begun else {}
                yield errors[list(METRIC_COLUMNS)].assign(**swept)

        write_csv(tables(), path)

    def check(self, errors: pd.DataFrame) -> None:
        """Refuse results whose squared error over the whole test part is not finite."""
        found = pooled(select(errors, metric="mse", split="test"))["value"].to_numpy()
        if not np.isfinite(found).all():
            raise InputError(
                f"{self.folder}: the squared error over the test part is {found[0]:g}, expected a "
                "finite number; check that the data have values in the test part, and none that is "
                "absurd, and that the method forecasts numbers"
            )

    def privacy(self) -> dict[str, Any]:
        """Return the guarantee of differential privacy, if there is one."""
        asked, before = self.forecaster.asked, self.begun.get("sent_before", ())
        uploads = [*(Sent(Uplink(**uplink), n) for uplink, n in before), *self.forecaster.sent_]
        of_intervals = "weights fitted to all clients' errors"
        of_target = "chosen by all clients' errors, and the uploads of the other targets"
        shared = {
            "scale global: mean and deviation of all clients' values": asked.data.scale == "global",
            "static columns, scaled over all clients": asked.window.columns,
            f"intervals normalised: {of_intervals}": asked.interval.intervals == "normalised",
            f"target validation: {of_target}": asked.window.target == CHOSEN,
            "the division of the cells, by all clients' cells": parse_partition(asked.clients),
        }
        names = [name for name, is_shared in shared.items() if is_shared]
        uplink = self.forecaster.config.uplink
        return guarantee(uplink, uploads, "a client's whole training series", names)

    def describe(self) -> dict[str, Any]:
        """Return settings, data and results for `run.json`."""
        forecaster, begun = self.forecaster, self.begun
        return {
            **facts_of(forecaster),
            "label": begun["label"],
            **{name: begun[name] for name in NOTES if name in begun},
            "data": begun["data"],
            "data_path": str(self.data.absolute()),
            "content": content_of(forecaster.data_.series, forecaster.asked.data.clients),
            "prepared_by": forecaster.data_.series.prepared_by,
            **self.privacy(),
        }


def content_of(series: Series, clients: str) -> str:
    """Return the fingerprint of a series, and of the clients of its cells.

    The setting and the seed say which clients are drawn, so their cells do not count.
    """
    if clients in ("cell", "all"):
        return fingerprint(*series.identity())
    drawn = getattr(parse_partition(clients), "drawn", False)
    owners = [clients] if drawn else partition_cells(clients, series).labels
    return fingerprint(*series.identity(), *owners)


def facts_of(forecaster: Forecaster) -> dict[str, Any]:
    """Return the settings and results of a fitted forecaster for `run.json`."""
    data = forecaster.data_
    series = data.series
    return {
        "settings": forecaster.asked.flat(),
        "window": dataclasses.asdict(forecaster.config.window),
        "chosen": _chosen(forecaster),
        "parts": data.parts(),
        "outliers": data.outliers(),
        "service": series.service,
        "units": series.units,
        "clients": len(series.cells),
        **_division(data),
        "time_zone": series.time_zone,
        "step_minutes": series.calendar.step / pd.Timedelta(minutes=1),
        "federated": forecaster.config.federated,
        "train_seconds": round(forecaster.train_seconds_, 3),
        "predict_seconds": round(forecaster.predict_seconds_, 3),
    }


def _division(data: PreparedSeries) -> dict[str, Any]:
    """Return clients' numbers of cells, divergences and roads cut, unless each is one cell."""
    clients, roads = data.clients, data.series.adjacency
    if clients.by_cell:
        return {}
    cells = dict(zip(clients.names, clients.sizes.tolist(), strict=True))
    cut = {} if roads is None else {"roads": clients.cut(roads)}
    return {"cells_of_clients": cells, "heterogeneity_bits": data.heterogeneity.bits(), **cut}


def _chosen(forecaster: Forecaster) -> dict[str, Any]:
    """Return the settings that were chosen on the validation part, by name."""
    series = forecaster.data_.series
    asked = forecaster.asked.at(series.calendar.step).for_cells(len(series.cells))
    read, found = read_by(asked.method, asked.flat()), forecaster.config.flat()
    del found["events"]  # The table became the names of its kinds; nothing was chosen.
    automatic = AUTO, AUTO_DAYS, AUTO_WEEKDAYS
    return {n: v for n, v in found.items() if read.get(n, v) not in (v, *automatic)}


def notes_of(sent: Sequence[Sent]) -> dict[str, Any]:
    """Return the note of uploads that left before a run, for the ε of both together."""
    known = [[dataclasses.asdict(s.uplink), s.uploads] for s in sent if s.uploads]
    return {"sent_before": known} if any(s.uplink.private for s in sent) else {}
