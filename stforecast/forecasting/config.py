"""Settings of a forecast: flat names for users, grouped into one dataclass per topic.

`Forecaster("fuels", rounds=50, tau=0.1, split="days:20,5,5")`, the options of `stforecast run` and
the keys of a benchmark's TOML file use the same names; `resolve` assigns each to its dataclass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import NonNegativeInt, PositiveInt

from data_prep.base.errors import InputError, Words
from data_prep.base.registry import find, merged
from stforecast.baselines import BASELINES
from stforecast.bench import LOCAL, RAY
from stforecast.data.anchors import Target
from stforecast.data.clients import check_clients
from stforecast.data.scaling import Limits, Scope
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core import options
from stforecast.federated.core.options import CheckedOptions, ReadIf, Settings
from stforecast.federated.core.training import Training
from stforecast.federated.engine.sizing import parse_bytes
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from stforecast.forecasting.task import LossOptions
from stforecast.intervals.bands import IntervalOptions
from stforecast.methods import METHODS
from stforecast.metrics.interval import pair_coverages, parse_levels
from stforecast.models import MODELS


@dataclass(frozen=True)
class DataOptions(CheckedOptions):
    """Variable to forecast, the split and scaling of its data, and the clients.

    Attributes:
        service: variable of the cube, such as internet or speed; optional if there is only one.
            `stforecast run` takes several, as in internet,call.
        split: training, validation and test part: fuels, fedda, days:20,5,5, time:0.6,0.15,0.25,
            dates:2013-11-21,2013-11-26 (starts of validation and test), steps:0.7,0.1,0.2 or
            windows:0.7,0.1,0.2; `stforecast list splits` says what each does.
        scale: z-scores per cell (cell) or over all cells (global); fitted on the training part.
        clients: what a client of the federation is: a single cell (cell), all cells (all), the
            cells assigned to it by FILE.csv with the columns cell and client, those with the same
            value in a column of the cube, given by its name, such as operator, a district of nearby
            cells (kmeans:8), a tile of rows and columns (grid:4x4), or those that another partition
            deals to it (dirichlet:8:concentration=0.1; see: stforecast list partitions). A client
            trains on the samples of all its cells.
        outliers: readings far from what is usual in their cell, such as spikes and counters that
            were reset: missing (they count as missing) or keep (all are read and learnt); see
            `stforecast.data.outliers`.
        lower_limit: lowest possible value in the data's units; no forecast and no bound is below
            it. By default 0 if no training value is below 0, as for counts, traffic and speeds.
        upper_limit: highest possible value, such as 100 for per cent; by default none.
    """

    service: str | None = None
    split: str = "fuels"
    scale: Scope = "cell"
    clients: str = "cell"
    outliers: Literal["missing", "keep"] = "missing"
    lower_limit: float | None = None
    upper_limit: float | None = None

    def __post_init__(self) -> None:
        """Refuse clients of no known form, and limits between which nothing lies."""
        super().__post_init__()
        check_clients(self.clients)
        self.limits(non_negative=False)

    def limits(self, *, non_negative: bool) -> Limits:
        """Return the lowest and highest value; `non_negative` if no training value is below 0."""
        lower, upper = self.lower_limit, self.upper_limit
        assumed = 0.0 if non_negative else -math.inf
        return Limits(assumed if lower is None else lower, math.inf if upper is None else upper)


@dataclass(frozen=True)
class RunOptions(CheckedOptions):
    """Model, seed, device and resources.

    Attributes:
        model: name of the model that federated methods train.
        seed: random seed; the same seed gives the same numbers.
        device: device to compute on: auto, cpu or cuda; auto uses a GPU if there is one.
        tune: choose settings of the method that are not given, from a grid of its own, by the MSE
            on the validation part.
        select: model to keep: that of the best validation round (best) or of the last round (last).
        cohort: maximum number of clients trained together; 0 chooses.
        workers: number of cohorts trained in parallel on a CPU; 0 uses all cores. With the engine
            ray, the number in each actor; 0 is then 1.
        engine: `local` trains the clients in this process, `ray` spreads them over actors of Ray,
            on this machine or a cluster; the numbers are the same.
        actors: number of actors of the engine ray; 0 takes one for each core.
        memory: memory limit, such as 8GB; beyond it, the clients' states are kept in files. By
            default the free memory.
        checkpoint_every: rounds between checkpoints; 0 writes one on a signal only. By default,
            checkpoints take at most a 20th of the time.
    """

    model: str = "dual_gru"
    seed: NonNegativeInt = 1
    device: options.Device = "auto"
    tune: bool = False
    select: Literal["best", "last"] = "best"
    cohort: NonNegativeInt = 0
    workers: options.Workers = 0
    engine: Literal["local", "ray"] = "local"
    actors: options.Workers = 0
    memory: str = ""
    checkpoint_every: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        """Refuse a memory limit that is not a size, and an engine and a device that do not fit."""
        super().__post_init__()
        if self.memory:
            parse_bytes(self.memory)
        if self.engine == LOCAL and self.actors:
            raise InputError(f"actors is {self.actors}, but only the engine ray has actors")
        if self.engine == RAY and self.device not in ("auto", "cpu"):
            raise InputError(
                f"device is {self.device!r}, but actors of the engine ray use a CPU; leave it out"
            )


REFITTED = ReadIf("refit is not never", lambda s: s["refit"] != "never")


@dataclass(frozen=True)
class RollingOptions(CheckedOptions):
    """Refits on newer data; see `stforecast.forecasting.rolling`.

    Attributes:
        refit: `never`; `once`: refit the selected model on the data known before the test part, so
            also on the validation part; `final`: as once, and on all data for the forecast of what
            follows; `daily` or `weekly`: before each day or week of the test part except the first.
        refit_rounds: rounds of each refit of a federated method.
    """

    refit: Literal["never", "once", "final", "daily", "weekly"] = "never"
    refit_rounds: Annotated[PositiveInt, REFITTED] = 3


@dataclass(frozen=True)
class Config:
    """All settings of one run, resolved.

    Attributes:
        method: name of a method or of a reference forecaster.
        data: variable, split and scaling.
        window: input and target steps of a window.
        training: rounds, batches, optimiser; like `uplink` and `robust`, read by federated methods
            only.
        loss: training loss.
        uplink: compression and privacy of uploads.
        robust: the server's defences against Byzantine uploads.
        interval: prediction intervals.
        rolling: refits on newer data.
        run: model, seed, device and resources.
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
        """Refuse settings that contradict each other."""
        if self.interval.intervals != "none" and not self.coverages:
            raise InputError(
                f"quantiles is {self.loss.quantiles!r}; intervals need a pair, like 0.05,0.5,0.95"
            )

    def with_target(self, target: Target) -> Config:
        """Return the settings with another target."""
        return dataclasses.replace(self, window=dataclasses.replace(self.window, target=target))

    def at(self, step: pd.Timedelta) -> Config:
        """Return the settings with times converted to whole numbers of steps of this length."""
        return dataclasses.replace(self, window=self.window.at(step))

    def for_cells(self, n_cells: int) -> Config:
        """Return the settings with the training that the method chooses for this many cells."""
        if not self.federated:
            return self
        method = METHODS[self.method]
        training = method.training_for(self.training, n_cells, self.method_options)
        return dataclasses.replace(self, training=training)

    @property
    def coverages(self) -> tuple[float, ...]:
        """Nominal coverages of the pairs of `quantiles`, from narrow to wide."""
        return tuple(pair_coverages(parse_levels(self.loss.quantiles)))

    @property
    def coverage(self) -> float:
        """Nominal coverage of the widest interval, which is the one reported; 0 without a pair."""
        return max(self.coverages, default=0.0)

    @property
    def federated(self) -> bool:
        """True if the method trains in rounds, False for a reference forecaster."""
        return self.method not in BASELINES

    @property
    def total_rounds(self) -> int:
        """Number of rounds; 0 for a reference forecaster."""
        return self.training.rounds if self.federated else 0

    @property
    def clients(self) -> str:
        """What the clients are: `data.clients`, but `all` cells in one for pooled training."""
        return "all" if self.federated and METHODS[self.method].pooled else self.data.clients

    @property
    def has_intervals(self) -> bool:
        """True if forecasts come with prediction intervals."""
        learned = self.federated and len(self.loss.levels) > 1
        return learned or self.interval.intervals != "none"

    def flat(self) -> dict[str, Any]:
        """Return the settings by flat name; `resolve(**config.flat())` equals this config."""
        method, *parts = (getattr(self, f.name) for f in dataclasses.fields(self))
        return {"method": method, **options.flatten(*parts)}


