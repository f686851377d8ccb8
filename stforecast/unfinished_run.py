"""A run of a forecaster while it is done: what it trains, writes and says of itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd

from data_prep.atomic import atomic_path
from data_prep.netcdf import dump, netcdf_target
from stforecast.federated.runs.checkpointing import Checkpointer
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.runs.unfinished_run import AfterRound, UnfinishedRun
from stforecast.federated.server import RoundReport
from stforecast.federated.uploads.privacy import epsilon
from stforecast.forecaster import Forecaster
from stforecast.results import METRIC_COLUMNS, ForecastRun, data_of


class UnfinishedForecastRun(UnfinishedRun[ForecastRun]):
    """A run of a forecaster that is being done.

    Args:
        folder: the run's.
        begun: contents of `settings.json`.
        forecaster: of these settings, if it is made already.
    """

    kind = ForecastRun
    needed = ("data", "label")

    def __init__(
        self, folder: Path, begun: dict[str, Any], forecaster: Forecaster | None = None
    ) -> None:
        super().__init__(folder, begun)
        self.forecaster = forecaster or Forecaster(**begun["settings"])
        self.data = data_of(begun)

    def train(self, checkpointer: Checkpointer, after_round: AfterRound | None) -> None:
        """Fit the forecaster."""
        self.forecaster.fit(self.data, after_round, checkpointer)

    def write_results(self) -> None:
        """Write the model, the errors, the rounds and the forecasts."""
        forecaster, out = self.forecaster, self.folder
        forecaster.save(out / "model")
        metrics = forecaster.evaluate().assign(
            method=forecaster.config.method,
            data=self.data.stem,
            service=forecaster.service,
            seed=forecaster.config.run.seed,
        )
        write_csv(metrics[list(METRIC_COLUMNS)], out / "metrics.csv")
        rounds = forecaster.rounds_
        no_rounds = pd.DataFrame(columns=list(RoundReport.__dataclass_fields__))
        write_csv(rounds if len(rounds) else no_rounds, out / "rounds.csv")
        if len(forecaster.refits_):
            write_csv(forecaster.refits_, out / "refits.csv")
        with atomic_path(out / "forecasts.nc") as part, netcdf_target(part) as target:
            dump(forecaster.test_forecasts(), target)

    def describe(self) -> dict[str, Any]:
        """Settings, data and what came of them."""
        forecaster, begun = self.forecaster, self.begun
        return {
            "settings": forecaster.asked.flat(),
            "window": dataclasses.asdict(forecaster.config.window),
            "label": begun["label"],
            "data": begun["data"],
            "data_path": str(self.data.absolute()),
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
    uplink, refits = forecaster.config.uplink, forecaster.refits_
    uploads = len(forecaster.rounds_) + (int(refits["rounds"].sum()) if len(refits) else 0)
    if not uplink.private or not uploads:
        return {}
    guarantee = {"epsilon": epsilon(uplink, uploads), "delta": uplink.privacy_delta}
    return {"privacy": {**guarantee, "of": "a client's whole training series", "uploads": uploads}}
