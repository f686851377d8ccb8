"""A series prepared for a run: its split, z-scores and windows, each computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stforecast.data.clients import Partition, one_per_cell, partition_cells, say
from stforecast.data.clock import Calendar
from stforecast.data.covariates import CovariateScaler
from stforecast.data.dates import DAY
from stforecast.data.outliers import learnable
from stforecast.data.partition.heterogeneity import Heterogeneity
from stforecast.data.scaling import Scaler, fit_scaler
from stforecast.data.series import Series
from stforecast.data.splits import Split, make_split
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import History, Windows, target_windows
from stforecast.federated.runs.checkpoint import fingerprint

Targets = tuple[np.ndarray, np.ndarray]
"""Targets and mask of windows, `(cells, windows, horizon)`."""


@dataclass(frozen=True, eq=False)
class PreparedSeries:
    """A series, split and scaled.

    Attributes:
        series: the data in their own units.
        window: shape of the windows, in steps of the series.
        split: first target steps of each part.
        scaler: scaler fitted on the training part.
        z: `(steps, cells)` z-scores, NaN where missing.
        divided: the client of each cell; None if each cell is a client.
    """

    series: Series
    window: WindowSpec
    split: Split
    scaler: Scaler
    z: np.ndarray
    divided: Partition | None = None

    @property
    def clients(self) -> Partition:
        """The client of each cell."""
        return self.divided or one_per_cell(self.series.cells)

    def identity(self) -> dict[str, str]:
        """Return the identity of a run, except the series' own."""
        clients = self.clients
        divided = "cell" if clients.by_cell else fingerprint({}, *clients.labels)
        return {"clients": divided, "units": self.series.units}

    @property
    def heterogeneity(self) -> Heterogeneity:
        """How much the clients differ in the training part."""
        known = dataclasses.replace(self.series, values=self.series.values[: self.split.fit.stop])
        return Heterogeneity.of(known, self.clients)

    @cached_property
    def calendar(self) -> Calendar:
        """Local time of the series, and its z-scored covariates."""
        return self.scaler.calendar(self.series)

    @cached_property
    def learnt(self) -> np.ndarray:
        """The z-scores that methods learn from, NaN where they are missing or too far."""
        if (bounds := self.scaler.bounds) is None:
            return self.z
        return learnable(self.z, self.split.fit, bounds.day)

    @cached_property
    def _history(self) -> History:
        return History.of(self.learnt, self.window, self.calendar)

    def of_cells(self, some: slice) -> PreparedSeries:
        """Return the data of some cells, if each is a client."""
        position = np.arange(len(self.series.cells))[some]
        if len(position) == len(self.series.cells):
            return self
        series, scaler = self.series.of_cells(position), self.scaler.of_cells(some)
        return dataclasses.replace(
            self, series=series, scaler=scaler, z=self.z[:, some], divided=None
        )

    def windows(self, starts: np.ndarray, *, with_next: bool = False) -> Windows:
        """Cut the windows whose first targets are `starts`."""
        return self.cutter(starts, with_next=with_next)(None)

    def cutter(
        self, starts: np.ndarray, *, with_next: bool = False
    ) -> Callable[[np.ndarray | None], Windows]:
        """Return a function of cells, `(n,)` positions or None for all, that cuts their windows.

        They are cut from the `learnt` values.
        """
        whole = self._history
        sources = whole.sources(starts)

        def cut(cells: np.ndarray | None) -> Windows:
            history = whole if cells is None else whole.of_cells(cells)
            return history.windows(sources, with_next=with_next)

        return cut

    def targets(self, starts: np.ndarray) -> Targets:
        """Return z-scored targets of the windows whose first targets are `starts`.

        Samples of windows one step apart are views: copies take `horizon` times the series' memory.
        """
        horizon = self.window.horizon
        inside = len(starts) and starts[0] >= 0 and starts[-1] + horizon <= len(self.z)
        if not inside or (np.diff(starts) != 1).any():
            return target_windows(self.z, starts, self.window)
        some = slice(starts[0], starts[-1] + 1)
        y, mask = (sliding_window_view(by_cell, horizon, 1)[:, some] for by_cell in self._observed)
        return y, mask

    @cached_property
    def _observed(self) -> Targets:
        """Return each step as a target of one step, `(cells, steps)`."""
        one_ahead = dataclasses.replace(self.window, horizon=1)
        y, mask = target_windows(self.z, np.arange(len(self.z)), one_ahead)
        return y[..., 0], mask[..., 0]

    @cached_property
    def validation_targets(self) -> Targets:
        """Targets of the validation part."""
        return self.targets(self.split.validation)

    @cached_property
    def test_targets(self) -> Targets:
        """Targets of the test part."""
        return self.targets(self.split.test)

    @property
    def calibration(self) -> np.ndarray:
        """First target steps of validation windows whose targets precede the test part."""
        starts = self.split.validation
        return starts[starts + self.window.horizon <= self.split.test[0]]

    @property
    def non_negative(self) -> bool:
        """True if no value of the training part is below 0, as for counts, traffic and speeds."""
        return not (self.believed[self.split.fit] < 0).any()

    @property
    def believed(self) -> np.ndarray:
        """The series' values, NaN where they are not believed."""
        return self.scaler.believed(self.series.values)

    def outliers(self) -> dict[str, int]:
        """Count the readings of each cell that are not believed, of cells that have any."""
        counts = (np.isnan(self.z) & ~np.isnan(self.series.values)).sum(axis=0)
        named = zip(self.series.cells.tolist(), counts.tolist(), strict=True)
        return {str(cell): n for cell, n in named if n}

    def until(self, step: int) -> PreparedSeries:
        """Return the data before a step, with unchanged z-scores."""
        series = self.series
        known = dataclasses.replace(
            series,
            values=series.values[:step],
            times=series.times[:step],
            covariates=series.covariates and series.covariates.between(0, step),
        )
        return dataclasses.replace(self, series=known, z=self.z[:step])

    def parts(self) -> dict[str, dict[str, str] | None]:
        """Return `first` and `last` target of each part, in local time; None without windows."""
        split, further = self.split, self.window.horizon - 1
        parts = {"training": split.train, "validation": split.validation, "test": split.test}
        found: dict[str, dict[str, str] | None] = {}
        for name, starts in parts.items():
            steps = starts[[0, -1]] + [0, further] if len(starts) else starts
            times = [str(time) for time in self.calendar.local_times(steps)]
            found[name] = dict(zip(("first", "last"), times, strict=True)) if times else None
        return found


