"""Base of peers: forecasters of other libraries, which may be missing or slow."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import PositiveFloat

from data_prep.errors import InputError
from stforecast.baselines.base import Baseline
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.options import CheckedOptions


@dataclass(frozen=True)
class PeerOptions(CheckedOptions):
    """Options of every peer.

    Attributes:
        time_limit: seconds that fitting and each call that forecasts may take; beyond it, the run
            fails.
    """

    time_limit: PositiveFloat = 1800.0


class TimeLimit:
    """A time limit, counted from now.

    Args:
        peer: name for the message.
        seconds: length of the limit.
    """

    def __init__(self, peer: str, seconds: float) -> None:
        self.peer, self.seconds = peer, seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def check(self, done: int, total: int, what: str) -> None:
        """Fail if the time is over.

        Args:
            done: number of finished parts.
            total: number of all parts.
            what: what a part is called, in the plural.

        Raises:
            InputError: naming the peer, the limit and how far it came.
        """
        if not self.left and done < total:
            raise InputError(
                f"{self.peer}: stopped by its time limit of {self.seconds:g} s after {done} of "
                f"{total} {what}; raise --time-limit, or give fewer cells or windows"
            )


class Peer(Baseline):
    """A forecaster of another library, with the library's own defaults and a time limit.

    Attributes:
        package: name of the library's module, of the extra `peers`.
        limit: time limit of the current call.
    """

    package: ClassVar[str]
    reads_windows = False
    Options = PeerOptions

    def __init__(self, config: Any = None, seed: int = 1) -> None:
        super().__init__(config, seed)
        try:
            importlib.import_module(self.package)
        except Exception as e:  # A package for another torch raises whatever it likes.
            raise InputError(
                f"{self.name} needs the package {self.package} ({e}); "
                "pip install 'stforecast[peers]'"
            ) from e
        self.limit: TimeLimit

    def fit(
        self,
        series: np.ndarray,
        starts: np.ndarray,
        spec: WindowSpec,
        calendar: Calendar,
        validation: np.ndarray | None = None,
        adjacency: np.ndarray | None = None,
    ) -> Self:
        """Learn from the training windows; see `Baseline.fit`.

        Raises:
            InputError: as `Baseline.fit`, and after the time limit.
        """
        self._start_clock()
        return super().fit(series, starts, spec, calendar, validation, adjacency)

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast windows; see `Baseline.predict`.

        Raises:
            InputError: as `Baseline.predict`, and after the time limit.
        """
        self._start_clock()
        return super().predict(series, starts, calendar)

    def _start_clock(self) -> None:
        self.limit = TimeLimit(self.name, self.config.time_limit)
