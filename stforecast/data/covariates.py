"""Covariates: further services of a cube and static columns of its cells, as inputs of windows.

The calendar, public holidays and events (`stforecast.data.events`) are known in advance and read
for the times that are forecast. A further service is observed: a window reads its newest steps
before the first target, never later ones. A static column holds one number for each cell.

Services are z-scored by the training part of each cell, static columns over the trained cells. In a
federation a cell's services stay on its client, as its readings do; mean and deviation of static
columns are sums over clients. A missing input is 0.0, the mean. The latest readings of neighbours
on the road graph can be inputs, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_prep.base.errors import InputError, Words, choose, reading
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

if TYPE_CHECKING:
    import xarray as xr


PREFIX = "covariates/"
"""Begin of the names of a scaler's saved arrays."""


@dataclass(frozen=True, eq=False)
class Covariates:
    """Covariates of the cells of a series.

    Attributes:
        observed: `(steps, cells, services)`, NaN where nothing was recorded.
        static: `(cells, columns)`, NaN where not known.
    """

    observed: np.ndarray
    static: np.ndarray

    def of_cells(self, position: np.ndarray) -> Covariates:
        """Return the covariates of some cells."""
        return Covariates(self.observed[:, position], self.static[position])

    def between(self, first: int, end: int | None = None) -> Covariates:
        """Return the covariates of the steps from `first` on, up to before `end`."""
        return dataclasses.replace(self, observed=self.observed[first:end])

    def preceded(self, n_steps: int) -> Covariates:
        """Return the covariates of steps before which nothing was recorded."""
        gap = np.full((n_steps, *self.observed.shape[1:]), np.nan)
        return dataclasses.replace(self, observed=np.concatenate([gap, self.observed]))

    def inputs(self, starts: np.ndarray, spec: WindowSpec) -> np.ndarray:
        """Return services and static columns of windows, NaN where missing.

        Its shape is `(cells, windows, spec.n_covariates)`, float32.
        """
        n_cells = self.observed.shape[1]
        steps = starts[:, None] - np.arange(1, spec.input_steps + 1)
        known = (steps >= 0) & (steps < len(self.observed))
        newest = self.observed[np.where(known, steps, 0)] if len(self.observed) else np.nan
        newest = np.where(known[..., None, None], newest, np.nan)
        by_cell = np.moveaxis(newest, 2, 0).reshape(n_cells, len(starts), -1)
        own = np.broadcast_to(self.static[:, None], (n_cells, len(starts), self.static.shape[1]))
        return np.concatenate([by_cell, own], axis=-1, dtype=np.float32)

    def altered(self, start: int, rng: np.random.Generator) -> Covariates:
        """Return other services from a step on, to look for leaks."""
        observed = self.observed.copy()
        observed[start:] = rng.normal(3.0, 10.0, observed[start:].shape)
        return dataclasses.replace(self, observed=observed)


@dataclass(frozen=True, eq=False)
class CovariateScaler:
    """Means and standard deviations of covariates.

    Attributes:
        mean: `(cells, services)` of the training part.
        std: the same shape, never 0.
        static_mean: `(columns,)` over the trained cells.
        static_std: the same shape, never 0.
    """

    mean: np.ndarray
    std: np.ndarray
    static_mean: np.ndarray
    static_std: np.ndarray

    @classmethod
    def fit(
        cls, covariates: Covariates, training: slice, like: CovariateScaler | None = None
    ) -> CovariateScaler:
        """Fit to the steps of the training part.

        A cell without a reading has the mean over the others, or over the cells of `like`, the
        scaler of other cells, whose scale of static columns is kept.
        """
        mean, std = _scales(covariates.observed[training], "inputs", like)
        if like is not None:
            return cls(mean, std, like.static_mean, like.static_std)
        of_static = _scales(covariates.static[:, None], "static")
        return cls(mean, std, *(values[0] for values in of_static))

    def transform(self, covariates: Covariates) -> Covariates:
        """Return z-scores."""
        return Covariates(
            (covariates.observed - self.mean) / self.std,
            (covariates.static - self.static_mean) / self.static_std,
        )

    def joined(self, new: CovariateScaler, ids: np.ndarray) -> CovariateScaler:
        """Return the scaler of some cells, then of another scaler's; see `Scaler`."""
        mean, std = (
            np.concatenate(both)[ids] for both in ((self.mean, new.mean), (self.std, new.std))
        )
        return dataclasses.replace(self, mean=mean, std=std)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays to save."""
        return {PREFIX + name: values for name, values in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> CovariateScaler:
        """Restore a scaler from its `state`."""
        return cls(**{f.name: state[PREFIX + f.name] for f in dataclasses.fields(cls)})


def _scales(
    values: np.ndarray, setting: str, like: CovariateScaler | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and deviations over the first axis of `(steps, cells, n)`, each `(cells, n)`."""
    seen = ~np.isnan(values)
    n = seen.sum(axis=0)
    mean = np.where(seen, values, 0).sum(axis=0) / np.maximum(n, 1)
    variance = np.where(seen, np.square(values - mean), 0).sum(axis=0) / np.maximum(n, 1)
    if like is not None:
        others = like.mean.mean(axis=0), like.std.mean(axis=0)
    elif seen.any(axis=(0, 1)).all():
        known = n > 0
        count = known.sum(axis=0)
        others = tuple(
            np.where(known, of_all, 0).sum(axis=0) / count for of_all in (mean, np.sqrt(variance))
        )
    else:
        which = int(np.flatnonzero(~seen.any(axis=(0, 1)))[0])
        raise InputError(
            f"entry {which + 1} of {setting} has no value in the training part; leave it out"
        )
    std = np.where(n > 0, np.sqrt(variance), others[1])
    return np.where(n > 0, mean, others[0]), np.where(std > 1e-12 * (1 + abs(mean)), std, 1.0)


