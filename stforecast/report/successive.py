"""Forecasts of successive windows: each begins where the one before ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.comparison.errors import local_times

FORMAT = "%Y-%m-%d %H:%M"


@dataclass(frozen=True, eq=False)
class Successive:
    """Forecasts and observations, in the data's units.

    Attributes:
        times: `(steps,)` local times of the targets, as text.
        y: `(cells, steps)` observed values, NaN where missing, and between folds.
        y_hat: `(cells, steps)` forecasts.
        lower: `(cells, steps)` lower bounds of the widest interval; None without intervals.
        upper: `(cells, steps)` upper bounds.
    """

    times: tuple[str, ...]
    y: np.ndarray
    y_hat: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None

    def first(self, steps: int) -> Successive:
        """Return the first steps alone."""
        bounds = (None if v is None else v[:, :steps] for v in (self.lower, self.upper))
        return Successive(self.times[:steps], self.y[:, :steps], self.y_hat[:, :steps], *bounds)


def successive(forecasts: Sequence[xr.Dataset]) -> Successive:
    """Take from each fold the windows that do not overlap, from the first one on.

    Args:
        forecasts: contents of `forecasts.nc` of each fold.
    """
    times: list[str] = []
    values: dict[str, list[np.ndarray]] = {"y": [], "y_hat": [], "lower": [], "upper": []}
    names = [name for name in values if all(name in part for part in forecasts)]
    for part in forecasts:
        if times:  # A missing step between folds breaks the lines.
            times.append(times[-1])
            for name in names:
                values[name].append(np.full((part.sizes["cell"], 1), np.nan))
        starts, step = local_times(part)
        horizon = part.sizes["horizon"]
        chosen = _apart(starts, horizon * step)
        ahead = [starts[chosen] + step * k for k in range(horizon)]
        ordered = np.stack([of_step.strftime(FORMAT) for of_step in ahead], axis=1)
        times += ordered.ravel().tolist()
        for name in names:
            of_cells = part[name].to_numpy()[:, chosen]
            values[name].append(of_cells.reshape(len(of_cells), -1))
    joined = {name: np.concatenate(values[name], axis=1) for name in names}
    return Successive(
        tuple(times), joined["y"], joined["y_hat"], joined.get("lower"), joined.get("upper")
    )


def _apart(starts: pd.DatetimeIndex, length: pd.Timedelta) -> np.ndarray:
    """Return positions of starts that lie at least a length apart, from the first one on."""
    chosen = [0]
    for i in range(1, len(starts)):
        if starts[i] - starts[chosen[-1]] >= length:
            chosen.append(i)
    return np.array(chosen)
