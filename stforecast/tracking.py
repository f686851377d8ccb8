"""Callbacks of a training, and those that write to TensorBoard, MLflow and Weights & Biases.

    Forecaster("fuels").fit("milan.nc", callbacks=[TensorBoard("logs")])

A callback of your own is a class with the three methods of `Callback`, of which any may be left as
they are. The packages are optional: `pip install "stforecast[tracking]"` installs TensorBoard,
`pip install mlflow-skinny` and `pip install wandb` the others.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import pandas as pd

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import pooled
from stforecast.federated.engine.rounds import RoundReport


class Callback:
    """Hook of `Forecaster.fit`; by default each method does nothing."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Note the begin of a training.

        Args:
            settings: path or title of the data as `data`, and all settings by name.
        """

    def after_round(self, report: RoundReport) -> None:
        """Note a round; reference forecasters have none.

        Args:
            report: losses, bytes and seconds of the round.
        """

    def end(self, errors: Mapping[str, float]) -> None:
        """Note the end of a training.

        Args:
            errors: errors over all cells and steps ahead, such as `test/mse` and
                `validation/raw_mae`.
        """


class TensorBoard(Callback):
    """Writes losses, bytes, errors and settings for TensorBoard.

    Args:
        folder: folder of the event files, shown by `tensorboard --logdir FOLDER`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Open the event file and write the settings as text."""
        tensorboard = _installed("torch.utils.tensorboard", "'stforecast[tracking]'")
        self._writer = tensorboard.SummaryWriter(self.folder)
        lines = [f"| {name} | {value} |" for name, value in settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def after_round(self, report: RoundReport) -> None:
        """Write the numbers of a round."""
        for name, value in finite_numbers(report).items():
            self._writer.add_scalar(name, value, report.round)

    def end(self, errors: Mapping[str, float]) -> None:
        """Write the errors and close the file."""
        for name, value in errors.items():
            self._writer.add_scalar(name, value, 0)
        self._writer.close()


class MLflow(Callback):
    """Writes parameters and metrics of a run of MLflow.

    Args:
        experiment: name of the experiment; by default MLflow's own.
        run_name: name of the run.
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None) -> None:
        self.experiment, self.run_name = experiment, run_name

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start the run and log the settings."""
        self._mlflow = mlflow = _installed("mlflow", "mlflow-skinny")
        if self.experiment is not None:
            mlflow.set_experiment(self.experiment)
        mlflow.start_run(run_name=self.run_name)
        mlflow.log_params(dict(settings))

    def after_round(self, report: RoundReport) -> None:
        """Log the numbers of a round."""
        self._mlflow.log_metrics(finite_numbers(report), step=report.round)

    def end(self, errors: Mapping[str, float]) -> None:
        """Log the errors and end the run."""
        self._mlflow.log_metrics(dict(errors))
        self._mlflow.end_run()


class WeightsAndBiases(Callback):
    """Writes config, history and summary of a run of Weights & Biases.

    Args:
        **options: arguments of `wandb.init`, such as `project="milan"` or `mode="offline"`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Start the run with the settings as its config."""
        wandb = _installed("wandb", "wandb")
        self._run = wandb.init(**{"config": dict(settings), **self.options})

    def after_round(self, report: RoundReport) -> None:
        """Log the numbers of a round."""
        self._run.log(finite_numbers(report), step=report.round)

    def end(self, errors: Mapping[str, float]) -> None:
        """Write the errors to the summary and finish the run."""
        self._run.summary.update(dict(errors))
        self._run.finish()


def finite_numbers(report: RoundReport) -> dict[str, float]:
    """Return the finite numbers of a report by name, without the number of the round."""
    found = {name: float(value) for name, value in dataclasses.asdict(report).items()}
    return {name: v for name, v in found.items() if name != "round" and math.isfinite(v)}


def call_all(
    after_round: Callable[[RoundReport], None] | None, callbacks: Sequence[Callback]
) -> Callable[[RoundReport], None] | None:
    """Return one function that calls all of them; None if there are none."""
    functions = [f for f in (after_round, *(c.after_round for c in callbacks)) if f is not None]

    def call_each(report: RoundReport) -> None:
        for function in functions:
            function(report)

    return call_each if functions else None


def errors_by_name(table: pd.DataFrame, selection: str) -> dict[str, float]:
    """Return the errors over all cells and steps, by split and metric: `test/mse`."""
    found = pooled(table[table["selection"] == selection])
    names = found["split"] + "/" + found["metric"]
    return dict(zip(names, found["value"].astype(float), strict=True))


def _installed(module: str, source: str) -> Any:
    """Import a module of an optional package, which `pip install` takes from a source."""
    try:
        return import_module(module)
    except ImportError as e:
        package = module.rpartition(".")[2]
        raise InputError(f"{package} is not installed; pip install {source}") from e
