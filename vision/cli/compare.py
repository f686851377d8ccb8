"""Comparison of finished image runs: tables, what they show in words, and answers to claims.

A benchmark's file states the claims of a paper:

[[claims]]
says = "GLDP is the best global model, by 4 points (Table 2)"
row = "gldp (global averaged)"
over = ["fedavg", "creff"]             # it is above each of these rows …
better = true                          # … all with the better of a method's models
by = 4.0                               # … by more points than this; 0 by default

[[claims]]
says = "FedTA retains about 98 % (Figure 4)"
row = "fedta (personal)"
measure = "KR_t"                       # accuracy by default
least = 95.0                           # its measure is above this
among = ["all classes", "task classes"]

[[claims]]
says = "Accuracy rises with the imbalance"
row = "gldp (local)"
rising = ["IF 10", "IF 50", "IF 100"]  # from each of these scenarios to the next
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal

from data_prep.base.errors import InputError, choose, counted
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import Estimate, with_ends
from stforecast.bench.tables import Cell, Compared, ComparedTable, Part
from stforecast.federated.core.options import CheckedOptions
from vision.comparison import (
    ACCURACY,
    FEWEST_SEEDS,
    Comparison,
    ModelRow,
    compare_accuracies,
    level,
    points_above,
    rows_of,
)
from vision.evaluation import MASKS, TASK
from vision.results import ImageRun

log = logging.getLogger(__name__)


def compared(rows: Sequence[ModelRow], data: str, reference: str | None = None) -> ComparedTable:
    """Compare rows on the same data, with the reference if it is one of them; or say why not."""
    try:
        return compared_table(rows, data, reference)
    except InputError as e:
        return ComparedTable(data, (), [f"Not compared: {e.typed}."])


def compared_table(rows: Sequence[ModelRow], data: str, reference: str | None) -> ComparedTable:
    """Compare rows on the same data, with the reference if it is one of them."""
    own = reference if reference in {row.name for row in rows} else None
    found = compare_accuracies(rows, compared_masks(rows), own)
    said, basis = accuracy_claims(found, data), [about_intervals(found)]
    return ComparedTable(data, accuracy_comparison(found), said, basis, _numbers(found, data))


def compared_masks(rows: Sequence[ModelRow]) -> list[str]:
    """Return the classes that predictions choose from in a comparison."""
    every = [run.masks for row in rows for run in row.group.runs]
    return [MASKS[0], *([TASK] if all(TASK in masks for masks in every) else [])]


def accuracy_comparison(found: Comparison) -> list[dict[str, str]]:
    """Return the rows of the table, from the highest accuracy among all classes to the lowest."""
    of_rows = sorted(
        zip(*found.lines.values(), strict=True), key=lambda of: of[0].accuracy.value, reverse=True
    )
    rows = []
    for lines in of_rows:
        name = lines[0].row.name
        row: dict[str, str] = {"method": Cell(name, {"{}": name, "reference": found.reference})}
        for mask, (_, accuracy, points) in zip(found.lines, lines, strict=True):
            row[f"{mask}, % [95 %]"] = accuracy.cell()
            if len(of_rows) > 1:
                shown = points.cell(f"{mask}, against reference") if points else "-"
                row[f"{mask}, against {found.reference}"] = shown
        rows.append(row)
    return rows


def accuracy_claims(found: Comparison, data: str) -> list[str]:
    """State in words what the numbers show about the compared row; none for a single row.

    Each other method is represented by its best model, as a table may have many.
    """
    said = []
    for mask, lines in found.lines.items():
        ordered = sorted(lines, key=lambda line: line.accuracy.value)
        best = {line.row.group.name: line for line in ordered}
        best.pop(next(line.row.group for line in lines if line.row.name == found.reference).name)
        ordered = sorted(best.values(), key=lambda line: line.accuracy.value, reverse=True)
        others = [(line.row.name, line.points) for line in ordered if line.points]
        sentences = {
            "beats": [f"{n} by {p.times(-1).told('points')}" for n, p in others if p.high < 0],
            "is behind": [f"{n} by {p.told('points')}" for n, p in others if p.low > 0],
            "does not differ significantly from": [
                f"{n} ({p.times(-1).told('points')})" for n, p in others if not p.excludes(0)
            ],
        }
        where = f"On {data}, choosing from {mask}, **{found.reference}**"
        said += [f"{where} {told} {'; '.join(few)}." for told, few in sentences.items() if few]
    return said


def about_intervals(found: Comparison) -> str:
    """Return what the intervals are about."""
    groups = [line.row.group for lines in found.lines.values() for line in lines]
    drawn, alone = counted(int(groups[0].runs[0].about["clients"]), "client"), ""
    n_seeds = max(len(group.runs) for group in groups)
    if n_seeds >= FEWEST_SEEDS:
        drawn += f" and up to {counted(n_seeds, 'seed')}"
    else:
        seeds = "this seed" if n_seeds == 1 else f"these {n_seeds} seeds"
        alone = f"; it holds for {seeds} only"
    return (
        f"[95 %]: interval of the last round's accuracy from a bootstrap over {drawn}, with the "
        f"same draws for all methods{alone}. against {found.reference}: percentage points above "
        "it. The sentences name the best model of each other method. The intervals are not "
        "corrected for several comparisons: of twenty equal methods, one is told apart by chance."
    )


def compare_images(runs: Sequence[ImageRun], reference: str | None = None) -> Compared:
    """Compare image runs: a table with intervals and conclusions, for each set and scenario."""
    tables = []
    for name, rows in rows_by_data(runs, reference).items():
        try:
            tables.append(compared_table(rows, name, reference))
        except InputError as e:
            raise InputError(f"{name}: ", e) from e
    return Compared(tables, ())


def rows_by_data(
    runs: Sequence[ImageRun], reference: str | None = None
) -> dict[str, list[ModelRow]]:
    """Return the rows of each image set and scenario; one of them must be the reference, if any.

    Runs of other numbers of clients or sizes of images stand by themselves, under names that tell.
    So do runs on other images of the same name.
    """
    parts: dict[str, dict[str, list[ImageRun]]] = {}
    ambiguous = _ambiguous(runs)
    for run in runs:
        size = run.settings["size"]
        pixels = f", {size} × {size} pixels" if size else ""
        origin = f", from {run.settings['images']}" if run.about["data"] in ambiguous else ""
        alike = f"{counted(run.about['clients'], 'client')}{pixels}{origin}"
        parts.setdefault(run.data_name, {}).setdefault(alike, []).append(run)
    found = {
        f"{name}, {alike}" if len(own) > 1 else name: rows_of(group_runs(some))
        for name, own in parts.items()
        for alike, some in own.items()
    }
    known = {row.name for rows in found.values() for row in rows}
    if reference is not None and reference not in known:
        raise choose("reference", reference, known)
    return found


def _ambiguous(runs: Sequence[ImageRun]) -> set[str]:
    """Return the names that several image sets have; a warning tells of one that has changed."""
    found: dict[tuple[Any, ...], dict[str, ImageRun]] = {}
    for run in runs:
        options = [run.settings.get(name) for name in ("size", "imbalance", "surrogate")]
        drawn = options[1:] != [1.0, 0]
        place = (run.about["data"], *options, run.seed if drawn else None)
        found.setdefault(place, {}).setdefault(run.about.get("content", ""), run)
    names = set()
    for (name, *_), by_content in found.items():
        one, *others = by_content.values()
        for other in others:
            names.add(name)
            if one.settings["images"] == other.settings["images"]:
                log.warning(
                    "%s and %s were trained on different images of %s, which have changed in "
                    "between; run one of them again",
                    one.folder,
                    other.folder,
                    one.settings["images"],
                )
    return names


def _numbers(found: Comparison, data: str) -> list[dict[str, object]]:
    """Return every number, one row for each choice of classes and row."""
    return [
        {
            "data": data,
            "choosing from": mask,
            "method": row.name,
            "runs": len(row.group.runs),
            "reference": found.reference,
            **with_ends({"accuracy": accuracy, "points_above_reference": points}),
        }
        for mask, lines in found.lines.items()
        for row, accuracy, points in lines
    ]


HEADING = "claim"
"""First heading of the table of answers, by which the pages of papers find it."""

TO_TELL = "seeds needed"
"""Column of the number of seeds that might answer a claim, among the numbers of a benchmark."""

HOLDS, NOT, UNTOLD = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Claim(CheckedOptions):
    """A claim of a paper, in terms of the rows of a benchmark.

    Attributes:
        says: the claim in words.
        row: label of the row that it is about.
        over: labels of the rows that it is claimed to be above.
        rising: scenarios; the row is claimed to be higher in each than in the one before.
        by: number of points by which it is claimed to be above each of them, or to rise.
        least: claimed least value of the measure, in per cent.
        better: whether a label stands for the most accurate model of its method, not for its own.
        measure: measure of the rows.
        among: classes that predictions choose from.
    """

    says: str
    row: str
    over: tuple[str, ...] = ()
    rising: tuple[str, ...] = ()
    by: float = 0.0
    least: float | None = None
    better: bool = False
    measure: Literal["accuracy", "KR_t", "KR_s"] = "accuracy"
    among: tuple[str, ...] = MASKS[:1]

    def __post_init__(self) -> None:
        """Refuse a claim that cannot be tested."""
        super().__post_init__()
        stated = [bool(self.over), len(self.rising) > 1, self.least is not None]
        if sum(stated) != 1:
            raise InputError(
                f"claim {self.says!r} needs one of over, the rows that it is above, rising, two or "
                "more scenarios, and least"
            )
        if odd := set(self.among) - {*MASKS, TASK}:
            raise choose("classes", min(odd), (*MASKS, TASK))


def parse_claims(
    tables: Iterable[Mapping[str, Any]], labels: Collection[str], scenarios: Collection[str]
) -> tuple[Claim, ...]:
    """Parse the key `claims` of a benchmark, which name the labels of its rows and scenarios."""
    known = [field.name for field in fields(Claim)]
    found = []
    for table in tables:
        if unknown := table.keys() - set(known):
            raise choose("field of a claim", min(unknown), known)
        if missing := {"says", "row"} - table.keys():
            raise InputError(f"a claim has no {max(missing)}: {dict(table)}")
        claim = Claim(**table)
        if absent := {claim.row, *claim.over} - set(labels):
            raise InputError(f"claim {claim.says!r}: {choose('label', min(absent), labels)}")
        if unknown := set(claim.rising) - set(scenarios):
            raise InputError(f"claim {claim.says!r}: {choose('scenario', min(unknown), scenarios)}")
        found.append(claim)
    return tuple(found)


def answers(claims: Sequence[Claim], runs: Sequence[ImageRun]) -> list[Part]:
    """Answer claims about a benchmark's runs in a table; empty without claims."""
    if not claims:
        return []
    rows = {data: {row.name: row for row in own} for data, own in rows_by_data(runs).items()}
    seeds = len({run.seed for run in runs})
    cells = []
    for claim in claims:
        least = claim.by if claim.least is None else claim.least
        for where, here, found in _found(claim, rows):
            answer = verdict(found, least, seeds)
            cells.append({HEADING: claim.says, "of": where, "here": here, "answer": answer})
    return [
        cells,
        f"{HOLDS}: each interval lies above the claimed value; {NOT}: one interval lies below it "
        f"or ends at it; {UNTOLD}: all other cases. "
        "Differences are in points, with 95 % intervals.",
    ]


