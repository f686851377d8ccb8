"""The answer and the table of each page of `docs/results/`, from its benchmarks.

A table has at most 15 rows and is about errors or points against a reference method, with 95 %
intervals where there are some. The whole tables are in the page's folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from statistics import mean
from typing import NamedTuple

from experiments.benchmarks.cells import above_by_data
from experiments.site.measured import Benchmarks, Row, described
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import Cell, markdown, marked, mean_of
from stforecast.comparison.table import AGAINST

MOST_ROWS = 15

SIGNIFICANT = (
    "Two methods differ significantly if the 95 % interval excludes 0 and p (in the whole table) "
    "is at most 0.05."
)
MEASURES = {"MSE": "MSE", "last round": "accuracy in %"}
"""Columns of benchmarks of forecasts and of images, and their names on the page."""

POINTS = "all classes, against reference"

OWN = {AGAINST: "MSE [95 %]", POINTS: "all classes, % [95 %]"}
UNITS = {AGAINST: "% in MSE", POINTS: "points"}
"""Column of a method's own value, and unit, of each kind of difference."""

JUDGED = re.compile(r" \((?:[a-z, ]*(?:trained|personal|nearest|local|global|averaged))\)$")
"""Which model of a method for images a row is about."""


class Column(NamedTuple):
    """A data set of a benchmark: its description, and its rows by method."""

    about: str
    rows: dict[str, Row]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.about.partition(",")[0]

    @property
    def reference(self) -> str:
        """Name of the row that the others are compared with."""
        return next(row["reference"] for row in self.rows.values() if "reference" in row)

    def mse(self, method: str) -> float:
        """Return the MSE of a method."""
        return float(self.rows[method]["MSE"])

    def only(self, keep: Callable[[str, Row], object]) -> Column:
        """Return the rows that `keep` is true of, by name and row."""
        return self._replace(rows={m: row for m, row in self.rows.items() if keep(m, row)})


def columns_of(benchmarks: Benchmarks) -> list[Column]:
    """Return every data set of every benchmark."""
    columns = []
    for benchmark in benchmarks.values():
        rows = benchmark.tables.get("methods", [])
        for name, told in benchmark.about["data"].items():
            own = {row["method"]: row for row in rows if row.get("data") == name}
            columns += [Column(described(name, told), own)] if own else []
    return columns


def title_of(name: str, benchmarks: Benchmarks) -> str:
    """Return the title of a benchmark, or its data if another one has the same title."""
    about = benchmarks[name].about
    shared = [b for b in benchmarks.values() if b.about["title"] == about["title"]]
    every = starmap(described, about["data"].items())
    return "; ".join(every) if len(shared) > 1 else about["title"]


# Tables of methods by data.


def differences(benchmarks: Benchmarks, ablations: bool = False, shown: Sequence[str] = ()) -> str:
    """Tabulate by how many per cent each method's error is above the reference's.

    With `ablations` it shows the changes to the reference, not the other methods. The rows `shown`
    are not left out.
    """
    told = (
        "How many per cent higher the MSE is than the reference's, with 95 % intervals; "
        f"significant differences are bold. The reference shows its own MSE. {SIGNIFICANT}"
    )
    columns = _compared(benchmarks, ablations)
    return f"{told}\n\n{_pivot(columns, AGAINST, shown)}"


def _compared(benchmarks: Benchmarks, ablations: bool = False) -> list[Column]:
    """Return the rows of forecasts that are compared with a reference, and the reference."""

    def fits(_: str, row: Row) -> bool:
        if AGAINST not in row:
            return row.get("reference") == row["method"]
        return ("ablation" in row) == ablations

    columns = [column.only(fits) for column in columns_of(benchmarks)]
    return [column for column in columns if len(column.rows) > 1]


def verdicts(benchmarks: Benchmarks) -> str:
    """Tell how many methods have a higher error than the reference, and which have a lower one."""
    return "\n".join(
        verdict_of(c, AGAINST, "has a lower error than") for c in _compared(benchmarks)
    )


def verdict_of(column: Column, name: str, better: str) -> str:
    """Tell how many methods the reference is better than, and which are better or nearest.

    `name` is the column of the difference, `better` are words for "is better than".
    """
    rows = column.rows
    sign = -1 if name == POINTS else 1
    others = {m: row for m, row in rows.items() if name in row}
    others = dict(sorted(others.items(), key=lambda item: sign * item[1][name]))
    sides = {m: sign * side(row, name) for m, row in others.items()}
    told = {m: f"{m} ({estimate_of(row, name)} {UNITS[name]})" for m, row in others.items()}
    won = sum(s > 0 for s in sides.values())
    lost = "; ".join(told[m] for m in others if sides[m] < 0)
    first = next(iter(told.values()))
    end = f"Better: {lost}" if lost else f"None is significantly better; next is {first}"
    head = f"- {column.about}: `{column.reference}` {better} {won} of {len(others)} other methods"
    return f"{head}. {end}."