def read_covariates(
    cube: xr.Dataset,
    service: str,
    window: WindowSpec | None,
    columns: Mapping[str, np.ndarray],
    name: str,
    unread: Sequence[str] = (),
) -> Covariates | None:
    """Read what windows read of further services and of static `columns`, see `Series.columns`.

    Services that no model reads are `unread`: the cube need not hold them, and they are 0.
    """
    if window is None or not window.n_covariates:
        return None
    from data_prep.cube import check_finite, observed, services_of  # slow to import

    others = [s for s in services_of(cube) if s != service]
    numbers = {n: values for n, values in columns.items() if values.dtype.kind in "iufb"}
    for asked, known, what in (
        (window.services, others, Words("further service ({inputs})")),
        (window.columns, list(numbers), Words("static column ({static})")),
    ):
        for entry in asked:
            if entry not in known and entry not in unread:
                raise InputError(f"{name}: ", choose(what, entry, known or ["none"]))
    steps, cells = cube.sizes["time"], cube.sizes["cell"]
    with reading(name, f"at {window.inputs}", "prepare it again"):
        services = [
            np.zeros((steps, cells))
            if s in unread
            else observed(cube, s).transpose("time", "cell").to_numpy()
            for s in window.services
        ]
    for s, values in zip(window.services, services, strict=True):
        check_finite(values, s, cube.indexes["time"], cube["cell"].to_numpy(), name)
    own = [numbers[column] for column in window.columns]
    return Covariates(
        np.stack(services, axis=-1).astype(float) if services else np.empty((steps, cells, 0)),
        np.stack(own, axis=-1).astype(float) if own else np.empty((cells, 0)),
    )


def strongest_neighbours(adjacency: np.ndarray, n: int) -> np.ndarray:
    """Return the cells with the strongest roads to or from each cell, the strongest first.

    Roads `(cells, cells)` lead from row to column. The result is `(cells, n)`, -1 where there are
    fewer.

    >>> roads = np.array([[1.0, 0.2, 0.0], [0.5, 1.0, 0.0], [0.3, 0.0, 1.0]])
    >>> strongest_neighbours(roads, 2).tolist()
    [[1, 2], [0, -1], [0, -1]]
    """
    either = np.maximum(adjacency, adjacency.T)
    np.fill_diagonal(either, 0.0)
    order = np.argsort(-either, axis=1, kind="stable")[:, :n]
    found = np.where(np.take_along_axis(either, order, axis=1) > 0, order, -1)
    return np.pad(found, ((0, 0), (0, n - found.shape[1])), constant_values=-1)


def neighbour_inputs(
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar,
    neighbours: np.ndarray,
) -> np.ndarray:
    """Return the two latest readings of each cell's `strongest_neighbours` before each window.

    Its shape is `(cells, windows, neighbours * 2)`, float32, the newest reading of each neighbour
    first, 0.0 where there is no neighbour. Gaps are filled by the rule of the windows.
    """
    latest = dataclasses.replace(
        spec, closeness=1, periods=0, extra_lags="2", calendar="none", holidays=""
    )
    readings = input_windows(series, starts, latest, calendar)[neighbours]
    readings[neighbours < 0] = 0.0
    return readings.swapaxes(1, 2).reshape(len(neighbours), len(starts), -1)
