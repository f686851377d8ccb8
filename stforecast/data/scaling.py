"""Z-scores fitted on the training part, and limits of the values."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose, counted, some
from stforecast.data.covariates import PREFIX, CovariateScaler
from stforecast.data.outliers import MEMORY, Bounds

if TYPE_CHECKING:
    from stforecast.data.clock import Calendar
    from stforecast.data.series import Series

Scope = Literal["cell", "global"]
SCOPES = get_args(Scope)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Scaler:
    """Means and standard deviations of the training part.

    Attributes:
        mean: `(cells,)` in the series' units; `(1,)` if one mean serves all cells.
        std: the same shape and units, never 0.
        covariates: scaler of covariates, if windows read any.
        events: `(kinds,)` factors of the inputs of events, if windows read any.
        bounds: between what readings are believed; None if all are.
    """

    mean: np.ndarray
    std: np.ndarray
    covariates: CovariateScaler | None = None
    events: np.ndarray | None = None
    bounds: Bounds | None = None

    def of_cells(self, some: slice) -> Scaler:
        """Return the means and deviations of some cells."""
        bounds = self.bounds and self.bounds.of_cells(some)
        if self.mean.size == 1:
            return dataclasses.replace(self, bounds=bounds)
        return dataclasses.replace(self, mean=self.mean[some], std=self.std[some], bounds=bounds)

    def calendar(self, series: Series) -> Calendar:
        """Return the calendar of a series with scaled events and covariates, if any are read."""
        calendar = series.calendar
        if self.events is not None and calendar.events is not None:
            events = dataclasses.replace(calendar.events, scale=self.events)
            calendar = dataclasses.replace(calendar, events=events)
        if self.covariates is None or series.covariates is None:
            return calendar
        covariates = self.covariates.transform(series.covariates)
        return dataclasses.replace(calendar, covariates=covariates)

    def believed(self, series: np.ndarray, *, at_end: bool = False) -> np.ndarray:
        """Return a series `(steps, cells)` with NaN for readings that are not believed.

        `at_end` is for a forecast of what follows the series, see `Bounds.wild`.
        """
        return series if self.bounds is None else self.bounds.believed(series, at_end=at_end)

    def transform(self, series: np.ndarray, *, at_end: bool = False) -> np.ndarray:
        """Convert a series `(steps, cells)` to z-scores, (series - mean) / std, where believed.

        NaN stays NaN. The arguments are those of `believed`.
        """
        return self.scores(self.believed(series, at_end=at_end))

    def scores(self, values: np.ndarray) -> np.ndarray:
        """Convert any values `(steps, cells)` to z-scores."""
        mean, std = self._along(values, 1)
        found = values - mean
        found /= std  # Another copy of a city would take gigabytes.
        return found

    def inverse(self, values: np.ndarray, *, cell_axis: int) -> np.ndarray:
        """Convert z-scores to the series' units: values * std + mean.

        The axis of the cells is 0 in `(cells, windows, horizon)`, 1 in `(steps, cells)`.
        """
        mean, std = self._along(values, cell_axis)
        return values * std + mean

    def _along(self, values: np.ndarray, cell_axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Reshape mean and std to broadcast over the cells of `values`."""
        n_cells = values.shape[cell_axis]
        if self.mean.size not in (1, n_cells):
            raise InputError(
                f"the scaler was fitted on {self.mean.size} cells, axis {cell_axis} of the values "
                f"{values.shape} has {n_cells}; give the same cells in the same order"
            )
        shape = [1] * values.ndim
        shape[cell_axis] = -1
        return self.mean.reshape(shape), self.std.reshape(shape)

    def state(self) -> dict[str, np.ndarray]:
        """Return the plain arrays to save: `mean`, `std`, and those of further inputs."""
        further = self.covariates.state() if self.covariates else {}
        if self.events is not None:
            further["events"] = self.events
        if self.bounds is not None:
            further |= self.bounds.state()
        return {"mean": self.mean, "std": self.std, **further}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Scaler:
        """Restore a scaler from its `state`."""
        further = any(name.startswith(PREFIX) for name in state)
        covariates = CovariateScaler.from_state(state) if further else None
        bounds = Bounds.from_state(state)
        return cls(state["mean"], state["std"], covariates, state.get("events"), bounds)