Found = Collection[Estimate | None]
"""Estimates that are all claimed to be above a value; None for rows without a common seed."""


def _found(
    claim: Claim, rows: Mapping[str, Mapping[str, ModelRow]]
) -> Iterable[tuple[str, str, Found]]:
    """Yield data, what was found in words, and the estimates, for all data and classes."""
    if claim.rising:  # The row is sought in each scenario of the same images.
        across: dict[str, dict[str, ModelRow]] = {}
        for row in filter(None, (own.get(claim.row) for own in rows.values())):
            facts = row.group.runs[0].facts()
            across.setdefault(facts["data"], {})[facts["scenario"]] = row
        rows = across
    needed = claim.rising or (claim.row, *claim.over)
    for data, own in rows.items():
        absent = [name for name in needed if name not in own]
        for mask in claim.among:
            where = data if len(claim.among) == 1 else f"{data}, {mask}"
            if absent:
                yield where, f"not run: {', '.join(absent)}", ()
                continue
            try:
                yield where, *_found_of(claim, own, mask)
            except InputError as e:
                yield where, f"not compared: {e.typed}", ()


def _found_of(claim: Claim, rows: Mapping[str, ModelRow], mask: str) -> tuple[str, Found]:
    """Return what was found on one data set, or in several scenarios of it."""
    if claim.rising:
        levels = {name: level(rows[name], mask, claim.measure) for name in claim.rising}
        here = f"{claim.row}: {', '.join(f'{name} {found}' for name, found in levels.items())}"
        rises = {
            name: points_above(rows[name], rows[before], mask, claim.measure, alike=False)
            for before, name in pairwise(claim.rising)
        }
        return _told(claim, here, "the one before: ", rises), rises.values()
    row, *others = (rows[label] for label in (claim.row, *claim.over))
    if claim.better:  # The most accurate model of each method.
        row, *others = (
            max(
                (model for model in rows.values() if model.group is named.group),
                key=lambda model: level(model, mask).value,
            )
            for named in (row, *others)
        )
    own = level(row, mask, claim.measure)
    unit = "" if claim.measure == ACCURACY else f"{claim.measure} "
    here = f"{row.name}: {unit}{own}"
    if claim.least is not None:
        return f"{here}; claimed {claim.least:g}", [own]
    above = {other.name: points_above(row, other, mask, claim.measure) for other in others}
    return _told(claim, here, "", above), above.values()


