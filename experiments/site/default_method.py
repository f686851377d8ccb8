"""How the default method stands against others: its page, few cells, the guide's table of skill."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from data_prep.base.errors import counted
from experiments.benchmarks.cells import above_by_data, above_default
from experiments.site.markdown import as_png
from experiments.site.measured import Benchmarks
from experiments.site.tables import AGAINST, TOLD_APART, Column, columns_of, first_number, side
from stforecast.bench.tables import markdown

FEW_CELLS = Path(__file__).parents[2] / "docs" / "results" / "default" / "few-cells.csv"
"""What `experiments.benchmarks.cells` measured."""

SKILL = "skill in MSE, %"


class Record(NamedTuple):
    """How many per cent a method's MSE is above the reference's, and in how many test parts.

    The mean is that of the logarithms of the ratio.
    """

    above: str
    mean: float
    lower: int
    level: int
    higher: int
    pools: bool


def standing(benchmarks: Benchmarks) -> str:
    """Tabulate how often each method's error is lower or higher than the default's."""
    rows = [
        {
            "method": f"{method} †" if record.pools else method,
            "MSE above `fedlean`'s, mean [95 %]": f"{record.above} %",
            "lower": f"{record.lower}",
            "not told apart": f"{record.level}",
            "higher": f"{record.higher}",
        }
        for method, record in _records(benchmarks).items()
    ]
    told = (
        f"Other methods against `fedlean` in {_parts(benchmarks)}: the geometric mean of their MSE "
        f"over data sets, and in how many test parts it is lower or higher. {TOLD_APART}"
    )
    return f"{told}\n\n{markdown(rows)}\n\n† trained on the data of all clients together."


def standing_answer(benchmarks: Benchmarks) -> str:
    """Tell how often other methods have a lower error than the default."""
    records = _records(benchmarks)
    own = sum(r.lower for r in records.values() if not r.pools)
    near = min((m for m in records if not records[m].pools), key=lambda m: records[m].mean)
    n = len(columns_of(benchmarks))
    pooled = "".join(
        f" `{m}`, which pools all records, has a lower error in {r.lower} and a higher one in "
        f"{r.higher}; its mean MSE is {r.above} % higher."
        for m, r in records.items()
        if r.pools
    )
    times = "no test part" if own == 0 else counted(own, "test part")
    return (
        f"**A method that does not pool records has a lower error than `fedlean` in {times} of "
        f"{n}.** The mean MSE of the nearest, `{near}`, is {records[near].above} % higher.{pooled}"
    )


def _parts(benchmarks: Benchmarks) -> str:
    columns = columns_of(benchmarks)
    data = {column.about.partition(",")[0] for column in columns}
    return f"{counted(len(columns), 'test part')} of {len(data)} data sets"


def _records(benchmarks: Benchmarks) -> dict[str, Record]:
    """Return how each method stands against the reference, from the best."""
    found: dict[str, Record] = {}
    columns = columns_of(benchmarks)

    def ratio(column: Column, method: str) -> float:
        reference = next(row["reference"] for row in column.rows.values() if "reference" in row)
        own, other = (first_number(column.rows[m]["MSE"]) for m in (method, reference))
        return own / other

    for method in dict.fromkeys(m for c in columns for m in c.rows):
        own = [c for c in columns if c.rows.get(method, {}).get(AGAINST, "-") != "-"]
        if not own:
            continue
        logs = pd.Series(
            [math.log(ratio(c, method)) for c in own],
            pd.Index([c.about.partition(",")[0] for c in own], name="data"),
        )
        sides = Counter(side(c.rows[method]) for c in own)
        found[method] = Record(
            above_by_data(logs),
            logs.groupby("data").mean().mean(),
            sides[-1],
            sides[0],
            sides[1],
            any("pools" in c.rows[method] for c in own),
        )
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


def few_cells_list() -> str:
    """Tell how far other choices are above the default with a single cell."""
    return "\n".join(
        f"- **{name}**: {row['one step, 1 cell']} % one step ahead, {row['a day, 1 cell']} % a day "
        "ahead"
        for name, row in above_default(pd.read_csv(FEW_CELLS)).items()
    )


# The guide.


def skill_table(benchmarks: Benchmarks, page: str) -> str:
    """Tabulate the skill of each method by data, with links to the `page` of the benchmarks."""
    methods = _by_skill(benchmarks)
    pooled = {m for c in columns_of(benchmarks) for m, row in c.rows.items() if "pools" in row}
    rows = []
    for name, benchmark in benchmarks.items():
        (column,) = columns_of({name: benchmark})
        skill = {m: f"{first_number(column.rows[m][SKILL]):.0f}" for m in methods}
        best = max(map(int, skill.values()))
        rows.append(
            {"data": f"[{column.about}]({page}#{name})"}
            | {
                f"{m} †" if m in pooled else m: f"**{cell}**" if int(cell) == best else cell
                for m, cell in skill.items()
            }
        )
    return markdown(rows)


def skill_figure(benchmarks: Benchmarks) -> bytes:
    """Draw the numbers of `skill_table` but the zeros of seasonal naive, as a PNG."""
    from stforecast.plots.heat_map import skill_map

    columns = columns_of(benchmarks)
    table = pd.DataFrame(
        [{m: first_number(c.rows[m][SKILL]) for m in _by_skill(benchmarks)} for c in columns],
        [column.about for column in columns],
    )
    return as_png(skill_map(table.loc[:, table.any()], "MSE", digits=0))


def _by_skill(benchmarks: Benchmarks) -> list[str]:
    """Return the methods of all benchmarks from the best to the worst."""
    columns = columns_of(benchmarks)
    methods = set.intersection(*(set(column.rows) for column in columns))

    def skill(method: str) -> float:
        return sum(first_number(column.rows[method][SKILL]) for column in columns)

    return sorted(methods, key=skill, reverse=True)
