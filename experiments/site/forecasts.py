"""Tables of methods for forecasts: against others in many test parts, with few cells, and skill."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.benchmarks.cells import above_by_data, above_default
from experiments.site import tables
from experiments.site.images import FLOATS
from experiments.site.markdown import as_png
from experiments.site.measured import RESULTS, Benchmarks, Row
from experiments.site.tables import AGAINST, Column, columns_of, side
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import SMALL
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import markdown, marked

SKILL = "skill in MSE, %"

SHORT_HISTORIES = RESULTS / "default" / "short-histories.csv"
"""What `short_histories` of `experiments.benchmarks.cells` measured."""

OURS, FIGURE_WIDTH = COLORS[0], 6.0
"""Colour of the default method, and inches of a figure that is read on a screen."""


class Record(NamedTuple):
    """How many per cent a method's MSE is above the reference's, and in how many test parts."""

    above: Estimate
    lower: int
    level: int
    higher: int
    pools: bool


def standing(benchmarks: Benchmarks) -> str:
    """Tabulate how often each method's error is lower or higher than the reference's."""
    reference = columns_of(benchmarks)[0].reference
    records = records_of(benchmarks)
    rows = [
        {
            "method": marked(method, pools=record.pools),
            f"MSE above `{reference}`'s, mean [95 %]": f"{record.above} %",
            "lower": f"{record.lower}",
            "not significant": f"{record.level}",
            "higher": f"{record.higher}",
        }
        for method, record in records.items()
    ]
    return markdown(rows)


def against_best(columns: Sequence[Column]) -> tuple[Estimate, float]:
    """Return by how many per cent the reference is above the best other row: mean and most."""
    logs = [
        math.log(c.mse(c.reference) / min(c.mse(m) for m in c.rows if m != c.reference))
        for c in columns
    ]
    return above_by_data(logs, [c.data for c in columns]), 100 * math.expm1(max(logs))


def records_of(benchmarks: Benchmarks) -> dict[str, Record]:
    """Return how each method stands against the reference, from the best."""
    found: dict[str, Record] = {}
    columns = columns_of(benchmarks)
    for method in dict.fromkeys(m for c in columns for m in c.rows):
        own = [c for c in columns if AGAINST in c.rows.get(method, {})]
        if not own:
            continue
        logs = [math.log(c.mse(method) / c.mse(c.reference)) for c in own]
        sides = Counter(side(c.rows[method]) for c in own)
        found[method] = Record(
            above_by_data(logs, [c.data for c in own]),
            sides[-1],
            sides[0],
            sides[1],
            any("pools" in c.rows[method] for c in own),
        )
    return dict(sorted(found.items(), key=lambda item: item[1].above.value))


def few_cells_table() -> str:
    """Tabulate by how many per cent other choices are above the default with a single cell."""
    found = above_default(pd.read_csv(RESULTS / "default" / "few-cells.csv"))
    rows: dict[str, dict[str, str]] = {}
    for (method, ahead), above in found.items():
        rows.setdefault(method, {"method": method})[f"{ahead} ahead, %"] = str(above["1 cell"])
    return markdown(list(rows.values()))


def above_its_experts() -> pd.Series:
    """Return by how many per cent the default is above its best single expert, by test part."""
    rows = pd.read_csv(SHORT_HISTORIES)
    errors = rows.pivot(index=["data", "days", "horizon"], columns="method", values="mse")
    return 100 * (errors["fedlean"] / errors.drop(columns="fedlean").min(axis=1) - 1)


# Compared with all federated methods.

PLACES: dict[str, tuple[float, float, str]] = {
    "fedlean": (6, -3, "left"),
    "fedlean, inputs of fuels": (-6, -3, "right"),
    "protoridge": (-2, 6, "left"),
    "fedtrees": (5, 3, "left"),
    "fedavg linear, same inputs": (-6, -3, "right"),
    "fedavg": (-6, -5, "right"),
    "fuels": (-6, -1, "right"),
    "fedproto": (-6, -5, "right"),
    "fedpm, inputs and network of fuels": (0, 6, "center"),
    "solo": (0, 6, "center"),
}
"""Named points of the figure, and where the names stand: offset in points, and alignment."""


def tuned(benchmarks: Benchmarks) -> dict[str, tuple[Row, Row]]:
    """Return the rows of each method with default and with tuned settings, the best tuned first."""
    defaults, *_ = columns = columns_of(benchmarks)
    rows = {m: column.rows[m] for column in columns for m in column.rows} | defaults.rows
    pairs = {m: (rows[m], rows[f"{m}, tuned"]) for m in rows if f"{m}, tuned" in rows}
    return dict(sorted(pairs.items(), key=lambda pair: pair[1][1]["MSE"]))


def tuned_table(benchmarks: Benchmarks) -> str:
    """Tabulate the MSE of the best twelve methods with default and with tuned settings."""
    return markdown(
        [
            {
                "method": method,
                "MSE by default": f"{tables.spread_in(default, 'MSE')}",
                "MSE, tuned": f"{tables.spread_in(best, 'MSE')}",
            }
            for method, (default, best) in list(tuned(benchmarks).items())[:12]
        ]
    )


def sent_in_a_round(column: Column) -> dict[str, float]:
    """Return the most floats that a client sends in a round, of each method that trains.

    Of a method with several models, this is the one that predicts.
    """
    return {
        m: row[FLOATS]
        for m, row in column.rows.items()
        if FLOATS in row and not tables.JUDGED.search(m)
    }


def floats_figure(benchmarks: Benchmarks) -> bytes:
    """Draw the MSE of methods that train against the floats that a client sends, as a PNG."""
    from stforecast.plots.comparisons import front_panel

    (column,) = columns_of(benchmarks)
    points = {m: (n, column.mse(m)) for m, n in sent_in_a_round(column).items()}
    fig, ax = front_panel([*points.values()], "test MSE of z-scores", FIGURE_WIDTH)
    for name, point in points.items():
        named = name in PLACES
        color = OURS if name.startswith("fedlean") else "0.2" if named else "0.7"
        ax.plot(*point, "o", color=color, markersize=4, zorder=2 + named)
        if named:
            right, up, align = PLACES[name]
            style: dict[str, Any] = {"ha": align, "fontsize": SMALL, "color": color}
            ax.annotate(name, point, (right, up), textcoords="offset points", **style)
    return as_png(fig)


# The guide.


def skill_table(benchmarks: Benchmarks, page: str) -> str:
    """Tabulate the skill of each method by data, with links to the `page` of the benchmarks."""
    pooled = {m for c in columns_of(benchmarks) for m, row in c.rows.items() if "pools" in row}
    rows = []
    for name, (about, skill) in zip(benchmarks, skills(benchmarks).iterrows(), strict=True):
        cells = {marked(str(m), pools=m in pooled): f"{value:z.0f}" for m, value in skill.items()}
        best = max(cells.values(), key=int)
        row = {head: f"**{cell}**" if cell == best else cell for head, cell in cells.items()}
        rows.append({"data": f"[{about}]({page}#{name})", **row})
    return markdown(rows)


def skill_figure(benchmarks: Benchmarks) -> bytes:
    """Draw the numbers of `skill_table` but the zeros of seasonal naive, as a PNG."""
    from stforecast.plots.comparisons import skill_map

    table = skills(benchmarks)
    return as_png(skill_map(table.loc[:, table.any()], "MSE", digits=0))


def skills(benchmarks: Benchmarks) -> pd.DataFrame:
    """Return the skill of the methods of all benchmarks by data, from the best to the worst."""
    columns = columns_of(benchmarks)
    found = [{m: row.get(SKILL) for m, row in c.rows.items()} for c in columns]
    table = pd.DataFrame(found, [c.about for c in columns]).dropna(axis=1)
    return table[table.sum().sort_values(ascending=False).index]