def points(benchmarks: Benchmarks) -> str:
    """Tabulate points of accuracy above the reference; of each method, its best model."""
    told = (
        "Points of test accuracy above the reference, with 95 % intervals; bold where the interval "
        "excludes 0. The reference shows its own accuracy. Predictions choose from all classes. Of "
        "each method, the row is the model that is best on average."
    )
    return f"{told}\n\n{_pivot(best_models(benchmarks), POINTS)}"


def compared_images(benchmarks: Benchmarks) -> list[Column]:
    """Return the rows of methods for images that are compared with a reference."""
    return [c.only(lambda _, row: "reference" in row) for c in columns_of(benchmarks)]


def best_models(benchmarks: Benchmarks) -> list[Column]:
    """Return, of each method for images, the rows of its best model."""
    columns = compared_images(benchmarks)
    methods = _ordered(columns, POINTS)
    references = {column.reference for column in columns}
    best: dict[str, str] = {}
    for method in sorted(methods, key=lambda m: m not in references):
        best.setdefault(JUDGED.sub("", method), method)
    return [column.only(lambda method, _: method in best.values()) for column in columns]


def _pivot(columns: Sequence[Column], name: str, shown: Sequence[str] = ()) -> str:
    """Tabulate differences, which the column `name` has, by method and data, the best first.

    References, and the methods `shown`, are not left out.
    """
    methods = _ordered(columns, name)
    references = {column.reference for column in columns}
    kept = (references | {*shown}) & set(methods)
    room = MOST_ROWS - len(kept)
    kept |= set([m for m in methods if m not in kept][:room])
    pools = {m for c in columns for m, row in c.rows.items() if "pools" in row}
    rows = [
        {"method": marked(m, pools=m in pools)}
        | {c.about: _difference(c.rows[m], name) if m in c.rows else "" for c in columns}
        for m in methods
        if m in kept
    ]
    notes = ["† trained on the data of all clients together."] if pools & kept else []
    if len(methods) > len(kept):
        best = f"the best{' and some others' if shown else ''}"
        notes.append(f"{len(kept)} of {len(methods)} rows, {best}.")
    return "\n\n".join([markdown(rows), *([" ".join(notes)] if notes else [])])


def _ordered(columns: Sequence[Column], name: str) -> list[str]:
    """Return the methods by their mean difference from the reference, the best first."""
    found: dict[str, list[float]] = {}
    for column in columns:
        for method, row in column.rows.items():
            found.setdefault(method, []).append(row.get(name, 0.0))
    methods = sorted(found, key=lambda method: mean(found[method]))
    return methods[::-1] if name == POINTS else methods


def _difference(row: Row, name: str) -> str:
    """Return a row's difference from the reference; of the reference, its own value."""
    if name not in row:
        return f"{estimate_of(row, OWN[name])}"
    shown = estimate_of(row, name)
    return f"**{shown}**" if side(row, name) else f"{shown}"


def side(row: Row, name: str = AGAINST) -> int:
    """Return 1 if a row is significantly above the reference, -1 if below it, else 0."""
    above = estimate_of(row, name)
    if not above.excludes(0) or (name == AGAINST and row.get("p", 0.0) > 0.05):
        return 0
    return 1 if above.low > 0 else -1


