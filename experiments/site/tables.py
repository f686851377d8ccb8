"""The tables of the pages of `docs/results/`, from their benchmarks.

A table has at most 15 rows and is about errors or points against a reference method, with 95 %
intervals where there are some. The whole tables are in the page's folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

from experiments.benchmarks.cells import above_by_data
from experiments.site.measured import Benchmarks, Row, described
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import Cell, markdown, marked, mean_of
from stforecast.comparison.table import AGAINST

MOST_ROWS = 15

POINTS = "all classes, against reference"

OWN = {AGAINST: "MSE [95 %]", POINTS: "all classes, % [95 %]"}
"""Column of a method's own value, of each kind of difference."""

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


# Tables of methods by data.


def differences(
    benchmarks: Benchmarks, *, ablations: bool = False, shown: Sequence[str] = ()
) -> str:
    """Tabulate by how many per cent each method's error is above the reference's.

    With `ablations` it shows the changes to the reference, not the other methods. The rows `shown`
    are not left out.
    """
    return _pivot(compared_forecasts(benchmarks, ablations=ablations), AGAINST, shown)


def compared_forecasts(benchmarks: Benchmarks, *, ablations: bool = False) -> list[Column]:
    """Return the rows of forecasts that are compared with a reference, and the reference."""

    def fits(_: str, row: Row) -> bool:
        if AGAINST not in row:
            return row.get("reference") == row["method"]
        return ("ablation" in row) == ablations

    columns = [column.only(fits) for column in columns_of(benchmarks)]
    return [column for column in columns if len(column.rows) > 1]


def points(benchmarks: Benchmarks) -> str:
    """Tabulate points of accuracy above the reference; of each method, its best model."""
    return _pivot(best_models(benchmarks), POINTS)


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
    return markdown(rows)


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


def worth(benchmarks: Benchmarks, shown: tuple[str, ...]) -> str:
    """Tabulate the gain from federation; `shown` are the ends of the names of columns, in order."""

    def cell(row: Row, head: str) -> str:
        if f"{head}_low" in row:
            return f"{estimate_of(row, head)}"
        value = row[head]
        return f"{value:.2g}" if isinstance(value, float) else str(value).partition(",")[0]

    rows = []
    for row in (row for found in benchmarks.values() for row in found.tables["clients"]):
        heads = [head for end in shown for head in row if head.endswith(end)]
        rows.append({head: cell(row, head) for head in heads})
    return markdown(rows)


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
    return markdown(rows)


def bounds(benchmarks: Benchmarks) -> str:
    """Tabulate how often each method's bounds hold, how wide they are and how far they go."""
    columns = columns_of(benchmarks)
    methods = dict.fromkeys(m for c in columns for m in c.rows)
    return markdown([_bounds(method, columns) for method in methods])


def _bounds(method: str, columns: Sequence[Column]) -> Row:
    rows = [found[method] for _, found in columns if method in found]
    plain = f"{method.partition(',')[0]}, conformal"
    both = [c for c in columns if {method, plain} <= c.rows.keys()]
    widths = [[c.rows[m]["width"] for m in (method, plain)] for c in both]
    above = above_by_data([math.log(own / other) for own, other in widths], [c.data for c in both])
    return {
        "method": method,
        "all clients in range": f"{sum(map(holds, rows))} of {len(rows)}",
        "targets below, %": _shares(rows, "below"),
        "targets above, %": _shares(rows, "above"),
        "furthest bound": f"{max(row['furthest bound'] for row in rows):.1f}",
        "width against conformal, %": "-" if method == plain else f"{above}",
    }


def _shares(rows: Sequence[Row], side: str) -> str:
    """Return the lowest and the highest share of targets on a side of their bounds, in %."""
    shares = [100 * row[f"{side} bounds"] for row in rows]
    return f"{min(shares):.1f} to {max(shares):.1f}"


def holds(row: Row) -> bool:
    """Return whether every client's coverage is in the range."""
    return bool(row[LOWEST] >= LEAST and row[HIGHEST] <= MOST)


def _range(row: Row) -> str:
    ends = f"{100 * row[LOWEST]:.1f}–{100 * row[HIGHEST]:.1f}"
    return f"**{ends}**" if holds(row) else ends


# Mixed precision.


def changes(benchmarks: Benchmarks) -> list[Row]:
    """Return the errors or accuracies of each method without and with mixed precision."""
    measures = {"MSE": "MSE", "last round": "accuracy in %"}
    return [
        {"data": about, "method": method, "measure": measure}
        | {"float32": spread_in(rows[method], name)}
        | {"bf16": spread_in(rows[f"{method}, bf16"], name)}
        for about, rows in columns_of(benchmarks)
        for method in rows
        if f"{method}, bf16" in rows
        for name, measure in measures.items()
        if name in rows[method]
    ]
