"""What measured rows of images say: of plain rivals, of the methods by case, of papers' claims."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from experiments.site.markdown import wrapped
from experiments.site.measured import Benchmark, Benchmarks, Row, of_page
from experiments.site.tables import (
    OWN,
    POINTS,
    Column,
    best_models,
    compared_images,
    estimate_in,
    first_number,
    side,
    verdict_of,
)
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import markdown
from vision.cli.compare import HOLDS, NOT, UNTOLD

ESTIMATE = re.compile(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]")

GOAL, MOST = 10, 100
"""Number of seeds that benchmarks should have, and a number that they never will."""


CASES = {
    "few images of few classes, each client from one domain": (
        "pfpl",
        ("pfpl_digits", "pfpl_pacs"),
    ),
    "long tails": ("gldp", ("gldp_table1",)),
    "long tails in stages": ("gldp", ("gldp_table234",)),
    "a stream of tasks on a frozen transformer": ("fedta", ("fedta_table1", "fedta_office")),
}
"""Page of results, and those of its benchmarks that are of a case, by case."""

PLAIN = {
    "training alone": ("solo", "linear_probe_local"),
    "plain averaging, its average": ("fedavg", "fedvit"),
    "plain averaging, clients' own models": ("fedavg (trained)", "fedvit (trained)"),
}
"""Rows of the plain rivals, on models that are trained whole, and on frozen features."""

FLOATS = "floats a round, up / down"


def plain_rivals() -> str:
    """Tabulate by how many points a paper's method is above plain rivals, with intervals."""
    rows = []
    for _, place, column in _measured(compared_images):
        cells = {
            head: next((_flipped(column.rows[m]) for m in names if m in column.rows), "-")
            for head, names in PLAIN.items()
        }
        rows.append({"method": f"`{column.reference}`", "on": place} | cells)
    told = (
        "By how many points the papers' methods are more accurate than plain ones, with 95 % "
        "intervals; bold where the interval excludes 0, and - where it was not run. On a frozen "
        "transformer, training alone is a logistic regression of each client, and averaging is "
        "FedViT's."
    )
    return wrapped(f"{told}\n\n{markdown(rows)}")


def cases_table() -> str:
    """Tabulate for each case which methods are better than the paper's, and which sends least."""
    return markdown(
        [
            {"your case": case, "measured on": place} | _advice(column)
            for case, place, column in _measured(best_models, "results/")
        ]
    )


def _measured(
    find: Callable[[Benchmarks], list[Column]], folder: str = ""
) -> Iterator[tuple[str, str, Column]]:
    """Yield the case of each data set, a link to its benchmark from beside `folder`, and it."""
    for case, (page, names) in CASES.items():
        for name in names:
            for column in find(of_page(page, name)):
                yield case, f"[{column.about}]({folder}{page}.md#{name})", column


def _advice(column: Column) -> Row:
    """Return what is better than the paper's method or not told apart, and what sends least."""
    reference = column.reference
    federated = {m: r for m, r in column.rows.items() if "pools" not in r and m != "chance"}
    others = {m: r for m, r in federated.items() if m != reference}
    sides = {m: side(r, POINTS) for m, r in others.items()}
    better = sorted(
        (m for m in others if sides[m] > 0), key=lambda m: -first_number(others[m][POINTS])
    )
    level = [m for m in others if not sides[m]]
    least = min([*better, *level, reference], key=lambda m: (_sent(federated[m]), m))
    return {
        "the paper's method, %": f"`{reference}` {column.rows[reference][OWN[POINTS]]}",
        "told to be better, points": "; ".join(f"`{m}` {others[m][POINTS]}" for m in better) or "-",
        "not told apart": f"{len(level)} of {len(others)}",
        "sends least of all these": f"`{least}`, {_sent(federated[least]):,.0f} floats a round",
    }


def _sent(row: Row) -> float:
    """Return the floats that a client sends in a round; 0 for what is not federated."""
    return 0.0 if row[FLOATS] == "-" else first_number(row[FLOATS])


def _flipped(row: Row) -> str:
    """Return by how much the reference is above a row.

    >>> _flipped({POINTS: "-7.4 [-14.2, -0.7]"})
    '**7.4 [0.7, 14.2]**'
    """
    found = estimate_in(row[POINTS])
    below = Estimate(-found.value, -found.high, -found.low)
    return f"**{below}**" if below.excludes(0) else f"{below}"


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
    """Return the number of a benchmark's seeds; 1 if its table does not tell.

    >>> seeds_of(Benchmark({"facts": {"seeds": "1, 2 (only 1, 3: solo)"}}, {}))
    2
    """
    every, _, _ = benchmark.about["facts"].get("seeds", "1").partition(" (only")
    return len(every.split(","))


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
        (value, seeds * ((high - low) / 2 / (value - least)) ** 2 if value != least else math.inf)
        for value, low, high in found
    ]
    below = [n for value, n in needed if value < least]
    most = min(below) if below else max(n for _, n in needed)
    return max(seeds + 1, math.ceil(most)) if math.isfinite(most) else most


def seeds_to_tell(row: Row, seeds: int) -> str:
    """Say how many seeds might answer a claim, after an answer that tells nothing."""
    if row["answer"] != UNTOLD or not ESTIMATE.search(row["here"]):
        return ""
    needed = seeds_needed(row, seeds)
    return f"; {needed} seeds might" if needed <= MOST else f"; nor would {MOST} seeds"