def own_grid(config: Config) -> options.Grid:
    """Return the method's grid of those settings that have their defaults."""
    given, usual = config.flat(), resolve(config.method, model=config.run.model).flat()
    grid = _find(config.method).grid
    return {name: values for name, values in grid.items() if given[name] == usual[name]}


def options_type(method: str) -> type:
    """Return the dataclass of a method's own settings."""
    return _find(method).Options


def _find(method: str) -> Any:
    return find("method", method, merged(METHODS, BASELINES))


def check_covariates(config: Config) -> None:
    """Refuse further services, static columns and events where no model or reference reads them."""
    if not config.window.n_covariates and not config.window.n_events:
        return
    trained = config.federated
    reader = MODELS.find(config.run.model) if trained else BASELINES[config.method]
    if not getattr(reader, "reads_covariates", False):
        models, baselines = (
            ", ".join(n for n, kind in found.items() if getattr(kind, "reads_covariates", False))
            for found in (MODELS, BASELINES)
        )
        named = f"the model {config.run.model}" if trained else config.method
        raise InputError(
            f"{named} reads no further services, static columns or events ",
            Words("({inputs}, {static}, {events}); "),
            f"use a method that trains one of the models {models}, or one of {baselines}",
        )


OF_ROUNDS = ("training", "loss", "uplink", "robust", "model_options")
"""Sections that only methods that train in rounds read."""

