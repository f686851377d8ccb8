"""Result of `stforecast compare`: tables, what they show, and every number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from data_prep.base.files import atomic_path
from stforecast.bench.tables import for_terminal, latex, markdown
from stforecast.federated.runs.run_folder import write_csv


@dataclass(frozen=True)
class ComparedTable:
    """Comparison of the runs on the same data.

    Attributes:
        name: name of the data.
        rows: rows of the table.
        claims: what it shows, in Markdown.
        basis: what its intervals are about.
    """

    name: str
    rows: Sequence[Mapping[str, str]]
    claims: Sequence[str] = ()
    basis: Sequence[str] = ()

    @property
    def plain_claims(self) -> list[str]:
        """Return what it shows, without marks."""
        return [claim.replace("**", "") for claim in self.claims]

    def markdown(self) -> list[str]:
        """Return the paragraphs of the table and what it shows."""
        table = [markdown(self.rows)] if self.rows else []
        return [*table, *self.claims, *self.basis]


@dataclass(frozen=True)
class Compared:
    """Result of `stforecast compare`.

    Attributes:
        tables: a table for the runs on the same data, and one over all data if there are several.
        legend: what the columns mean.
        numbers: every number, a row for each table and method.
        draw: function that draws figures into a folder, and returns how many.
    """

    tables: Sequence[ComparedTable]
    legend: Sequence[str]
    numbers: pd.DataFrame
    draw: Callable[[Path], int] = lambda folder: 0

    @property
    def text(self) -> str:
        """Return tables and what they show, for the terminal."""
        parts = [
            part
            for table in self.tables
            for part in (table.name, for_terminal(table.rows), *table.plain_claims, *table.basis)
        ]
        return "\n\n".join(filter(None, [*parts, "\n".join(self.legend)]))

    def write(self, out: Path) -> int:
        """Write `comparison.md`, `.tex` and `.csv`, with all numbers unrounded; return `draw`."""
        page, tex = ["# Comparison"], []
        for table in self.tables:
            page += [f"## {table.name}", *table.markdown()]
            tex += [f"% {table.name}\n{latex(table.rows)}"]
        out.mkdir(parents=True, exist_ok=True)
        for ending, parts in ((".md", [*page, *self.legend]), (".tex", tex)):
            with atomic_path(out / f"comparison{ending}") as part:
                part.write_text("\n\n".join(parts) + "\n")
        write_csv(self.numbers, out / "comparison.csv")
        return self.draw(out)
