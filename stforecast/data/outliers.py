"""Which readings are believed: bounds of each cell from its own training part.

A wild reading, such as a spike, a counter that was reset or another unit, counts as missing: no
window reads it, no method learns it and no error is computed of it.

- A cell's bound is ten times its usual peak, or more where large readings are usual. The usual
  peak is the 90 % quantile of the sizes of its training readings other than 0, but at most 1.5
  times the median day's. A bad week thus cannot raise it. The factor is the squared ratio of the
  90 % to the 50 % quantile of the median day where that is larger, as in counts with bursts. A cell
  with fewer than 20 such readings has no bound.
- Of smaller faults that last, such as another unit: where four hours of the last twelve are beyond
  0.35 times the bound, no reading is believed.
- A negative reading is wild in a cell without negative ones. A negative value that is always the
  same, in fewer than half of the training days, does not count as one. A reading of 0 is wild in
  such a cell if two weeks or more of training have no 0, or in a single run alone.
- A level that really moved is followed. Levels below the bound are believed at once. If readings
  were at least 1.5 times their usual size for more than half of the last `MEMORY` days, the bound
  is as many times higher, in steps of a factor of two. A level beyond the bound is thus believed
  after a week and a half day, and 0 likewise.

- If all readings that are given of a cell are wild, all are believed: nothing tells what is normal.

Else the rule looks back only: a forecast does not depend on later readings.

What is learnt has a second bound: readings more than twice as far from the mean as the furthest of
the training part are read, but not learnt, so that one cell cannot outweigh the others in a refit;
see `learnable`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MEMORY = 15
"""Days of which more than half show that a level has moved."""

NO_LIMIT = float(np.finfo(np.float64).max)
"""Bound of a cell that has none; saved arrays are finite."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Between what the readings of cells are believed.

    Attributes:
        lower: `(cells,)` lowest readings, in the units of the series.
        upper: `(cells,)` highest readings.
        usual: `(cells,)` sizes of readings other than 0: the median of days, of their medians.
        day: steps of a day, at least 7.
        lasting: share of the bounds for hours beyond them.
    """

    lower: np.ndarray
    upper: np.ndarray
    usual: np.ndarray
    day: int
    lasting: float = 0.35

    @classmethod
    def of(cls, seen: np.ndarray, day: int) -> Bounds:
        """Return the bounds by training readings `(steps, cells)`, NaN where missing.

        >>> Bounds.of(np.arange(1.0, 101.0)[:, None], day=100).upper
        array([900.])
        """
        day = max(day, 7)
        sizes = np.abs(seen)
        sizes[sizes == 0] = np.nan
        (peak,) = _quantiles(sizes, 0.9)
        by_day = _by_day(sizes, day)
        middles, peaks = _quantiles(by_day, 0.5, 0.9)
        of_days = (_quantiles(of, 0.5)[0] for of in (middles, peaks, peaks / middles))
        usual, usual_peak, ratio = of_days
        none = np.isfinite(sizes).sum(axis=0) < 20
        upper = np.fmin(peak, 1.5 * usual_peak) * np.fmax(10.0, ratio**2)
        upper, usual = (np.where(none, NO_LIMIT, of) for of in (upper, usual))
        zero = seen == 0
        runs = zero[0] + (zero[1:] & ~zero[:-1]).sum(axis=0)
        never_zero = (runs < 2) & (len(seen) >= 14 * day)
        lower = np.where(_never_negative(seen, day), np.where(never_zero, 1e-200, 0.0), -upper)
        lower = np.where(none, -NO_LIMIT, lower)
        return cls(lower, upper, usual, day)

    def wild(self, values: Tensor, *, at_end: bool = False) -> Tensor:
        """Return which readings `(steps, cells)` are not believed, `at_end` by what follows them.

        If the last reading belongs to a fault that lasts, no reading of the fault that is as far is
        believed, from half a day before it was noticed on. For any forecast before the end, that
        would be a look ahead.
        """
        lower, upper, usual = map(torch.as_tensor, (self.lower, self.upper, self.usual))
        sizes, factor = values.abs(), torch.ones_like(values)
        for level in (1.5 * 2**i for i in range(20)):
            raised = self._mostly(sizes >= level * usual)
            if not (torch.jit.is_tracing() or raised.any()):  # A graph needs all levels.
                break
            factor = torch.where(raised, level, factor)
        zero = sizes == 0
        gone = zero & self._mostly(zero)

        def beyond(share: float) -> Tensor:
            bound = share * factor
            return (values > bound * upper) | ((values < bound * lower) & ~gone)

        far, half = beyond(self.lasting), self.day // 2
        lasting = _in_last(far, half) >= max(3, 1 / 6 * self.day)
        found = beyond(1.0) | lasting
        if at_end:
            steps = torch.arange(len(values), device=values.device)[:, None]
            usual_until = torch.where(lasting, -1, steps).amax(dim=0)
            found = found | (far & lasting[-1:] & (steps > usual_until - half))
        return found & ~(found | values.isnan()).all(dim=0)

    def _mostly(self, which: Tensor) -> Tensor:
        """Return where more than half of the last `MEMORY` days are True."""
        return _in_last(which, MEMORY * self.day) > MEMORY * self.day / 2

    def believed(self, values: np.ndarray, *, at_end: bool = False) -> np.ndarray:
        """Return readings `(steps, cells)` with NaN for wild ones; see `wild`.

        >>> bounds = Bounds(np.zeros(1), np.full(1, 10.0), np.ones(1), day=8)
        >>> bounds.believed(np.array([[1.0], [50.0], [5.0], [-1.0], [50.0], [5.0], [5.0]]))[:, 0]
        array([ 1., nan,  5., nan, nan, nan, nan])
        """
        far = (values > self.lasting * self.upper) | (values < self.lasting * self.lower)
        some = np.asarray(far.any(axis=0))
        if not some.any():
            return values
        cells = self.of_cells(some)
        wild = cells.wild(torch.from_numpy(values[:, some]), at_end=at_end).numpy()
        found = values.copy()
        found[:, some] = np.where(wild, np.nan, found[:, some])
        return found

    def of_cells(self, some: slice | np.ndarray) -> Bounds:
        """Return the bounds of some cells."""
        arrays = {name: getattr(self, name)[some] for name in ("lower", "upper", "usual")}
        return dataclasses.replace(self, **arrays)

    def joined(self, new: Bounds, ids: np.ndarray) -> Bounds:
        """Return the bounds at `ids` of these cells followed by new ones."""
        names = "lower", "upper", "usual"
        arrays = {n: np.append(getattr(self, n), getattr(new, n))[ids] for n in names}
        return dataclasses.replace(self, **arrays)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays to save."""
        return {
            "largest": self.upper,
            "lowest": self.lower,
            "usual": self.usual,
            "day": np.array([self.day]),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Bounds | None:
        """Restore bounds from their `state`, None without.

        Earlier versions saved `largest` alone; their levels count as never moved.
        """
        if (upper := state.get("largest")) is None:
            return None
        if "lowest" not in state:
            return cls(-upper, upper, np.full_like(upper, NO_LIMIT), 7, lasting=1.0)
        return cls(state["lowest"], upper, state["usual"], int(state["day"][0]))


def learnable(z: np.ndarray, fit: slice, day: int) -> np.ndarray:
    """Return z-scores `(steps, cells)` with NaN for those that are not learnt.

    They are more than twice as far from 0 as the furthest of the training part, `fit`, or come
    within half a day after many of these.
    """
    seen = np.abs(z[fit])
    furthest = 2.0 * np.fmax.reduce(seen, axis=0, initial=1.0)
    nothing = np.full_like(furthest, NO_LIMIT)
    return Bounds(-furthest, furthest, nothing, day, lasting=1.0).believed(z)


def _never_negative(seen: np.ndarray, day: int) -> np.ndarray:
    """Return which cells have no negative readings, but for one value on fewer than half the days.

    The readings are `(steps, cells)`.
    """
    negative = np.where(seen < 0, seen, np.nan)
    lowest, highest = (of.reduce(negative, axis=0) for of in (np.fmin, np.fmax))
    days = np.asarray((_by_day(negative, day) < 0).any(axis=0))
    return np.isnan(lowest) | ((lowest == highest) & (2 * days.sum(axis=0) < len(days)))


def _by_day(values: np.ndarray, day: int) -> np.ndarray:
    """Return `(steps, cells)` as `(day, days, cells)`, with NaN at the end."""
    n_days = -(-len(values) // day)
    padded = np.full((n_days * day, values.shape[1]), np.nan)
    padded[: len(values)] = values
    return padded.reshape(n_days, day, -1).transpose(1, 0, 2)


def _quantiles(values: np.ndarray, *shares: float) -> list[np.ndarray]:
    """Return the lower quantiles along the first axis, NaN without values."""
    n, ordered = np.isfinite(values).sum(axis=0), np.sort(values, axis=0)
    places = [(share * (n - 1).clip(0)).astype(int)[None] for share in shares]
    return [np.take_along_axis(ordered, place, axis=0)[0] for place in places]


def _in_last(which: Tensor, span: int) -> Tensor:
    """Count along the first axis how many of the last `span` are True."""
    counts = which.cumsum(dim=0, dtype=torch.int32)
    before = torch.cat([torch.zeros_like(counts[:span]), counts[:-span]])[: len(counts)]
    return counts - before
