"""Folds of a backtest that are checked against the windows before anything is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from data_prep.errors import InputError
from stforecast.data.clock import Calendar
from stforecast.data.folds import FoldOptions, describe_folds, fold_splits
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec


@dataclass(frozen=True)
class FoldPlan:
    """Folds of a backtest.

    Attributes:
        splits: split of each fold, oldest first; see `stforecast.data.dates`.
        description: number of folds and lengths of their spans, such as "3 folds of 7 days".
    """

    splits: tuple[str, ...]
    description: str


def plan_folds(
    n_steps: int, calendar: Calendar, windows: Mapping[str, WindowSpec], options: FoldOptions
) -> FoldPlan:
    """Divide a series into folds in which all windows fit.

    Args:
        n_steps: length of the series.
        calendar: its local time.
        windows: name of each method to the shape of its windows.
        options: number of folds, and lengths of their spans.

    Raises:
        InputError: if the folds do not fit in the series, or naming the method whose windows do not
            fit in a fold.
    """
    local_times = calendar.local_times(np.arange(n_steps))
    in_steps = {name: window.at(calendar.step) for name, window in windows.items()}
    longest = max(window.horizon for window in in_steps.values())
    splits = fold_splits(local_times, calendar.step, longest, options)
    for number, split in enumerate(splits, start=1):
        for name, window in in_steps.items():
            try:
                make_split(split, n_steps, calendar.step, window, local_times)
            except InputError as e:
                raise InputError(f"fold {number} of {len(splits)}, {name}: {e}") from e
    return FoldPlan(tuple(splits), describe_folds(n_steps, calendar.step, options))
