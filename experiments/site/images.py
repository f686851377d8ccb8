"""Tables of methods for images: against plain rivals, by case, and of papers' claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from experiments.site.measured import Benchmarks, Row, of_page
from experiments.site.tables import (
    OWN,
    POINTS,
    Column,
    best_models,
    compared_images,
    estimate_of,
    side,
)
from stforecast.bench.tables import markdown
from vision.cli.compare import HOLDS, NOT, TO_TELL, UNTOLD

GOAL, MOST = 10, 100
"""Number of seeds that benchmarks should have, and a number that they never will."""

MOST_NAMED = 3
"""Methods that are named as better in a case; the results have all."""

CASES = {
    "few images of few classes, each client from one domain": (
        "pfpl",
        ("pfpl_digits", "pfpl_pacs"),
    ),
    "long tails": ("gldp", ("gldp_table1",)),
    "long tails in stages": ("gldp", ("gldp_table234",)),
    "a stream of tasks on a frozen transformer": ("fedta", ("fedta_table1", "fedta_office")),
}
"""Page of results, and its benchmarks of a case, by case."""

PLAIN = {
    "local training": ("solo", "linear_probe_local"),
    "plain averaging, its average": ("fedavg", "fedvit"),
    "plain averaging, clients' own models": ("fedavg (trained)", "fedvit (trained)"),
}
"""Rows of the plain rivals, on models that are trained whole, and on frozen features."""

FLOATS = "floats a round, up"


def plain_rivals() -> str:
    """Tabulate by how many points a paper's method is above plain rivals, with intervals."""
    rows = []
    for _, place, column in _measured(compared_images):
        cells = {
            head: next((_flipped(column.rows[m]) for m in names if m in column.rows), "-")
            for head, names in PLAIN.items()
        }
        rows.append({"method": f"`{column.reference}`", "on": place} | cells)
    return markdown(rows)


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
    """Yield the case of each data set, a link to its benchmark in `folder`, and the data set."""
    for case, (page, names) in CASES.items():
        for name in names:
            for column in find(of_page(page, name)):
                yield case, f"[{column.about}]({folder}{page}.md#{name})", column


def _advice(column: Column) -> Row:
    """Return the methods that beat the paper's, how many are undecided, and which sends least."""
    reference = column.reference
    federated = {m: r for m, r in column.rows.items() if "pools" not in r and m != "chance"}
    others = {m: r for m, r in federated.items() if m != reference}
    sides = {m: side(r, POINTS) for m, r in others.items()}
    better = sorted((m for m in others if sides[m] > 0), key=lambda m: -others[m][POINTS])
    told = "; ".join(f"`{m}` {estimate_of(others[m], POINTS)}" for m in better[:MOST_NAMED])
    if len(better) > MOST_NAMED:
        told += f"; {len(better) - MOST_NAMED} more"
    level = [m for m in others if not sides[m]]
    least = min([*better, *level, reference], key=lambda m: (_sent(federated[m]), m))
    own = estimate_of(column.rows[reference], OWN[POINTS])
    return {
        "the paper's method, %": f"`{reference}` {own}",
        "better, points": told or "-",
        "undecided": f"{len(level)} of {len(others)}",
        "sends least of all these": f"`{least}`, {_sent(federated[least]):,.0f} floats a round",
    }


def _sent(row: Row) -> float:
    """Return the floats that a client sends in a round; 0 for methods that are not federated."""
    return float(row.get(FLOATS, 0.0))


def _flipped(row: Row) -> str:
    """Return by how much the reference is above a row.

    >>> _flipped({POINTS: -7.4, f"{POINTS}_low": -14.2, f"{POINTS}_high": -0.7})
    '**7.4 [0.7, 14.2]**'
    """
    below = estimate_of(row, POINTS).times(-1)
    return f"**{below}**" if below.excludes(0) else f"{below}"


def claims_counted(benchmarks: Benchmarks) -> dict[str, int]:
    """Count the answers to a paper's claims, and those that a few more seeds might decide."""
    rows = [row for b in benchmarks.values() for row in b.tables.get("claims", []) if "of" in row]
    counts = Counter(row["answer"] for row in rows)
    soon = sum(row.get(TO_TELL, math.inf) <= GOAL for row in rows)
    return {
        "tests": len(rows),
        "hold": counts[HOLDS],
        "fail": counts[NOT],
        "undecided": counts[UNTOLD],
        "soon": soon,
    }


def seeds_to_tell(row: Row) -> str:
    """Return how many seeds might answer a claim that is undecided, in brackets."""
    if TO_TELL not in row:
        return ""
    return f" ({row[TO_TELL]:.0f})" if row[TO_TELL] <= MOST else f" (> {MOST})"