def warn_of_wild(
    scaler: Scaler, values: np.ndarray, times: pd.DatetimeIndex, cells: np.ndarray, name: str
) -> None:
    """Log how many readings `(steps, cells)` are not believed, by cell, and the consequence.

    `times` are `(steps,)` local ones.
    """
    kept, bounds = scaler.believed(values), scaler.bounds
    if kept is values or bounds is None:
        return
    places = np.argwhere(np.isnan(kept) & ~np.isnan(values))
    if not len(places):
        return
    (step, cell), (which, n) = places[0], np.unique(places[:, 1], return_counts=True)
    of_all, share = values[places[:, 0], places[:, 1]], bounds.lasting
    low, high = (share * of[places[:, 1]] for of in (bounds.lower, bounds.upper))
    normal = int(((low <= of_all) & (of_all <= high)).sum())
    newest = [str(cells[i]) for i in which if places[places[:, 1] == i, 0][-1] == len(values) - 1]
    lower, upper = bounds.lower[cell], bounds.upper[cell]
    log.warning(
        "%s: %s not believed%s: %s, such as %.6g of cell %s at %s, where %s to %.4g is believed, "
        "and for hours up to %.4g; they are not read, learnt or scored, so these cells are "
        "forecast from their other readings%s; if such a level is real, it is believed after %g "
        "days, %s",
        name,
        counted(len(places), "reading"),
        f" ({normal} of them normal, but within half a day of many that are not)" if normal else "",
        some([f"{k} of cell {cells[i]}" for i, k in zip(which, n, strict=True)]),
        *(values[step, cell], cells[cell], times[step]),
        *(f"{lower:.4g}" if lower <= 0 else "above 0", upper, share * upper),
        f", as after a gap, since the newest is one of them: {some(newest)}" if newest else "",
        MEMORY / 2,
        Words("and a run trained with {outliers:keep} believes all readings"),
    )


def fit_scaler(
    series: np.ndarray,
    fit: slice,
    scope: str = "cell",
    cells: Sequence[object] | np.ndarray | None = None,
    day: int | None = None,
) -> Scaler:
    """Fit a scaler on steps of a series `(steps, cells)`; std with ddof=0, ignoring missing values.

    The scope `"cell"` has a mean and std of each cell, `"global"` one of all. A constant cell gets
    std 1, so that its z-scores are 0 rather than NaN. `cells` are ids to name in an error. With
    the steps of a `day`, readings that are not believed are left out.
    """
    if scope not in SCOPES:
        raise choose("scaling scope", scope, SCOPES)
    if not 0 <= fit.start < fit.stop <= len(series):
        raise InputError(
            f"cannot fit a scaler on steps {fit.start} to {fit.stop - 1} of {len(series)}"
        )
    seen = np.asarray(series[fit], dtype=np.float64)
    _check_observed(seen, range(seen.shape[1]) if cells is None else cells)
    bounds = None if day is None else Bounds.of(seen, day)
    seen = seen if bounds is None else bounds.believed(seen)
    axis = 0 if scope == "cell" else None
    mean = np.atleast_1d(np.nanmean(seen, axis=axis))
    std = np.atleast_1d(np.nanstd(seen, axis=axis))
    # The std of equal values may come out as 1e-17 instead of 0.
    constant = np.nanmax(seen, axis=axis) == np.nanmin(seen, axis=axis)
    return Scaler(mean, np.where(constant, 1.0, std), bounds=bounds)


def _check_observed(seen: np.ndarray, cells: Sequence[object] | np.ndarray) -> None:
    empty = np.flatnonzero(np.isnan(seen).all(axis=0))
    if len(empty):
        shown = [str(cells[i]) for i in empty[:5]]
        names = ", ".join(shown) + (", …" if len(empty) > 5 else "")
        raise InputError(
            f"{counted(len(empty), 'cell')} without an observed value in the {len(seen)} training "
            f"steps: {names}; ",
            Words("leave them out of a table by {cells}, ", cells=f"not:{','.join(shown)}"),
            "of a cube by open_cube(path).drop_sel(cell=[…]).to_netcdf(new) in Python, or train on "
            "a longer part",
        )


@dataclass(frozen=True)
class Limits:
    """Lowest and highest possible value in the data's units; infinite for none."""

    lower: float = -np.inf
    upper: float = np.inf

    @classmethod
    def of(cls, pair: tuple[float, float] | None) -> Limits | None:
        """Return limits as a user gives them, None for none."""
        try:
            lower, upper = (-np.inf, np.inf) if pair is None else map(float, pair)
        except (TypeError, ValueError) as e:
            found = f"limits is {pair!r}, expected the lowest and the highest possible value"
            raise InputError(f"{found}; give both, such as (0, 100)") from e
        return None if pair is None else cls(lower, upper)

    def __post_init__(self) -> None:
        """Refuse limits between which nothing lies, and NaN."""
        if not self.lower < self.upper:
            raise InputError(
                f"lower_limit is {self.lower:g} and upper_limit is {self.upper:g}; the first must "
                "be lower"
            )

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.upper))

    def scores(self, scaler: Scaler, n_cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the z-scores of both, each `(cells, 1, 1)`.

        They equal the targets of these values in all their digits.
        """
        low, high = (
            scaler.scores(np.full((1, n_cells), limit)).astype(np.float32).T[..., None]
            for limit in self
        )
        return low, high
