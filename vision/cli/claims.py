"""Answers to a paper's claims about images, from the runs of a benchmark.

A benchmark's file states the claims:

[[claims]]
says = "GLDP is the best global model, by 4 points (Table 2)"
row = "gldp (global averaged)"
over = ["fedavg", "creff"]             # it is above each of these rows …
by = 4.0                               # … by more points than this; 0 by default

[[claims]]
says = "FedTA retains about 98 % (Figure 4)"
row = "fedta (personal)"
measure = "KR_t"                       # accuracy by default
least = 95.0                           # its measure is above this
among = ["all classes", "task classes"]

[[claims]]
says = "Accuracy rises with the imbalance"
why = "one imbalance is run"           # it cannot be told, and why
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from data_prep.base.errors import InputError, choose
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import markdown
from stforecast.federated.core.options import CheckedOptions
from vision.cli.compare import rows_by_data
from vision.comparison import ACCURACY, ModelRow, level, points_above
from vision.evaluation import MASKS, TASK
from vision.results import ImageRun

HEADING = "claim"
"""First heading of the table of answers, by which the pages of papers find it."""

HOLDS, NOT, UNTOLD = "holds", "does not hold", "cannot be told here"

NOTE = (
    f"{HOLDS}: each interval lies above the claimed value; {NOT}: one interval lies below it or "
    f"ends at it; {UNTOLD}: all other cases. Differences are in points, with 95 % intervals."
)


@dataclass(frozen=True)
class Claim(CheckedOptions):
    """A claim of a paper, in terms of the rows of a benchmark.

    Attributes:
        says: the claim in words.
        row: label of the row that it is about.
        over: labels of the rows that it is claimed to be above.
        by: number of points by which it is claimed to be above each of them.
        least: claimed least value of the measure, in per cent; instead of `over`.
        measure: measure of the rows.
        among: classes that predictions choose from.
        why: why it cannot be told, instead of a row.
    """

    says: str
    row: str = ""
    over: tuple[str, ...] = ()
    by: float = 0.0
    least: float | None = None
    measure: Literal["accuracy", "KR_t", "KR_s"] = "accuracy"
    among: tuple[str, ...] = MASKS[:1]
    why: str = ""

    def __post_init__(self) -> None:
        """Refuse a claim that can neither be tested nor says why."""
        super().__post_init__()
        if bool(self.row) == bool(self.why):
            raise InputError(
                f"claim {self.says!r} needs a row, or in why the reason for having none"
            )
        if self.row and bool(self.over) == (self.least is not None):
            raise InputError(
                f"claim {self.says!r} needs either over, the rows that it is above, or least"
            )
        if odd := set(self.among) - {*MASKS, TASK}:
            raise choose("classes", min(odd), (*MASKS, TASK))


def parse_claims(tables: Iterable[Mapping[str, Any]], labels: Collection[str]) -> tuple[Claim, ...]:
    """Parse the key `claims` of a benchmark, which name the labels of its rows."""
    known = [field.name for field in fields(Claim)]
    found = []
    for table in tables:
        if unknown := table.keys() - set(known):
            raise choose("field of a claim", min(unknown), known)
        if "says" not in table:
            raise InputError(f"a claim has no says, its words: {dict(table)}")
        claim = Claim(**table)
        if absent := {claim.row, *claim.over} - {"", *labels}:
            raise InputError(f"claim {claim.says!r}: {choose('label', min(absent), labels)}")
        found.append(claim)
    return tuple(found)


def answers(claims: Sequence[Claim], runs: Sequence[ImageRun]) -> str:
    """Answer claims about a benchmark's runs in a table, as Markdown; empty without claims."""
    if not claims:
        return ""
    rows = {data: {row.name: row for row in own} for data, own in rows_by_data(runs).items()}
    cells = [
        {HEADING: claim.says, "of": where, "here": here, "answer": told}
        for claim in claims
        for where, here, told in _answers(claim, rows)
    ]
    return f"{markdown(cells)}\n\n{NOTE}"


def _answers(
    claim: Claim, rows: Mapping[str, Mapping[str, ModelRow]]
) -> Iterable[tuple[str, str, str]]:
    """Yield data, what was found, and the answer, for all data and classes."""
    if claim.why:
        yield "-", claim.why, UNTOLD
        return
    for data, own in rows.items():
        for mask in claim.among:
            where = data if len(claim.among) == 1 else f"{data}, {mask}"
            absent = [label for label in (claim.row, *claim.over) if label not in own]
            if absent:
                yield where, f"not run: {', '.join(absent)}", UNTOLD
            else:
                yield where, *_answer(claim, own, mask)


def _answer(claim: Claim, rows: Mapping[str, ModelRow], mask: str) -> tuple[str, str]:
    """Return what was found, and the answer."""
    row = rows[claim.row]
    own = level(row, mask, claim.measure)
    unit = "" if claim.measure == ACCURACY else f"{claim.measure} "
    here = f"{claim.row}: {unit}{own}"
    if claim.least is not None:
        return here, verdict([own], claim.least)
    above = {name: points_above(row, rows[name], mask, claim.measure) for name in claim.over}
    listed = "; ".join(f"{name} {'-' if p is None else p}" for name, p in above.items())
    return f"{here}; points above {listed}", verdict(above.values(), claim.by)


def verdict(found: Collection[Estimate | None], least: float) -> str:
    """Return the answer to the claim that all estimates are above a value.

    >>> some, none = Estimate(3.0, 1.0, 5.0), Estimate(-1.0, -2.0, 0.0)
    >>> verdict([some], 0), verdict([some], 2), verdict([some], 6), verdict([some, none], 0)
    ('holds', 'cannot be told here', 'does not hold', 'does not hold')
    """
    known = [e for e in found if e is not None]
    if any(e.high <= least for e in known):
        return NOT
    return HOLDS if found and all(e is not None and e.low > least for e in found) else UNTOLD
