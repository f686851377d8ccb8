"""Longer even steps for records of uneven times."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.errors import InputError, choose
from data_prep.tabular.completeness import Records, count_records
from data_prep.tabular.times import regular_steps, usual_step
from data_prep.text import in_minutes

if TYPE_CHECKING:
    from data_prep.tabular.time_axis import TimeAxis

AGGREGATES = ("sum", "mean")
DAY = pd.Timedelta("1D")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resampling:
    """Even steps into which records are put; records of one step and cell are merged.

    A sum over a step with missing records is missing: a day with 14 of 24 hours would seem quiet. A
    mean is over the recorded values. Both cases are logged.

    Args:
        step: length of a step.
        agg: `"sum"` for counts, `"mean"` for levels; of the recorded values.

    Raises:
        InputError: if the aggregate is unknown.
    """

    step: pd.Timedelta
    agg: str

    def __post_init__(self) -> None:
        if self.agg not in AGGREGATES:
            raise choose("aggregate", self.agg, AGGREGATES)

    @classmethod
    def of(cls, step: str | None, agg: str | None) -> Resampling | None:
        """Read the options `--resample` and `--agg`.

        Raises:
            InputError: if only one is given, or the step is no divisor or multiple of a day.
        """
        if step is None and agg is None:
            return None
        if step is None:
            raise InputError(f"agg is {agg!r} without a step; give --resample too, such as 10min")
        if agg is None:
            raise InputError(
                f"resample is {step!r}; say how to merge the records of a step: --agg sum for "
                "counts, --agg mean for levels such as a speed"
            )
        return cls(step_length(step, "resample"), agg)

    def place(self, times: pd.DatetimeIndex, name: str) -> tuple[pd.DatetimeIndex, np.ndarray]:
        """Return the time axis `(steps,)` and the position of each row on it, `(rows,)`.

        Raises:
            InputError: if the records are farther apart than a step.
        """
        unique = times.unique().sort_values()
        if len(unique) > 1 and (usual := usual_step(unique)) > self.step:
            raise InputError(
                f"{name}: its records are {in_minutes(usual)} apart, more than the "
                f"{in_minutes(self.step)} of --resample; give at least that"
            )
        return regular_steps(times.floor(self.step), name, self.step)

    def merge_cells(
        self,
        merged: np.ndarray,
        records: Iterable[Records],
        axis: TimeAxis,
        cells: np.ndarray,
        name: str,
    ) -> np.ndarray:
        """Return merged values `(steps, cells)`, without sums of steps that lack records.

        Args:
            merged: `(steps, cells)` sums or means of the recorded values.
            records: the records of each cell.
            axis: the longer steps and the times of the table.
            cells: `(cells,)` ids.
            name: name of the table and its variable in messages.

        Raises:
            InputError: if no sum is left.
        """
        found, expected = count_records(records, axis.times, axis.lengths)
        if not expected.any():
            log.warning(
                "%s: its records are at uneven times, so steps that lack some are not noticed, the "
                "first and last included", name,
            )  # fmt: skip
        partial = (found > 0) & (found < expected)
        if not partial.any():
            return merged
        step, cell = divmod(int(partial.argmax()), len(cells))
        is_sum = self.agg == "sum"
        message = (
            f"{name}: {partial.sum()} of {merged.size} {self.agg}s over {in_minutes(self.step)} "
            f"lack records and are {'left missing' if is_sum else 'of those that there are'}; the "
            f"first is that of {axis.shown[step]}, cell {cells[cell]}, with {found[step, cell]} of "
            f"{expected[step, cell]} records"
        )
        merged = np.where(partial & is_sum, np.nan, merged)
        if np.isnan(merged).all():
            raise InputError(
                f"{message}; none is complete: write a 0 where nothing happened, or choose a "
                "shorter --resample or --agg mean"
            )
        log.warning("%s", message)
        return merged

    def report(self, values: Mapping[str, np.ndarray], name: str) -> None:
        """Log the share of missing values of each variable."""
        shares = [f"{100 * float(np.isnan(v).mean()):.1f} % of {n}" for n, v in values.items()]
        log.info(
            "%s: records put into steps of %s by their %s; missing: %s",
            name, in_minutes(self.step), self.agg, ", ".join(shares),
        )  # fmt: skip


def step_length(text: str, option: str) -> pd.Timedelta:
    """Read the length of a step.

    Args:
        text: such as `10min`.
        option: name of the option, for errors.

    Raises:
        InputError: if it is no length of time, or neither divides a day nor is whole days.

    >>> step_length("10min", "step")
    Timedelta('0 days 00:10:00')
    """
    try:
        length = pd.Timedelta(text)
    except ValueError:
        length = pd.Timedelta(0)
    if pd.isna(length) or length <= pd.Timedelta(0) or (DAY % length and length % DAY):
        raise InputError(
            f"{option} is {text!r}; give a length of time that divides a day, or whole days, such "
            "as 10min, 1h or 1D"
        )
    return length
