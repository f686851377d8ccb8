"""Tables of how the bounds of forecasts hold for every client, by data and method."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean

from experiments.site.markdown_tables import data_of, rows_of
from stforecast.bench.tables import markdown

CLIENTS = "lowest – median – highest client"
LEAST, MOST = 0.8, 0.97
"""Coverage that every client of a cell in bold has, for bounds of 90 %."""

Rows = Mapping[str, Mapping[str, str]]
"""Rows of a benchmark's table of intervals by method."""


def coverage_table(sections: Mapping[str, str]) -> str:
    """Tabulate the lowest and the highest client's coverage, and sum them up by method.

    Args:
        sections: sections of a page by the benchmark's name.
    """
    found = {n: {r["method"]: r for r in rows_of(text, CLIENTS)} for n, text in sections.items()}
    found = {name: rows for name, rows in found.items() if rows}
    methods = list(dict.fromkeys(method for rows in found.values() for method in rows))
    ranges = [
        {"data": f"[{data_of(sections[name])}](#{name})"}
        | {m: _range(rows.get(m)) for m in methods}
        for name, rows in found.items()
    ]
    sums = [
        {
            "method": m,
            "test parts with all clients between 80 and 97 %": _held(m, found),
            "width against conformal": _width(m, found),
            "furthest bound": _furthest(m, found),
        }
        for m in methods
    ]
    return "\n\n".join([markdown(ranges), markdown(sums)])


def _holds(row: Mapping[str, str]) -> bool:
    low, _, high = map(float, row[CLIENTS].split(" – "))
    return low >= LEAST and high <= MOST


def _range(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ""
    low, _, high = (f"{100 * float(value):.1f}" for value in row[CLIENTS].split(" – "))
    return f"**{low} – {high}**" if _holds(row) else f"{low} – {high}"


def _furthest(method: str, found: Mapping[str, Rows]) -> str:
    column = "furthest bound"
    ranges = [float(r[method][column]) for r in found.values() if column in r.get(method, {})]
    return f"{max(ranges):.1f}" if ranges else ""


def _held(method: str, found: Mapping[str, Rows]) -> str:
    held = [_holds(rows[method]) for rows in found.values() if method in rows]
    return f"{sum(held)} of {len(held)}"


def _width(method: str, found: Mapping[str, Rows]) -> str:
    """Return the mean width over that of the same forecaster with one width for all hours."""
    plain = f"{method.partition(',')[0]}, conformal"
    both = [rows for rows in found.values() if {method, plain} <= rows.keys()]
    if method == plain or not both:
        return ""
    ratios = [_number(rows[method]["width"]) / _number(rows[plain]["width"]) for rows in both]
    return f"{100 * (geometric_mean(ratios) - 1):+.0f} %"


def _number(cell: str) -> float:
    return float(cell.partition(" ")[0].replace(",", ""))
