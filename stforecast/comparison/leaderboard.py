"""Leaderboards: errors, differences to a reference, skill and win rates, with intervals.

Intervals come from a bootstrap over days, groups of neighbouring cells where locations are known,
and seeds; p-values from swapping the methods' errors day by day, corrected by Holm
(`stforecast.bench.statistics`). Runs are compared by data, service and horizon, and over all of
them by skill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.base.errors import InputError, choose, counted
from data_prep.base.progress import doing
from stforecast.bench.run_groups import grouped
from stforecast.bench.statistics.bootstrap import Replicates, bootstrap, skill, win_rate
from stforecast.bench.statistics.estimate import (
    LEVEL,
    NEGLIGIBLE,
    ErrorSums,
    Estimate,
    holm,
    permutation_test,
)
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.names import by_task
from stforecast.comparison.rows import Row, TaskErrors, read_errors
from stforecast.forecasting.results import ForecastRun
from stforecast.metrics import find_metric


@dataclass(frozen=True)
class Line:
    """One method on one task.

    Attributes:
        row: its runs.
        error: pooled error of the model that `predict` uses, mean over seeds.
        against: by how many per cent the error is above the reference's.
        p_value: of the difference to the reference, after Holm's correction for the rows of its
            table; NaN for itself.
        smallest_p: smallest p-value that so few days can give, after the same correction.
        skill: 1 minus the geometric mean of clients' errors over those of seasonal naive; None if
            it is unknown.
        wins: share of other methods × clients with a higher error.
    """

    row: Row
    error: Estimate
    against: Estimate
    p_value: float
    smallest_p: float
    skill: Estimate | None
    wins: Estimate

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.row.name

    @property
    def differs(self) -> bool:
        """True if interval and test agree that the error differs from the reference's."""
        return self.against.excludes(0) and self.p_value <= LEVEL


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Methods on one task, in the order of the rows.

    Attributes:
        metric: name of the error that all numbers are of.
        lines: a line for each method.
        reference: name of the method that the others are compared with.
        errors: the errors.
        replicates: bootstrap of the errors.
        task: name of the data, and facts that distinguish it from other tasks.
    """

    metric: str
    lines: tuple[Line, ...]
    reference: str
    errors: TaskErrors
    replicates: Replicates
    task: str = ""

    @property
    def sorted_lines(self) -> list[Line]:
        """Lines from the lowest error to the highest; diverged methods are last."""
        errors = [math.inf if math.isnan(e := line.error.value) else e for line in self.lines]
        return [self.lines[i] for i in np.argsort(errors, kind="stable")]


def leaderboard(
    rows: Sequence[Row],
    metric: str = "mse",
    reference: str | None = None,
    *,
    n: int = 2000,
    task: str = "",
) -> Leaderboard:
    """Compare methods that were tested on the same targets.

    The model of each row is the one that its runs keep, which `predict` uses. Lower errors are
    better, so a signed one cannot be compared.

    Args:
        rows: rows with different names.
        metric: error to compare, as in `metrics.csv`.
        reference: name of the row that the others are compared with, or `SEASONAL`; by default, or
            if it lacks a fold, the row of the lowest error.
        n: number of bootstrap replicates.
        task: name of the data.

    Raises:
        InputError: if two runs were tested on different targets, the reference is unknown, or the
            metric is unknown or signed.
    """
    if find_metric(metric).signed:
        raise InputError(f"{metric} may be negative, so the lowest is not the best; compare mase")
    errors = read_errors(rows, metric)
    groups = neighbours(errors.locations)
    doing("resampling errors")
    sums = errors.sums
    known = [row for row in rows if row.name in sums]
    everyone = resample(sums, metric, groups, n=n)
    ours = everyone.only([row.name for row in known])
    if reference is None or reference in errors.incomplete:
        reference = min(ours.pooled, key=lambda name: everyone.error(name).value)
    elif reference not in everyone.pooled:
        raise choose("reference", reference, everyone.pooled)
    p_values = _p_values(known, sums, reference)
    lines = tuple(
        Line(
            row,
            everyone.error(row.name),
            everyone.relative_difference(row.name, reference),
            *p_values[row.name],
            skill([everyone], row.name, SEASONAL) if SEASONAL in sums else None,
            win_rate([ours], row.name),
        )
        for row in known
    )
    return Leaderboard(metric, lines, reference, errors, everyone, task)


def _p_values(
    rows: Sequence[Row], sums: Mapping[str, ErrorSums], reference: str
) -> dict[str, tuple[float, float]]:
    """Return the corrected p-value of each row, and the smallest possible one."""
    found = {reference: (math.nan, math.nan)}
    others = [row for row in rows if row.name != reference]
    # Ablations are a question of their own, whose tests do not weaken those of the methods.
    for some in grouped(others, lambda row: row.table).values():
        tests = [permutation_test(sums[row.name], sums[reference]) for row in some]
        corrected = holm([test.p_value for test in tests])
        # Holm multiplies the smallest of the p-values by their number.
        n_tests = np.isfinite(corrected).sum()
        for row, test, p_value in zip(some, tests, corrected.tolist(), strict=True):
            found[row.name] = p_value, min(1.0, float(n_tests * test.smallest))
    return found


def resample(
    methods: Mapping[str, ErrorSums], metric: str, groups: np.ndarray | None, *, n: int = 2000
) -> Replicates:
    """Resample the errors of methods as all tables do, with the groups of `neighbours`."""
    if not methods:
        raise InputError("no methods to compare; give at least one")
    _, n_cells, n_days = next(iter(methods.values())).total.shape
    # So that the replicates of all cells and methods take a few hundred megabytes. With fewer than
    # 400, the seed moves ends of intervals by more than a tenth of their width.
    n = int(np.clip(30_000_000 / (n_cells * len(methods)), 400, n))
    finalise = find_metric(metric).finalise
    length = 2 if n_days >= 8 else 1  # Successive days are alike.
    return bootstrap(methods, finalise, groups, n=n, block_length=length)


def neighbours(locations: np.ndarray | None) -> np.ndarray | None:
    """Group neighbouring cells by k-means, about as many groups as cells in a group.

    Locations are `(cells, 2)` longitude and latitude, numbers of groups `(cells,)`. None if
    locations are unknown or there are few cells.
    """
    if locations is None or len(locations) < 10:
        return None
    from sklearn.cluster import KMeans  # slow to import

    lon, lat = np.radians(locations).T
    plane = np.stack([lon * np.cos(lat.mean()), lat], axis=1)
    n_groups = round(math.sqrt(len(locations)))
    return KMeans(n_groups, n_init=4, random_state=0).fit_predict(plane)


def claims(board: Leaderboard) -> list[str]:
    """State in words what the numbers show about the reference and the others, if there are any."""
    if len(board.lines) < 2:
        return []
    data, named = board.task, f"**{board.reference}**"
    diverged = [line for line in board.lines if not math.isfinite(line.error.value)]
    if not math.isfinite(board.replicates.pooled[board.reference][0]):
        return [f"On {data}, {named} diverged, so nothing can be compared with it."]
    finite = [x for x in board.lines if x not in diverged and x.name != board.reference]
    too_few = [line for line in finite if line.smallest_p > LEVEL]
    equal = [line for line in finite if not line.differs and line not in too_few]
    sentences = {
        "has a lower error than": [x for x in finite if x.differs and x.against.value > 0],
        "has a higher error than": [x for x in finite if x.differs and x.against.value < 0],
        "does not differ significantly from": equal,
    }
    said = [f"On {data}, {named} {told} {_listed(few)}." for told, few in sentences.items() if few]
    if diverged:
        names = "; ".join(line.name for line in diverged)
        said.append(f"On {data}, {names} diverged: some forecasts are not finite.")
    if too_few:
        most = max(too_few, key=lambda line: line.smallest_p)
        n_tests = sum(line.row.table == most.row.table for line in too_few)
        days = counted(len(board.errors.days), "test day")
        said.append(
            f"On {data}, too few days were tested for any difference between {named} and the "
            f"others to be significant: {_listed(too_few)}. The smallest p-value of {days}, "
            f"corrected for {counted(n_tests, 'comparison')}, is {most.smallest_p:.2g}, above "
            f"{LEVEL}."
        )
    return said


def _listed(lines: Sequence[Line]) -> str:
    """List methods with how far the reference's error lies from theirs, in per cent of theirs."""
    ordered = sorted(lines, key=lambda line: line.against.value)
    return "; ".join(f"{line.name} ({by_per_cent(line.against)})" for line in ordered)