def _told(claim: Claim, here: str, what: str, above: Mapping[str, Estimate | None]) -> str:
    """Tell what was found, with differences in points."""
    listed = "; ".join(f"{name} {'-' if p is None else p}" for name, p in above.items())
    claimed = f"; claimed {claim.by:g}" if claim.by else ""
    return f"{here}; points above {what}{listed}{claimed}"


def verdict(found: Found, least: float, seeds: int = 1) -> str:
    """Return the answer to the claim that all estimates are above a value.

    If it is undecided, it keeps how many seeds might decide. An interval is taken to shrink
    with the root of their number. A claim falls with one estimate below what is claimed, and stands
    with all above it.

    >>> some, none = Estimate(3.0, 1.0, 5.0), Estimate(-1.0, -2.0, 0.0)
    >>> verdict([some], 0), verdict([some], 2), verdict([some], 6), verdict([some, none], 0)
    ('holds', 'undecided', 'does not hold', 'does not hold')
    """
    known = [e for e in found if e is not None]
    if any(e.high <= least for e in known):
        return NOT
    if found and all(e is not None and e.low > least for e in found):
        return HOLDS
    needed = [
        (e.value, seeds * ((e.high - e.low) / 2 / (e.value - least)) ** 2)
        for e in known
        if math.isfinite(e.high - e.low) and e.value != least
    ]
    if not needed:
        return UNTOLD
    below = [n for value, n in needed if value < least]
    most = min(below) if below else max(n for _, n in needed)
    return Cell(UNTOLD, {"{}": UNTOLD, TO_TELL: max(seeds + 1, math.ceil(most))})
