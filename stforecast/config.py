"""Settings of a forecast: flat names for people, one dataclass for each thing they configure.

`Forecaster("fuels", rounds=50, tau=0.1, split="days:20,5,5")`, the options of `stforecast run` and
the lines of a benchmark's TOML are the same names; `resolve` sends each to the dataclass that has
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from data_prep.errors import InputError
from data_prep.registry import find, join
from stforecast.baselines import BASELINES
from stforecast.data.windows import WindowSpec
from stforecast.federated.options import CheckedOptions, Workers
from stforecast.federated.settings import distribute, flatten
from stforecast.federated.sizing import parse_bytes
from stforecast.federated.training import Training
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.intervals import IntervalOptions
from stforecast.methods import METHODS
from stforecast.metrics.quantiles import pair_coverages, parse_levels
from stforecast.models import MODELS
from stforecast.task import LossOptions


@dataclass(frozen=True)
class DataOptions(CheckedOptions):
    """What is forecast, and on which part of it.

    Attributes:
        service: variable of the cube, such as internet or speed; may be left out if there is one.
        split: training, validation and test part: fuels, fedda, days:20,5,5, steps:0.7,0.1,0.2 or
            windows:0.7,0.1,0.2.
        scale: z-score each cell by itself (cell) or all alike (global); fitted on the training
            part.
    """

    service: str | None = None
    split: str = "fuels"
    scale: Literal["cell", "global"] = "cell"


@dataclass(frozen=True)
class RunOptions(CheckedOptions):
    """How it is computed.

    Attributes:
        model: name of the model that federated methods train.
        seed: seed of everything random; the same seed gives the same numbers.
        device: where to compute: auto, cpu or cuda; auto takes a GPU where there is one.
        select: whether the model of the best validation round or of the last one is kept.
        cohort: most clients trained together; 0 chooses.
        workers: cohorts that train at the same time on a CPU; 0 takes as many as there are cores.
        memory: what a run may take, like 8GB; where it needs more, the clients' states are kept in
            files. By default what the machine has left.
        checkpoint_every: rounds from one checkpoint to the next; 0 takes one on a signal only. By
            default as often as that costs no more than a 20th of the time.
    """

    model: str = "dual_gru"
    seed: NonNegativeInt = 1
    device: str = "auto"
    select: Literal["best", "last"] = "best"
    cohort: NonNegativeInt = 0
    workers: Workers = 0
    memory: str = ""
    checkpoint_every: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        """Refuse a memory that is no size."""
        super().__post_init__()
        if self.memory:
            parse_bytes(self.memory)


@dataclass(frozen=True)
class RollingOptions(CheckedOptions):
    """Refitting while the test part goes by; see `stforecast.rolling`.

    Attributes:
        refit: before each day or week of the test part but the first, the chosen model is refitted
            on what is known by then: never, daily or weekly.
        refit_rounds: rounds of such a refit, of federated methods.
        refit_lr: their learning rate; 0 takes a tenth of lr.
    """

    refit: Literal["never", "daily", "weekly"] = "never"
    refit_rounds: PositiveInt = 3
    refit_lr: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class Config:
    """All settings of one run, resolved.

    Attributes:
        method: name of a method or of a reference forecaster.
        data: what is forecast.
        window: which steps a window reads and forecasts.
        training: rounds, batches and the like; like the next two, only for federated methods.
        loss: what training minimises.
        uplink: what is done to uploads on their way.
        robust: how the server guards itself against bad uploads.
        interval: how sure a forecast is.
        rolling: refitting while the test part goes by.
        run: model, seed, device.
        method_options: an instance of the method's `Options`.
        model_options: an instance of the model's `Options`.
    """

    method: str
    data: DataOptions
    window: WindowSpec
    training: Training
    loss: LossOptions
    uplink: Uplink
    robust: Robust
    interval: IntervalOptions
    rolling: RollingOptions
    run: RunOptions
    method_options: Any
    model_options: Any

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        if self.interval.intervals != "none" and not self.coverages:
            raise InputError(
                f"quantiles is {self.loss.quantiles!r}; intervals need a pair, like 0.05,0.5,0.95"
            )

    def at(self, step: pd.Timedelta) -> Config:
        """These settings for a series whose steps have this length.

        Raises:
            InputError: naming a time that is not a whole number of steps.
        """
        return dataclasses.replace(self, window=self.window.at(step))

    @property
    def coverages(self) -> tuple[float, ...]:
        """Shares of the targets that the pairs of `quantiles` should hold, narrow ones first."""
        return tuple(pair_coverages(parse_levels(self.loss.quantiles)))

    @property
    def coverage(self) -> float:
        """The widest of them: that of the interval that is reported; 0 without a pair."""
        return max(self.coverages, default=0.0)

    @property
    def federated(self) -> bool:
        """Whether the method trains in rounds (not a reference forecaster)."""
        return self.method not in BASELINES

    @property
    def has_intervals(self) -> bool:
        """Whether forecasts say how sure they are."""
        learned = self.federated and len(self.loss.levels) > 1
        return learned or self.interval.intervals != "none"

    def flat(self) -> dict[str, Any]:
        """The settings under their flat names, so that `resolve(**config.flat())` equals this."""
        method, *parts = (getattr(self, f.name) for f in dataclasses.fields(self))
        return {"method": method, **flatten(*parts)}


def options_type(method: str) -> type:
    """The dataclass of a method's own settings.

    Raises:
        InputError: listing the methods if there is no such one.
    """
    return _find(method).Options


def defaults(method: str) -> dict[str, Any]:
    """Settings that a method is made for, where they are not everyone's; the model always.

    The help of the command line and `resolve` both start from them.

    Raises:
        InputError: listing the methods if there is no such one.
    """
    return {"model": RunOptions.model, **getattr(_find(method), "defaults", {})}


def _find(method: str) -> Any:
    return find("method", method, join(METHODS, BASELINES))


def sections(method: str, model: str = "dual_gru") -> dict[str, type]:
    """Name of each section of `Config` and its dataclass, for a method and a model.

    Raises:
        InputError: listing the valid names if there is no such method or model.
    """
    return {
        "data": DataOptions,
        "window": WindowSpec,
        "training": Training,
        "loss": LossOptions,
        "uplink": Uplink,
        "robust": Robust,
        "interval": IntervalOptions,
        "rolling": RollingOptions,
        "run": RunOptions,
        "method_options": options_type(method),
        "model_options": MODELS.find(model).Options,
    }


UNREAD_SECTIONS = ("training", "loss", "uplink", "robust", "model_options")
"""Sections that only methods that train in rounds read."""

UNREAD = ("model", "cohort", "workers", "memory", "checkpoint_every", "refit_rounds", "refit_lr")
"""Further settings that only these read."""


def unread(method: str, settings: Mapping[str, Any]) -> list[str]:
    """Names of settings that a method does not read, of those that are not at their default.

    Args:
        method: name of the method.
        settings: flat settings.

    Raises:
        InputError: if there is no such method or model.

    >>> unread("ridge", {"rounds": 3, "model": "dual_gru", "closeness": 6})
    ['rounds']
    """
    if method not in BASELINES:
        return []
    types = sections(method, str(settings.get("model", RunOptions.model)))
    fields = {f.name: (s, f.default) for s, t in types.items() for f in dataclasses.fields(t)}
    names = {n for n, (s, _) in fields.items() if s in UNREAD_SECTIONS or n in UNREAD}
    names.discard("quantiles")  # Of conformal intervals, which every method may have.
    return [n for n, value in settings.items() if n in names and value != fields[n][1]]


def read_by(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that a method does not read."""
    left_out = unread(method, settings)
    return {name: value for name, value in settings.items() if name not in left_out}


def resolve(method: str, **settings: Any) -> Config:
    """Settings by flat name to a `Config`, types checked and converted.

    Raises:
        InputError: for an unknown name (with those like it) or a value that does not fit.
    """
    settings = {**defaults(method), **settings}
    types = sections(method, str(settings["model"]))
    return Config(method, **distribute(method, types, settings))