def estimate_of(row: Row, name: str) -> Estimate:
    """Return the estimate in a column, NaN if a row has none.

    >>> str(estimate_of({"p": 0.1, "p_low": 0.0, "p_high": 0.2}, "p")), str(estimate_of({}, "p"))
    ('0.10 [0.00, 0.20]', 'nan')
    """
    return Estimate(*(row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high")))


def spread_in(row: Row, name: str) -> Cell:
    """Return the mean in a column and, over several seeds, its standard deviation."""
    return mean_of(row[name], row.get(f"{name}_sd"))


# What districts and operators gain.


def worth(benchmarks: Benchmarks) -> str:
    """Tabulate the gain from federation, as a share of the gain from pooling."""
    rows = [
        {"data": row["data"].partition(",")[0]}
        | {
            head: f"{estimate_of(row, head)}" if f"{head}_low" in row else f"{row[head]}"
            for head in row
            if head not in ("data", "roads cut, %") and not head.endswith(("_low", "_high"))
        }
        for benchmark in benchmarks.values()
        for row in benchmark.tables["clients"]
    ]
    told = (
        "How many per cent higher the MSE is, with 95 % intervals. The gap is 100 % closed if the "
        "error is as low as with pooled data, and 0 % if it is as high as with local training."
    )
    return f"{told}\n\n{markdown(rows)}"


# Bounds.

LOWEST, HIGHEST = "lowest client", "highest client"
LEAST, MOST = 0.8, 0.97
"""Coverage that every client has in a cell in bold, for bounds of 90 %."""


def coverage(benchmarks: Benchmarks) -> str:
    """Tabulate the lowest and the highest client's coverage by data and method."""
    columns = columns_of(benchmarks)
    methods = dict.fromkeys(m for c in columns for m in c.rows)
    rows = []
    for about, found in columns:
        data, *_, ahead = about.split(", ")
        cells = {m: _range(found[m]) if m in found else "" for m in methods}
        furthest = max(row["furthest bound"] for row in found.values())
        row = {"data": data, "steps": ahead.partition(" ")[0], **cells}
        rows.append(row | {"furthest": f"{furthest:.1f}"})
    told = (
        "Lowest and highest coverage of a client in %, over all steps ahead of the test part; bold "
        "where every client has between 80 and 97 %. Last, the furthest bound of all methods."
    )
    return f"{told}\n\n{markdown(rows)}"


def coverage_answer(benchmarks: Benchmarks) -> str:
    """Tell of each method how often its bounds hold, how wide they are and how far they go."""
    columns = columns_of(benchmarks)
    methods = dict.fromkeys(m for c in columns for m in c.rows)
    items = [f"- {_told_of(method, columns)}" for method in methods]
    none = [c.about for c in columns if not any(map(_holds, c.rows.values()))]
    if none:
        items.append(f"- In {' and in '.join(none)}, no method keeps every client in this range.")
    return "\n".join(items)


def _told_of(method: str, columns: Sequence[Column]) -> str:
    rows = {about: found[method] for about, found in columns if method in found}
    held = sum(map(_holds, rows.values()))
    furthest, place = max((row["furthest bound"], about) for about, row in rows.items())
    sides = " and ".join(f"{_shares(rows, side)} % {side}" for side in ("below", "above"))
    return (
        f"**{method}**: every client between 80 and 97 % in {held} of {len(rows)} test parts; of "
        f"all targets of a part, {sides} their bounds; the furthest bound is {furthest:.1f} ranges "
        f"away ({place}){_width(method, columns)}."
    )


def _shares(rows: Mapping[str, Row], side: str) -> str:
    """Return the lowest and the highest share of targets on a side of their bounds, in %."""
    shares = [100 * row[f"{side} bounds"] for row in rows.values()]
    return f"{min(shares):.1f} to {max(shares):.1f}"


def _holds(row: Row) -> bool:
    return bool(row[LOWEST] >= LEAST and row[HIGHEST] <= MOST)


def _range(row: Row) -> str:
    told = f"{100 * row[LOWEST]:.1f}–{100 * row[HIGHEST]:.1f}"
    return f"**{told}**" if _holds(row) else told


def _width(method: str, columns: Sequence[Column]) -> str:
    """Tell the mean width against the same forecaster with one width for all hours."""
    plain = f"{method.partition(',')[0]}, conformal"
    both = [c for c in columns if {method, plain} <= c.rows.keys()]
    if method == plain or not both:
        return ""
    widths = [[c.rows[m]["width"] for m in (method, plain)] for c in both]
    above = above_by_data([math.log(own / other) for own, other in widths], [c.data for c in both])
    return f"; the mean width differs by {above} % from `{plain}`"


# Sentences.


def said(benchmarks: Benchmarks, words: str = "") -> str:
    """List what the numbers of benchmarks show, in sentences with these words, with links."""
    lists = []
    for name, benchmark in benchmarks.items():
        items = [f"- {text}" for text in benchmark.about["said"] if words in text]
        if items:
            lists += [f"**[{title_of(name, benchmarks)}](#{name})**", "\n".join(items)]
    return "\n\n".join(lists)


def changes(benchmarks: Benchmarks) -> str:
    """Tabulate what mixed precision changes for each method."""
    return f"Mean and standard deviation over seeds.\n\n{markdown(_changes(benchmarks))}"


def changes_answer(benchmarks: Benchmarks) -> str:
    """Tell how many of the changes of mixed precision are below what the seeds change."""
    found = [(row["float32"].kept, row["bf16"].kept) for row in _changes(benchmarks)]
    small = sum(abs(a["{}"] - b["{}"]) <= max(a["{}_sd"], b["{}_sd"]) for a, b in found)
    return (
        f"**In {small} of {len(found)} rows, the means with and without it differ by no more than "
        "the larger of their standard deviations over seeds.**"
    )


def _changes(benchmarks: Benchmarks) -> list[Row]:
    """Return what each method has without and with mixed precision."""
    return [
        {"data": about, "method": method, "measure": measure}
        | {"float32": spread_in(rows[method], name)}
        | {"bf16": spread_in(rows[f"{method}, bf16"], name)}
        for about, rows in columns_of(benchmarks)
        for method in rows
        if f"{method}, bf16" in rows
        for name, measure in MEASURES.items()
        if name in rows[method]
    ]
