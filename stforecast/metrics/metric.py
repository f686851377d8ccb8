"""Base classes of metrics: sums over observed targets that are divided once.

An update is a pure function that returns `(total, weight)`; totals and weights of batches add up,
and only the last division turns them into a value, so there is no mean of batch means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from data_prep.base.errors import InputError

if TYPE_CHECKING:
    from stforecast.intervals.bands import Bands

Axis = int | tuple[int, ...] | None
Sums = tuple[np.ndarray, np.ndarray]


class Scale(NamedTuple):
    """Errors of a simple forecaster on the training part, which scaled metrics divide by.

    Attributes:
        mae: `(clients,)` mean absolute errors in the data's units, NaN where there is none.
        rmse: `(clients,)` root mean squared errors.
    """

    mae: np.ndarray
    rmse: np.ndarray

    def of_cells(self, some: slice) -> Scale:
        """Return the values of some clients."""
        return Scale(self.mae[some], self.rmse[some])


def joined_sums(parts: Sequence[Mapping[Any, Sums]]) -> dict[Any, Sums]:
    """Join the sums of blocks of cells."""
    return {
        key: (
            np.concatenate([part[key][0] for part in parts]),
            np.concatenate([part[key][1] for part in parts]),
        )
        for key in parts[0]
    }


def mean(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return `total / weight`, NaN where the weight is 0.

    >>> mean(np.array([6.0, 0.0]), np.array([3, 0])).tolist()
    [2.0, nan]
    """
    total, weight = np.asarray(total, dtype=np.float64), np.asarray(weight)
    return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)


def root_mean(total: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the square root of `mean`."""
    return np.sqrt(mean(total, weight))


@dataclass(frozen=True)
class Metric:
    """A metric of point forecasts.

    Attributes:
        name: name in tables and on the command line.
        summary: one line for lists.
        update: `(y_hat, y, mask, axis) -> (total, weight)`, both to be added up.
        finalise: `(total, weight) -> value`, NaN where the weight is 0.
        signed: whether it may be negative; 0 is best then, otherwise the lowest value.
        scaled_by: error of seasonal naive in `Scale` that forecasts and targets are divided by
            first; empty for none.
        relative: whether it has no unit and needs data with a true zero, unlike z-scores.
        squared: whether its unit is the square of the data's.
        heading: heading of its column in tables of results; empty for no column.

    Raises:
        InputError: if `update` does not sum over its axis, or a forecast without errors has a
            higher value than one with errors.
    """

    name: str
    summary: str
    update: Callable[[np.ndarray, np.ndarray, np.ndarray, Axis], Sums]
    finalise: Callable[[np.ndarray, np.ndarray], np.ndarray] = mean
    signed: bool = False
    scaled_by: Literal["", "mae", "rmse"] = ""
    relative: bool = False
    squared: bool = False
    heading: str = ""

    def __post_init__(self) -> None:
        """Refuse a metric whose higher values are better: all tables rank the lowest first."""
        y, mask = np.array([[[1.0, 2.0]]]), np.ones((1, 1, 2), dtype=bool)
        exact, wrong = (self.sums(y_hat, y, mask, None) for y_hat in (y, 5 - 2 * y))
        best, worse = self.finalise(*exact), self.finalise(*wrong)
        if not self.signed and best > worse:
            raise InputError(
                f"metric {self.name}: found {best:g} without an error and {worse:g} with errors, "
                "expected the lowest value without one; turn it round, such as 1 - share"
            )

    def sums(self, y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray, axis: Axis) -> Sums:
        """Return what `update` does, after a check of its shapes."""
        left = () if axis is None else tuple(np.delete(np.shape(y), axis).tolist())
        found = self.update(y_hat, y, mask, axis)
        got = [np.shape(p) for p in found] if isinstance(found, tuple) else np.shape(found)
        if got != [left, left]:
            raise InputError(
                f"metric {self.name}: for targets {np.shape(y)} and axis {axis} its function "
                f"returned shapes {got}, expected a pair, total and weight, each {left}; sum over "
                "`axis`"
            )
        return found

    @property
    def raw_name(self) -> str:
        """Name of its values in the data's units; scaled ones are the same in any unit."""
        return self.name if self.scaled_by else f"raw_{self.name}"

    def __call__(self, y_hat: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
        """Compute the value over all observed targets; arguments as in `squared_errors`.

        Of a scaled metric, forecasts and targets are those already divided by the scale.
        """
        return float(self.finalise(*self.sums(y_hat, y, mask, None)))


@dataclass(frozen=True)
class IntervalMetric:
    """A metric of intervals, averaged over observed targets.

    Attributes:
        name: name in tables and on the command line.
        summary: one line for lists.
        update: `(bands, y, mask, coverage) -> total`, `(clients, horizon)` sums over windows.
        scaled_by: as for `Metric`.
        relative: whether it has no unit.
    """

    name: str
    summary: str
    update: Callable[[Bands, np.ndarray, np.ndarray, float], np.ndarray]
    scaled_by: Literal["", "mae", "rmse"] = ""
    relative: bool = False

    @property
    def raw_name(self) -> str:
        """Name of its values in the data's units; those without one are the same in any."""
        return self.name if self.relative else f"raw_{self.name}"
