"""Answers to the claims of papers on images: their number, and how many seeds might tell more."""

from __future__ import annotations

import math
import re
from collections import Counter

from experiments.site.measured import Benchmark, Benchmarks, Row
from experiments.site.tables import POINTS, best_models, verdict_of
from vision.cli.compare import HOLDS, NOT, UNTOLD

ESTIMATE = re.compile(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")

GOAL, MOST = 10, 100
"""Number of seeds that benchmarks should have, and a number that they never will."""


def answers(benchmarks: Benchmarks) -> str:
    """Count the answers to a paper's claims, and how many methods the paper's one is above."""
    needed = {
        (name, i): seeds_needed(row, seeds_of(benchmark))
        for name, benchmark in benchmarks.items()
        for i, row in enumerate(benchmark.tables.get("claims", []))
    }
    rows = [row for b in benchmarks.values() for row in b.tables.get("claims", [])]
    told = Counter(row["answer"] for row in rows if row["of"] != "-")
    soon = sum(n <= GOAL for n in needed.values())
    count = (
        f"**Of {told.total()} tests of the paper's claims, {told[HOLDS]} hold, {told[NOT]} do not "
        f"hold, and {told[UNTOLD]} cannot be told here.** With {GOAL} seeds, {soon} of these might."
    )
    items = [verdict_of(c, POINTS, "is more accurate than") for c in best_models(benchmarks)]
    return "\n\n".join([count, "\n".join(items)])


def seeds_of(benchmark: Benchmark) -> int:
    """Return the number of a benchmark's seeds; 1 if its table does not tell."""
    return len(benchmark.about["facts"].get("seeds", "1").split(","))


def seeds_needed(row: Row, seeds: int) -> float:
    """Return how many seeds might answer a claim that those of its benchmark could not.

    An interval is taken to shrink with the root of the number of seeds. A claim falls with one
    estimate below what is claimed, and stands with all above it. Infinite for other answers.

    >>> seeds_needed({"here": "a: 60 [50, 70]; points above b 2 [-2, 6]", "answer": UNTOLD}, 3)
    12
    """
    compared, _, claimed = row["here"].partition("; claimed ")
    own, _, above = compared.partition("; points above ")
    found = [tuple(map(float, texts)) for texts in ESTIMATE.findall(above or own)]
    if row["answer"] != UNTOLD or not found:
        return math.inf
    least = float(claimed or 0)
    needed = [
        (value < least, seeds * ((high - low) / 2 / abs(value - least)) ** 2)
        if value != least
        else (False, math.inf)
        for value, low, high in found
    ]
    below = [n for is_below, n in needed if is_below]
    most = min(below) if below else max(n for _, n in needed)
    return max(seeds + 1, math.ceil(most)) if math.isfinite(most) else most


def seeds_to_tell(row: Row, seeds: int) -> str:
    """Say how many seeds might answer a claim, after an answer that tells nothing."""
    if row["answer"] != UNTOLD or not ESTIMATE.search(row["here"]):
        return ""
    needed = seeds_needed(row, seeds)
    return f"; {needed} seeds might" if needed <= MOST else f"; nor would {MOST} seeds"
