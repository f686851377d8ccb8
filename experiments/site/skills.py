"""Tables on the default method: of the guide "Choose a method", and of few cells."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from experiments.site.markdown_tables import data_of, rows_of
from experiments.site.results import shrunk
from stforecast.bench.tables import markdown

HEAD = "skill in MSE, %"
"""Head of the column of skill."""

FEW_CELLS = Path(__file__).parents[2] / "docs" / "results" / "default" / "few-cells.csv"
"""What `experiments.benchmarks.cells` measured."""


class Measured(NamedTuple):
    """What a backtest measured: its data in words, skill by method, and who pools."""

    about: str
    skill: dict[str, float]
    pooled: set[str]


def few_cells_table() -> str:
    """Tabulate the errors on few cells against those of the default."""
    import pandas as pd

    from experiments.benchmarks.cells import few_table

    return few_table(pd.read_csv(FEW_CELLS))


def skill_table(sections: Mapping[str, str], page: str) -> str:
    """Tabulate the skill of each method in each benchmark "Who wins".

    Args:
        sections: sections of a page by the benchmark's name.
        page: that page, for links.
    """
    found, columns = _who_wins(sections)
    pooled = set[str]().union(*(m.pooled for m in found.values()))
    head = ["data", *(f"{c} †" if c in pooled else c for c in columns)]
    rows = [[f"[{m.about}]({page}#{name})", *_cells(m, columns)] for name, m in found.items()]
    return markdown([dict(zip(head, row, strict=True)) for row in rows])


def skill_figure(sections: Mapping[str, str]) -> bytes:
    """Draw the numbers of `skill_table` but the zeros of seasonal naive, as a PNG."""
    import pandas as pd

    from stforecast.bench.drawing import save_figure
    from stforecast.plots.heat_map import skill_map

    found, columns = _who_wins(sections)
    table = pd.DataFrame([m.skill for m in found.values()], [m.about for m in found.values()])
    with tempfile.TemporaryDirectory() as folder:
        figure = skill_map(table[columns].loc[:, table.any()], "MSE", digits=0)
        return shrunk(save_figure(figure, Path(folder) / "skill.png"))


def _who_wins(sections: Mapping[str, str]) -> tuple[dict[str, Measured], list[str]]:
    """Return what each benchmark "Who wins" measured, and methods from the best to the worst."""
    found = {n: m for n, text in sections.items() if n.startswith("who_wins") and (m := read(text))}
    methods = {method for m in found.values() for method in m.skill}

    def mean(method: str) -> float:
        known = [m.skill[method] for m in found.values() if method in m.skill]
        return sum(known) / len(known)

    return found, sorted(methods, key=mean, reverse=True)


def read(text: str) -> Measured | None:
    """Return what the section of a backtest says, None if it has no table of skill."""
    about = data_of(text)
    rows = rows_of(text, HEAD)
    if not about or not rows:
        return None
    skill = {row["method"]: float(row[HEAD].split()[0]) for row in rows}
    pooled = set(re.findall(r"^\| (.+?) † +\|", text, re.M))
    return Measured(about, skill, pooled)


def _cells(measured: Measured, columns: list[str]) -> list[str]:
    best = f"{max(measured.skill.values()):.0f}"
    found = [f"{measured.skill[c]:.0f}" if c in measured.skill else "" for c in columns]
    return [f"**{cell}**" if cell == best else cell for cell in found]
