"""The table of the guide "Choose a method": skill by method and data, out of `docs/results.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

SKILL = "skill, %"


class Measured(NamedTuple):
    """What a backtest measured: its data in words, skill by method, and who pools."""

    about: str
    skill: dict[str, float]
    pooled: set[str]


def skill_table(sections: Mapping[str, str]) -> str:
    """Tabulate the skill of each method in each benchmark "Who wins".

    Args:
        sections: sections of `docs/results.md` by the benchmark's name.
    """
    found = {n: m for n, text in sections.items() if n.startswith("who_wins") and (m := read(text))}
    methods = {method for m in found.values() for method in m.skill}
    pooled = set[str]().union(*(m.pooled for m in found.values()))

    def mean(method: str) -> float:
        known = [m.skill[method] for m in found.values() if method in m.skill]
        return sum(known) / len(known)

    columns = sorted(methods, key=mean, reverse=True)
    head = ["data", *(f"{c} †" if c in pooled else c for c in columns)]
    rows = [[f"[{m.about}](results.md#{name})", *_cells(m, columns)] for name, m in found.items()]
    return "\n".join(_row(cells) for cells in (head, ["---"] * len(head), *rows))


def read(text: str) -> Measured | None:
    """Return what the section of a backtest says, None if it has no table of skill."""
    about = re.search(r"^\*\*([^*,]+),.*?\*\*: (\d+ cells), .*?, (\d+ steps? ahead)", text, re.M)
    table = re.search(rf"^\| method .*\| {SKILL} .*\n((?:\|.*\n)+)", text, re.M)
    if not about or not table:
        return None
    place = [cell.strip() for cell in table[0].splitlines()[0].split("|")].index(SKILL)
    lines = [[cell.strip() for cell in row.split("|")] for row in table[1].splitlines()[1:]]
    skill = {cells[1]: float(cells[place].split()[0]) for cells in lines}
    pooled = set(re.findall(r"^\| (.+?) † +\|", text, re.M))
    return Measured(f"{about[1]}, {about[2]}, {about[3]}", skill, pooled)


def _cells(measured: Measured, columns: list[str]) -> list[str]:
    best = max(measured.skill.values())
    values = [measured.skill.get(column) for column in columns]
    return ["" if v is None else f"**{v:.0f}**" if v == best else f"{v:.0f}" for v in values]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