def prepare(
    series: Series,
    window: WindowSpec,
    split: str,
    scale: str,
    clients: str = "cell",
    outliers: str = "missing",
    seed: int = 0,
) -> PreparedSeries:
    """Split and scale a series; `auto` and a table of events are resolved in its window.

    Partitions of cells that draw numbers use the `seed`.
    """
    n_steps, calendar = len(series.values), series.calendar
    local_times = calendar.local_times(np.arange(n_steps))
    parts = make_split(split, n_steps, calendar.step, window, local_times)
    divided = partition_cells(clients, series, parts.fit.stop, seed)
    say(divided, series)
    window = window.chosen(calendar.step, parts.fit.stop)
    day = max(1, DAY // calendar.step) if outliers == "missing" else None
    scaler = fit_scaler(series.values, parts.fit, scale, series.cells, day)
    if events := calendar.events:
        window = dataclasses.replace(window, events=", ".join(events.kinds))
        learned = slice(parts.train[0], parts.train[-1] + window.horizon)
        factors = events.fit_scale(calendar, learned, series.name)
        scaler = dataclasses.replace(scaler, events=factors)
    if series.covariates:
        of_covariates = CovariateScaler.fit(series.covariates, parts.fit)
        scaler = dataclasses.replace(scaler, covariates=of_covariates)
    z = scaler.transform(series.values)
    return PreparedSeries(series, window, parts, scaler, z, divided)