def by_per_cent(against: Estimate) -> str:
    """Return the difference of the reference from a method, in per cent of the method's error.

    No number is rounded to 0, which would hide its sign, but one far smaller than its interval.

    >>> by_per_cent(Estimate(25.0, 0.0, 100.0)), by_per_cent(Estimate(25.0, 0.1, 100.0))
    ('-20 % [-50, 0]', '-20.0 % [-50.0, -0.1]')
    >>> by_per_cent(Estimate(0.001, -70.0, 300.0))
    '+0 % [-75, 233]'
    """
    ends = np.array([against.value, against.high, against.low])
    with np.errstate(divide="ignore"):  # An error of 0 is 100 % below any other.
        value, low, high = (100 * (100 / (100 + ends) - 1)).tolist()
    if not math.isfinite(high - low):
        return f"{value:+.0f} %"
    decimals = 1 if high - low < 10 else 0
    signed = (value, low, high) if abs(value) > (high - low) / 1000 else (low, high)
    smallest = min((abs(x) for x in signed if abs(x) > NEGLIGIBLE), default=1.0)
    decimals = max(decimals, -math.floor(math.log10(2 * smallest)))
    value, low, high = (round(x, decimals) + 0.0 for x in (value, low, high))
    return f"{value:+.{decimals}f} % [{low:.{decimals}f}, {high:.{decimals}f}]"


