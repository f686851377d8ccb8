"""Comparison of finished image runs: tables, what they show in words, and files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from data_prep.base.errors import InputError, choose
from data_prep.base.text import counted
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import Estimate, with_ends
from stforecast.bench.tables import Compared, ComparedTable
from vision.comparison import (
    FEWEST_SEEDS,
    Accuracy,
    Comparison,
    ModelRow,
    compare_accuracies,
    rows_of,
)
from vision.evaluation import MASKS, TASK
from vision.results import ImageRun


def compared(rows: Sequence[ModelRow], data: str, reference: str | None = None) -> ComparedTable:
    """Compare rows on the same data, with a row of theirs if it is one; or say why not."""
    own = reference if reference in {row.name for row in rows} else None
    try:
        return compared_table(data, compare_accuracies(rows, compared_masks(rows), own))
    except InputError as e:
        return ComparedTable(data, (), [f"Not compared: {e.typed}."])


def compared_masks(rows: Sequence[ModelRow]) -> list[str]:
    """Return the classes that predictions choose from in a comparison."""
    every = [run.masks for row in rows for run in row.group.runs]
    return [MASKS[0], *([TASK] if all(TASK in masks for masks in every) else [])]


def accuracy_comparison(found: Comparison) -> list[dict[str, str]]:
    """Return the rows of the table, from the highest accuracy among all classes to the lowest."""
    first, *_ = found.lines
    order = sorted(found.lines[first], key=_descending)
    by_mask = {mask: {line.name: line for line in lines} for mask, lines in found.lines.items()}
    several = len(order) > 1
    rows = []
    for name in (line.name for line in order):
        row = {"method": name}
        for mask, lines in by_mask.items():
            row[f"{mask}, % [95 %]"] = str(lines[name].accuracy)
            if several:
                points = lines[name].points
                row[f"{mask}, against {found.reference}"] = "-" if points is None else str(points)
        rows.append(row)
    return rows


def accuracy_claims(found: Comparison, data: str) -> list[str]:
    """State in words what the numbers show about the compared row; none for a single row.

    Each other method is represented by its best model, as a table may have many.
    """
    said = []
    for mask, lines in found.lines.items():
        others = [(x, x.points) for x in _best_of_others(lines, found.reference) if x.points]
        where = f"On {data}, choosing from {mask}, **{found.reference}**"
        worse = [x for x, points in others if points.high < 0]
        better = [x for x, points in others if points.low > 0]
        equal = [x for x, points in others if not points.excludes(0)]
        if worse:
            said.append(f"{where} beats {_listed(worse, '{} by {}', -1)}.")
        if better:
            said.append(f"{where} is behind {_listed(better, '{} by {}', 1)}.")
        if equal:
            said.append(f"{where} cannot be told apart from {_listed(equal, '{} ({})', -1)}.")
    return said


def _best_of_others(lines: Sequence[Accuracy], reference: str) -> list[Accuracy]:
    """Return the best line of each method but the compared one, from the highest accuracy."""
    best = {line.row.group.name: line for line in sorted(lines, key=_descending, reverse=True)}
    compared = next(line.row.group for line in lines if line.name == reference)
    best.pop(compared.name)
    return sorted(best.values(), key=_descending)


def about_intervals(found: Comparison) -> str:
    """Return what the intervals are about."""
    drawn, alone = counted(found.clients, "client"), ""
    if found.seeds >= FEWEST_SEEDS:
        drawn += f" and up to {counted(found.seeds, 'seed')}"
    else:
        seeds = "this seed" if found.seeds == 1 else f"these {found.seeds} seeds"
        alone = f"; it holds for {seeds} only"
    return (
        f"[95 %]: interval of the last round's accuracy from a bootstrap over {drawn}, with the "
        f"same draws for all methods{alone}. against {found.reference}: percentage points above "
        "it. The sentences name the best model of each other method. The intervals are not "
        "corrected for several comparisons: of twenty equal methods, one is told apart by chance."
    )


def _descending(line: Accuracy) -> float:
    return -line.accuracy.value


def _listed(lines: Sequence[Accuracy], form: str, sign: int) -> str:
    """List rows with the points by which the compared row differs from them."""
    return "; ".join(form.format(line.name, _points(line, sign)) for line in lines)


def _points(line: Accuracy, sign: int) -> str:
    points = line.points or Estimate(math.nan, math.nan, math.nan)
    ends = sorted((sign * points.low, sign * points.high))
    value, _, interval = str(Estimate(sign * points.value, *ends)).partition(" ")
    return f"{value} points {interval}".strip()


def compare_images(runs: Sequence[ImageRun], reference: str | None = None) -> Compared:
    """Compare image runs: a table with intervals, and what it shows, for each set and scenario."""
    found = comparisons(runs, reference)
    tables = [compared_table(name, comparison) for name, comparison in found.items()]
    return Compared(tables, (), _numbers(found))


def compared_table(name: str, found: Comparison) -> ComparedTable:
    """Return the table of a comparison on the data of a name, and what it shows."""
    said = accuracy_claims(found, name)
    return ComparedTable(name, accuracy_comparison(found), said, [about_intervals(found)])


def comparisons(runs: Sequence[ImageRun], reference: str | None = None) -> dict[str, Comparison]:
    """Compare image runs, those of each image set and scenario by themselves."""
    found = {}
    for name, rows in rows_by_data(runs, reference).items():
        own = reference if reference in {row.name for row in rows} else None
        try:
            found[name] = compare_accuracies(rows, compared_masks(rows), own)
        except InputError as e:
            raise InputError(f"{name}: ", e) from e
    return found


def rows_by_data(
    runs: Sequence[ImageRun], reference: str | None = None
) -> dict[str, list[ModelRow]]:
    """Return the rows of each image set and scenario; one of them must be the reference, if any."""
    parts: dict[str, list[ImageRun]] = {}
    for run in runs:
        parts.setdefault(run.data_name, []).append(run)
    found = {name: rows_of(group_runs(some)) for name, some in parts.items()}
    known = {row.name for rows in found.values() for row in rows}
    if reference is not None and reference not in known:
        raise choose("reference", reference, known)
    return found


def _numbers(found: dict[str, Comparison]) -> pd.DataFrame:
    """Return every number, one row for each table, choice of classes and row."""
    rows = []
    for name, comparison in found.items():
        for mask, lines in comparison.lines.items():
            for line in lines:
                estimates = {"accuracy": line.accuracy, "points_above_reference": line.points}
                row = {
                    "data": name,
                    "choosing from": mask,
                    "method": line.name,
                    "runs": len(line.row.group.runs),
                    "reference": comparison.reference,
                }
                rows.append({**row, **with_ends(estimates)})
    return pd.DataFrame(rows)