OF_TRAINED = {"refit_rounds"} | options.names_of(RunOptions) - {"seed", "tune"}
"""Further settings that only these read."""

OF_WINDOWS = ("newest_first", "extra_lags", "calendar", "holidays", "impute")
"""Settings that only forecasters that read the inputs of windows read. The others of these are read
by all, since they decide which windows the history suffices for."""


def reads_target(method: str) -> bool:
    """Return whether a method learns what the setting `target` says."""
    return method not in BASELINES or BASELINES[method].reads_target


class ForecastSettings(Settings[Config]):
    """Settings of forecasts.

    >>> unread("ridge", {"rounds": 3, "closeness": 6})
    {'rounds': ''}
    >>> unread("fedavg", {"rounds": 3, "huber_delta": 1.0})
    {'huber_delta': 'loss is huber'}
    """

    def methods(self) -> Iterator[str]:
        """Yield the names of methods and reference forecasters."""
        yield from (*METHODS, *BASELINES)

    def defaults(self, method: str, model: str | None = None) -> dict[str, Any]:
        """Return a method's own defaults of shared settings, always including its model.

        Windows are as short as they can be for a forecaster that does not read their inputs.
        """
        kind = _find(method)
        if method not in BASELINES:
            own = kind.defaults
        else:
            own = kind.defaults
            own = own if kind.reads_windows else {"closeness": 1, "periods": 0, **own}
        found = {"model": RunOptions.model, **own}
        if model in (None, found["model"]):
            return found
        of_own_model = options.names_of(MODELS.find(found["model"]).Options)
        return {name: value for name, value in found.items() if name not in of_own_model}

    def sections(self, method: str, *names: str) -> dict[str, type]:
        """Return the dataclass of each section of `Config`, for a method and a model."""
        (model,) = names or (RunOptions.model,)
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

    def conditions(self, method: str, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that a method does not read, whatever the others are."""
        kind, types = _find(method), self.sections(method, str(chosen["model"]))
        names = set() if kind.grid else {"tune"}
        if method not in BASELINES:
            names |= {*kind.unread, *(["clients"] if kind.pooled else [])}
            if "model" in kind.unread:
                names |= options.names_of(types["model_options"])
            return dict.fromkeys(names, "")
        names |= options.names_of(*(types[section] for section in OF_ROUNDS)) | OF_TRAINED
        names -= {"quantiles"}  # Intervals read it, which every method may have.
        if not kind.reads_windows:
            names |= {*OF_WINDOWS}
        if not kind.reads_target:
            names |= {"target"}
        return dict.fromkeys(names - kind.reads, "")


SETTINGS = ForecastSettings(Config)
defaults, sections, unread = SETTINGS.defaults, SETTINGS.sections, SETTINGS.unread
check_read, read_by, resolve = SETTINGS.check_read, SETTINGS.read_by, SETTINGS.resolve