BOARD_FACTS = ("service", "horizon", "path")
"""Facts in which the runs of one task agree, see `by_task`."""


@dataclass(frozen=True)
class Overall:
    """One method over all tasks.

    Attributes:
        name: name of the method.
        skill: against seasonal naive; None if a task has no seasonal naive.
        wins: share of other methods × clients with a higher error, mean over tasks.
        error_ranks: rank by pooled error in each task.
    """

    name: str
    skill: Estimate | None
    wins: Estimate
    error_ranks: tuple[int, ...]


def compare(
    runs: Sequence[ForecastRun], metric: str = "mase", reference: str | None = None
) -> list[Leaderboard]:
    """Compare the runs of each data set, service and horizon.

    Of methods with several models, the first is compared. `metric` and `reference` are as for
    `leaderboard`, the latter by label.

    Raises:
        InputError: if runs of one task were tested on different targets, the metric is unknown, or
            no task has the reference.
    """
    boards = []
    known: set[str] = set()
    for name, groups in by_task(runs, BOARD_FACTS).items():
        rows = [Row(group) for group in groups]
        names = {row.name for row in rows} | {SEASONAL}
        known |= names
        own = reference if reference in names else None
        boards.append(leaderboard(rows, metric, own, task=name))
    if reference is not None and reference not in known:
        raise choose("reference", reference, known)
    if not boards:
        raise InputError("no runs to compare; give folders of finished runs")
    return boards


def overall(boards: Sequence[Leaderboard]) -> list[Overall]:
    """Judge the methods that have a row in every task over all of them, best skill first."""
    names = [
        line.name
        for line in boards[0].lines
        if all(line.name in {other.name for other in board.lines} for board in boards)
    ]
    with_naive = all(SEASONAL in board.replicates.pooled for board in boards)
    ours = [board.replicates.only(names) for board in boards]
    whole = [board.replicates for board in boards]
    errors = [{line.name: line.error.value for line in board.lines} for board in boards]
    found = [
        Overall(
            name,
            skill(whole, name, SEASONAL) if with_naive else None,
            win_rate(ours, name),
            tuple(1 + sum(error < of[name] for error in of.values()) for of in errors),
        )
        for name in names
    ]
    return sorted(found, key=lambda one: -(one.skill or one.wins).value)
