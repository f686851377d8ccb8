"""Accuracies of image methods and their differences, with intervals.

The bootstrap is the one of forecasts (`stforecast.bench.statistics.bootstrap`) on other factors:
its days are clients here, and its groups of cells are seeds. A seed decides how images are divided
among clients, and this division is the same for all methods. Both factors are therefore drawn in
common, and comparisons are paired. Methods with different seeds are compared on their common seeds.
One or two seeds are not resampled, since they say next to nothing about others: intervals then
describe only the divisions and models of these seeds.

All accuracies are means over clients after the last round, in per cent. So are the shares that
clients retain in a task stream (`vision.streams.measures`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, choose
from stforecast.bench.run_groups import ALL, RunGroup, select
from stforecast.bench.statistics.bootstrap import Replicates, bootstrap
from stforecast.bench.statistics.estimate import ErrorSums, Estimate
from vision.evaluation import MASKS
from vision.methods import METHODS
from vision.results import ImageRun
from vision.streams.measures import spatial_by_client, temporal_by_client

ACCURACY = "accuracy"
"""Measure of a row by default; `KR_t` and `KR_s` are what it retains in a task stream."""

FEWEST_SEEDS = 3
"""Minimum number of seeds that are resampled; with two, Student's t would be 12.7."""


@dataclass(frozen=True)
class ModelRow:
    """A model, `view`, of a method in a comparison; the runs of its group differ in the seed."""

    group: RunGroup[ImageRun]
    view: str

    @property
    def name(self) -> str:
        """Name, unique in its comparison."""
        return self.group.named(*self.group.runs[0].tags_of(self.view))

    @property
    def accuracy(self) -> float:
        """Mean over its runs of the accuracy after the last round."""
        return float(np.mean([run.accuracy("last", self.view) for run in self.group.runs]))


def rows_of(groups: Iterable[RunGroup[ImageRun]]) -> list[ModelRow]:
    """Return a row for each model of each group."""
    return [ModelRow(group, view) for group in groups for view in group.runs[0].views]


class Accuracy(NamedTuple):
    """Accuracy of one row, choosing from some classes.

    Attributes:
        row: the row.
        accuracy: mean over clients and seeds, in per cent.
        points: percentage points above the row that it is compared with; None for that row, and
            for rows without a common seed.
    """

    row: ModelRow
    accuracy: Estimate
    points: Estimate | None


class Comparison(NamedTuple):
    """Rows that were tested on the same images.

    Attributes:
        reference: name of the row that the others are compared with.
        lines: a line for each row, by the classes that predictions choose from.
    """

    reference: str
    lines: dict[str, list[Accuracy]]


def compare_accuracies(
    rows: Sequence[ModelRow], masks: Sequence[str] = MASKS[:1], reference: str | None = None
) -> Comparison:
    """Compare rows with one of them, choosing from some classes.

    By default, the reference is the method of the highest accuracy among all classes that is no
    reference itself, such as chance.
    """
    names = {row.name: row for row in rows}
    if reference is not None and reference not in names:
        raise choose("reference", reference, names)
    ours = [
        row
        for row in rows
        if getattr(METHODS.get(row.group.runs[0].method), "paper", "") != "reference"
    ]
    best = names[reference] if reference else max(ours or rows, key=lambda row: row.accuracy)
    lines = {
        mask: [
            Accuracy(row, level(row, mask), None if row is best else points_above(row, best, mask))
            for row in rows
        ]
        for mask in masks
    }
    return Comparison(best.name, lines)


def level(row: ModelRow, mask: str, measure: str = ACCURACY) -> Estimate:
    """Return a measure of a row in per cent, mean over clients and seeds."""
    found = _resampled({row.name: shares_by_client(row, mask, measure)})
    share = found.vary(found.pooled[row.name], row.name)
    most = 100.0 if measure == ACCURACY else math.inf
    return share.estimate(found.level, lambda value: min(max(value, 0.0), most))


def points_above(
    row: ModelRow, other: ModelRow, mask: str, measure: str = ACCURACY, *, alike: bool = True
) -> Estimate | None:
    """Return the percentage points by which a row lies above another; None without common seeds.

    Both were tested on the same images if they are `alike`. Otherwise they may have other clients,
    but need as many: else, None. The interval ends at the largest possible difference.
    """
    ours, theirs = (shares_by_client(r, mask, measure) for r in (row, other))
    common = ours.index.unique("seed").intersection(theirs.index.unique("seed"))
    if common.empty:
        return None
    ours, theirs = ours.loc[common], theirs.loc[common]
    if not alike:
        if not ours.index.equals(theirs.index):
            return None
    elif not ours["samples"].equals(theirs["samples"]):
        raise InputError(
            f"{row.name} was tested on other images than the row it is compared with: clients have "
            "other numbers of them; ",
            Words("compare runs of one {partition} and its settings"),
        )
    known = ours["share"].notna() & theirs["share"].notna()
    if not known.any():
        return None
    ours, theirs = (table.assign(share=table["share"].where(known)) for table in (ours, theirs))
    most = 100.0 if measure == ACCURACY else math.inf
    found = _resampled({"ours": ours, "theirs": theirs}).difference("ours", "theirs")
    return replace(found, low=max(found.low, -most), high=min(found.high, most))


def shares_by_client(row: ModelRow, mask: str, measure: str = ACCURACY) -> pd.DataFrame:
    """Return `share`, a measure, and the test images of each client, by `seed` and `client`.

    `KR_t` and `KR_s` are what is retained after the last stage.
    """
    tables = {}
    for run in row.group.runs:
        own = select(run.metrics(), view=row.view, mask=mask, selection="last")
        own = own[own["client"] != ALL]
        own = own.set_index(own["client"].astype(int))[["accuracy", "samples"]]
        own = own.rename(columns={"accuracy": "share"})
        if measure != ACCURACY:
            stages = run.stages()
            if measure == "KR_t":
                ratios = temporal_by_client(stages, row.view, mask)
            else:
                ratios = spatial_by_client(stages, row.view, run.local_view, mask)
            last = stages["stage"].max()
            # NaN for a client that had nothing to retain.
            own["share"] = ratios.unstack("stage").reindex(columns=[last])[last]
        tables[run.seed] = own
    return pd.concat(tables, names=["seed", "client"]).sort_index()


def _resampled(tables: Mapping[str, pd.DataFrame]) -> Replicates:
    """Resample the means over seeds of clients' mean shares, in per cent."""
    sums = {}
    for name, table in tables.items():
        share = table["share"].unstack("client").to_numpy()
        share = share[np.isfinite(share).any(axis=1)]
        if not len(share):
            raise InputError(f"{name}: no client had anything to retain")
        tested = np.isfinite(share)
        weight = tested / tested.sum(axis=1, keepdims=True)
        # Seeds are blocks of one seed.
        sums[name] = ErrorSums((100 * weight * np.where(tested, share, 0))[None], weight[None])
    n_seeds = len(weight)
    with np.errstate(invalid="ignore"):
        return bootstrap(sums, np.divide, np.arange(n_seeds) * (n_seeds >= FEWEST_SEEDS))
